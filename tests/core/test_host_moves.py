"""A host whose router is killed: the next one, with the same journal, takes over what runs."""

from __future__ import annotations

import pytest

from trio_envserve.core.errors import ProtocolError
from trio_envserve.core.host import Host
from trio_envserve.core.host_link import Item, What
from trio_envserve.core.host_messages import (
    OVER,
    HostHello,
    HostRefused,
    decode,
    encode,
)
from trio_envserve.core.host_pool import ToHost
from trio_envserve.core.messages import (
    Announced,
    Declined,
    Dispatch,
    WorkerOutcome,
    in_batches,
)
from trio_envserve.core.messages import encode as encode_worker
from trio_envserve.core.router_effects import ToWorker
from trio_envserve.core.router_inputs import Exited, HostsDead, WorkerBack, WorkerMessage

from .host_rig import BEAT, EPOCH, HELLO, Link, hello_of, joined

SESSION = b"s" * 16


def dispatched(link: Link, *numbers: int, worker: bytes = b"w0-1") -> None:
    for number in numbers:
        dispatch = Dispatch(SESSION, number, number, "client", None)
        link.tell(ToWorker(worker, link.alive[worker], dispatch, b"body"))
    link.settle()


def reported(link: Link, number: int, worker: bytes = b"w0-1") -> tuple[bytes, ...]:
    header = encode_worker(WorkerOutcome(SESSION, number, number, 0, 1.0))
    frames = (link.alive[worker], b"client", header, b"payload")
    link.host.said(worker, frames)
    return frames


def said(link: Link, message: Announced | Declined | Dispatch, worker: bytes = b"w0-1") -> None:
    link.host.said(worker, (link.alive[worker], encode_worker(message)))


def back(link: Link) -> WorkerBack:
    (found,) = [each for each in link.inputs if isinstance(each, WorkerBack)]
    return found


def test_a_host_states_what_runs_to_the_next_router_and_keeps_its_workers():
    link = joined()
    dispatched(link, 0, 1, 2, 3)
    reported(link, 1)
    said(link, Announced(SESSION, 2, 2, 1 << 20))
    said(link, Declined([3, 4]))
    link.settle()
    before, alive, deadline_s = link.host.lease.tenure, dict(link.alive), link.deadline_s
    link.follow()
    given = back(link)
    assert given[:1] + given[2:8] == (
        b"w0-1", link.alive[b"w0-1"], 7, False, HELLO, 4, [0, 1],
    )  # fmt: skip
    assert link.alive == alive
    assert link.deadline_s == deadline_s, "no answer of the next router has moved it"
    assert link.host.is_joined
    assert link.host.lease.tenure != before
    assert any("is back with 1 workers" in text for text in link.logged)
    link.second(3)
    assert link.deadline_s is not None
    assert deadline_s is not None
    assert link.deadline_s > deadline_s
    assert HostsDead([EPOCH], link.now_s - 2) in link.inputs
    dispatched(link, 4)
    assert link.told[-1][-1] == b"body"


def test_what_may_not_have_arrived_goes_to_the_next_router_in_its_order():
    link = joined(workers=2)
    dispatched(link, 0)
    link.second()
    link.cut = True
    outcome = reported(link, 0)
    del link.alive[b"w0-1"]
    link.host.exited(b"w0-1", "exit code 0")
    link.settle()
    link.cut = False
    link.follow()
    about = [each for each in link.inputs if each[0] == b"w0-1" or each[0][0] == b"w0-1"]
    assert [type(each) for each in about] == [WorkerBack, WorkerMessage, Exited]
    assert about[1].frames == [b"w0-1", *outcome]
    link.second(2)
    link.follow()
    again = {each[0] for each in link.inputs if isinstance(each, WorkerBack)}
    assert b"w0-1" not in again, "it has ended, and that was heard"
    assert b"w1-1" in again


def test_what_has_ended_and_was_heard_is_forgotten():
    link = joined(workers=2)
    del link.alive[b"w0-1"]
    link.host.exited(b"w0-1", "exit code 0")
    link.second(1)
    link.follow()
    assert {each[0] for each in link.inputs if isinstance(each, WorkerBack)} == {b"w1-1"}


