"""What becomes of the runs of a connection that was lost."""

from __future__ import annotations

from tests.doors.verifiers.desk import THERE, Desk, started, told
from trio_envserve.doors.verifiers import runs
from trio_envserve.doors.verifiers.keeping import RECORD_BYTES
from trio_envserve.doors.verifiers.peers import GONE_S
from trio_envserve.doors.verifiers.records import Deliver, Forget, Stop


def test_an_orphan_is_offered_to_each_later_connection_from_its_place():
    desk = Desk()
    earlier, lost = desk.peer(), desk.peer()
    desk.run(lost)
    assert desk.close(lost) == []
    later = desk.peer()
    desk.peer(THERE)
    assert desk.end() == [Deliver(later, (b"a",), True)]
    assert desk.deliver(later) == []
    third, offered = desk.open()
    assert offered == [Deliver(third, (b"a",), True)]
    assert desk.open(THERE)[1] == []
    assert desk.after(desk.limits.lease_s - 1) == []
    assert desk.after(1) == [Forget(b"a")]
    assert desk.is_empty
    desk.close(earlier)


def test_what_was_sent_just_before_the_loss_is_offered_again():
    desk = Desk()
    lost = desk.peer()
    desk.run(lost)
    desk.end()
    desk.deliver(lost)
    later = desk.peer()
    desk.after(desk.limits.unsure_s - 1)
    assert desk.close(lost) == [Deliver(later, (b"a",), True)]
    assert desk.after(desk.limits.unsure_s) == []
    assert desk.after(desk.limits.lease_s) == [Forget(b"a")]


def test_room_is_made_of_orphans_as_soon_as_their_client_is_lost():
    """Runs of the same place waited until the lease of what nobody had read was over."""
    desk = Desk(kept_bytes=RECORD_BYTES)
    lost, other = desk.peer(), desk.peer()
    desk.run(lost, b"unread")
    desk.end(b"unread")
    assert started(desk.run(other, b"waits")) == []
    assert started(desk.close(lost)) == [b"waits"]


def test_many_orphans_are_offered_to_many_in_one_list_for_each():
    """Hundreds of outcomes times hundreds of connections held the loop for seconds."""
    desk = Desk()
    earlier, lost = desk.peer(), desk.peer()
    names = [b"%d" % number for number in range(50)]
    for name in names:
        desk.run(lost, name)
        desk.end(name)
    between = [desk.peer() for _ in range(3)]
    taken = b"taken"
    desk.run(lost, taken)
    desk.end(taken)
    desk.run(between[1], taken)
    joined, last = between[1], desk.peer()
    assert desk.close(joined) == []
    offered = desk.close(lost)
    assert offered == [
        Deliver(between[0], tuple(names), True),
        Deliver(between[2], (*names, taken), True),
        Deliver(last, (*names, taken), True),
    ]
    assert desk.close(earlier) == []


def test_what_was_sent_long_before_the_loss_is_not():
    desk = Desk()
    lost = desk.peer()
    desk.run(lost)
    desk.end()
    desk.deliver(lost)
    desk.after(desk.limits.unsure_s)
    assert desk.close(lost) == []
    assert desk.open()[1] == []


def test_nothing_is_offered_where_that_is_not_wanted():
    desk = Desk(redeliver=False)
    lost = desk.peer()
    desk.run(lost)
    desk.close(lost)
    later = desk.peer()
    assert desk.end() == []
    assert desk.open()[1] == []
    assert desk.run(later) == [Deliver(later, (b"a",), True)]  # but who asks gets it
    assert desk.after(desk.limits.lease_s) == []  # and waits, until it was sent


def test_a_run_for_which_nobody_comes_ends_with_its_lease():
    desk = Desk()
    lost = desk.peer()
    desk.run(lost)
    desk.close(lost)
    assert desk.after(desk.limits.lease_s - 1) == []
    assert desk.after(1) == [Stop(b"a")]
    assert desk.is_empty
    assert told(desk.run(desk.peer()))["error"] == runs.LOST


def test_the_lease_stands_still_while_its_client_may_be_back():
    desk = Desk()
    lost = desk.peer()
    desk.run(lost)
    desk.close(lost)
    later = desk.peer()
    assert desk.after(10 * desk.limits.lease_s) == []
    desk.close(later)
    assert desk.after(desk.limits.lease_s) == [Stop(b"a")]


def test_a_client_that_was_there_before_holds_no_lease():
    desk = Desk()
    desk.peer()
    lost = desk.peer()
    desk.run(lost)
    desk.close(lost)
    assert desk.after(desk.limits.lease_s) == [Stop(b"a")]


def test_what_a_lost_connection_had_said_is_still_heard():
    desk = Desk()
    lost = desk.peer()
    desk.close(lost)
    assert started(desk.run(lost)) == [b"a"]
    assert desk.run(lost) == []
    later = desk.peer()
    assert desk.end() == [Deliver(later, (b"a",), True)]
    desk.after(GONE_S + 1)
    assert desk.run(lost, b"b") == []
    assert desk.runs.find(b"b") is None