def test_a_worker_that_is_starting_is_taken_over_too():
    link = Link()
    link.joined()
    link.follow()
    assert (back(link).hello, back(link).next) == (b"", 0)
    link.ready()
    (hello,) = [each for each in link.inputs if isinstance(each, WorkerMessage)]
    assert hello.frames[-1] == HELLO


def test_more_workers_than_there_is_room_for_end_but_those_that_run_most():
    link = joined(workers=2, offers={"gpu": 2})
    dispatched(link, 0, worker=b"w1-1")
    link.follow(needs={"gpu": 2})
    given = {each.worker: each for each in link.inputs if isinstance(each, WorkerBack)}
    assert not given[b"w1-1"].is_to_end
    assert given[b"w0-1"].is_to_end
    assert list(link.alive) == [b"w1-1"], "it was killed"
    link.second(5)
    assert len(link.alive) == 1


def test_what_is_new_has_another_name_than_what_was_there():
    link = joined(workers=2)
    del link.alive[b"w0-1"]
    link.host.exited(b"w0-1", "exit code 0")
    link.second(1)
    link.follow()
    link.second(3)
    assert len(link.alive) == 2
    assert all(worker == b"w1-1" or b"-1-" in worker for worker in link.alive)


def test_a_router_that_wants_other_workers_gets_new_ones():
    link = joined()
    tenure = link.host.lease.tenure
    link.follow(serves={"environment": "another"})
    assert not link.alive
    assert link.host.lease.tenure != tenure
    assert link.serves[-1] == {"environment": "another"}
    assert any("other workers" in text for text in link.logged)


def test_a_host_that_ends_its_workers_does_not_go_on():
    link = joined()
    link.second()
    link.host._ending = "for the test"
    tenure, hellos = link.host.lease.tenure, link.host.lease.hellos
    refusal = HostRefused(tenure, hellos, b"n" * 16, "moved", "another one")
    link.host.message((encode(refusal),), link.now_s)
    assert link.host.lease.over


def test_an_old_word_of_another_router_moves_nothing():
    link = joined()
    tenure, hellos = link.host.lease.tenure, link.host.lease.hellos
    refusal = HostRefused(tenure, hellos - 1, b"n" * 16, "moved", "another one")
    link.host.message((encode(refusal),), link.now_s)
    assert link.host.lease.tenure == tenure


def test_a_router_that_dies_before_it_has_welcomed_the_host_is_followed_too():
    link = joined()
    dispatched(link, 0)
    first = link.host.lease.tenure
    refusal = HostRefused(first, link.host.lease.hellos, b"n" * 16, "moved", "another one")
    link.host.message((encode(refusal),), link.now_s)
    second = link.host.lease.tenure
    hello, _ = decode(hello_of(link.host), most_bytes=1 << 20)
    assert isinstance(hello, HostHello)
    assert (hello.continues, hello.to, hello.epoch) == ([first], b"n" * 16, EPOCH)
    link.follow()  # to which it has not said what runs
    assert back(link).running == [0, 1]
    assert link.host.lease.tenure not in (first, second)
    assert not link.host._continues


def test_what_is_no_message_to_a_worker_is_for_the_worker_to_judge():
    link = joined()
    kind = encode_worker(Dispatch(SESSION, 0, 0, "", None))[:3]
    remote = link.hosts.hosts[link.host.lease.tenure]
    for frames in ((link.alive[b"w0-1"], kind), (link.alive[b"w0-1"],)):
        remote.outbox.put(Item(What.TELL, b"w0-1", frames))
        remote.dirty = True
    link.settle()
    assert len(link.told) == 2
    link.host.said(b"w0-1", (link.alive[b"w0-1"], BEAT))
    announced, dispatch = Announced(SESSION, 2, 2, 9), Dispatch(SESSION, 0, 0, "", None)
    link.tell(ToWorker(b"w0-1", link.alive[b"w0-1"], announced))
    dispatched_by_a_worker = (link.alive[b"w0-1"], b"", encode_worker(dispatch), b"body")
    link.host.said(b"w0-1", dispatched_by_a_worker)
    link.settle()
    link.follow()
    assert back(link).running == []


@pytest.mark.parametrize(
    "lives",
    [
        [[b"w0-1", b"i" * 16, 7, b"", 1, [], 0]] * 2,
        [[b"w0-1", b"i" * 16, 7, b"", 1, [0, 2], 0]],
        [[b"w0-1", b"i" * 16, 7, b"", 1 << 30, [0, 1 << 30], 0]],
    ],
    ids=["twice", "above", "many"],
)
def test_a_statement_that_is_none_is_refused(lives):
    link = Link()
    hello = HostHello(1, "a", b"t" * 16, 1, [], EPOCH, 1, 1, {}, [b"c" * 16], b"n" * 16, lives)
    with pytest.raises(ProtocolError):
        link.hosts.message(b"r", (encode(hello),), link.now_s)


def test_a_name_that_another_worker_has_is_refused():
    link = joined()
    lives = [[b"w0-1", b"i" * 16, 7, b"", 1, [], 0]]
    hello = HostHello(1, "b", b"t" * 16, 1, [], EPOCH, 1, 1, {}, [b"c" * 16], b"n" * 16, lives)
    with pytest.raises(ProtocolError):
        link.hosts.message(b"r", (encode(hello),), link.now_s)


@pytest.mark.parametrize(
    "life",
    [
        [b"w", b"i" * 16, 7, b"", 1, []],
        [b"w", b"i", 7, b"", 1, [], 0],
        [b"w", b"i" * 16, -7, b"", 1, [], 0],
        [b"w", b"i" * 16, 7, b"", 1, [2, 1], 0],
        ["w", b"i" * 16, 7, b"", 1, [], 0],
        b"w",
    ],
)
def test_a_life_that_is_none_is_refused(life):
    hello = HostHello(1, "a", b"t" * 16, 1, [], EPOCH, 1, 1, {}, [], b"", [life])
    with pytest.raises(ProtocolError, match="lives"):
        decode((encode(hello),), most_bytes=1 << 20)


def test_a_host_of_another_router_is_not_told_to_whom_it_goes():
    host = Host("a", 1, Link().ids)
    hello, _ = decode(hello_of(host), most_bytes=1 << 20)
    assert isinstance(hello, HostHello)
    assert not hello.to
    with pytest.raises(ProtocolError, match="to is not"):
        decode((encode(hello._replace(to=b"short")),), most_bytes=1 << 20)
    with pytest.raises(ProtocolError, match="continues"):
        decode((encode(hello._replace(continues=[b"c" * 16] * 17)),), most_bytes=1 << 20)


def test_what_has_ended_in_one_batch_has_ended_one_by_one():
    """Where outcomes came together, what had ended counted as running for ever: no router
    after the first one took a statement of so many."""
    link = joined()
    worker, incarnation = b"w0-1", link.alive[b"w0-1"]
    told = [(Dispatch(SESSION, n, n, "client", None), b"body") for n in range(70)]
    frames = [(incarnation, *each) for each in in_batches(told)]
    assert len(frames) == 2, "64 rows are the most"
    assert link.hosts.tell(worker, frames)
    link.settle()
    assert link.host._lives[worker].running == {*range(70)}
    ended = [(WorkerOutcome(SESSION, n, n, 0, 1.0), b"payload") for n in range(69)]
    for header, body in in_batches(ended):
        link.host.said(worker, (incarnation, b"client", header, body))
    link.settle()
    link.follow()
    assert (back(link).running, back(link).next) == ([69, 70], 70)


def test_messages_for_nobodys_worker_are_not_taken():
    assert not joined().hosts.tell(b"w9-1", [])


def test_a_host_that_came_back_too_late_was_malformed_until_its_workers_were_forgotten():
    """It had not heard the welcome, and said again what it had; it was not told that it is over."""
    link = joined()
    before, lives = (
        link.hosts.leases.epoch,
        [[worker, incarnation, 7, HELLO, 0, [], 0] for worker, incarnation in link.alive.items()],
    )
    link.follow()
    tenure, epoch = link.host.lease.tenure, link.hosts.leases.epoch
    link.take(link.hosts.tick(link.now_s + 1000))
    assert link.pool.lives, "what they had sent may still be taken in"
    link.hosts.out.clear()
    hello = HostHello(1, "a", tenure, 9, [], before, 1, 1, {}, [b"t" * 16], epoch, lives)
    assert link.hosts.message(b"r", (encode(hello),), link.now_s + 1000) == []
    (sent,) = link.hosts.out
    assert isinstance(sent, ToHost)
    refused, _ = decode(sent.frames, most_bytes=1 << 20)
    assert isinstance(refused, HostRefused)
    assert refused.code == OVER
