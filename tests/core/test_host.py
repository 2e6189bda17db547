"""A host, over a link that loses, doubles and ends."""

from __future__ import annotations

from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_envserve.core import messages
from trio_envserve.core.errors import ProtocolError
from trio_envserve.core.heartbeat import Heartbeat
from trio_envserve.core.host import (
    SPANS_MOST,
    FromHost,
    Host,
    TellWorker,
)
from trio_envserve.core.host_link import Item, ItemKind, to_frames
from trio_envserve.core.host_messages import (
    IN_USE,
    KINDS,
    LONGEST_S,
    OVER,
    VERSION,
    ForeignHost,
    HostAnswer,
    HostHello,
    HostLeaves,
    HostRefused,
    HostWelcome,
    Items,
    decode,
    encode,
)
from trio_envserve.core.limits import WireLimits
from trio_envserve.core.messages import (
    Announced,
    Dispatch,
    WorkerDelta,
    WorkerOutcome,
    in_batches,
)
from trio_envserve.core.messages import encode as encode_worker
from trio_envserve.core.pool import LifeInput, Phase
from trio_envserve.core.ranges import Ranges
from trio_envserve.core.router_effects import AskWorker, Kill, Report, Spawn, ToHost, ToWorker
from trio_envserve.core.router_inputs import (
    Exited,
    HeartbeatReceived,
    HolderFound,
    HostsDead,
    Spawned,
    StackTaken,
    WorkerBack,
    WorkerMessage,
)

from .host_rig import (
    BEAT,
    EPOCH,
    HELLO,
    SERVES,
    TERMS,
    Link,
    about,
    hello_of,
    joined,
    spoilt,
    starting,
)

DISPATCH = messages.Dispatch(bytes(16), 0, 0, "client")


def test_a_worker_of_a_host_is_like_any_other():
    link = joined(workers=2)
    assert link.host.is_joined
    assert list(link.alive) == [b"w0-1", b"w1-1"]
    assert [life.phase for life in link.pool.lives.values()] == [Phase.READY] * 2
    assert link.tell(ToWorker(b"w1-1", link.alive[b"w1-1"], DISPATCH, b"body"))
    link.settle()
    assert link.told == [(b"w1-1", link.alive[b"w1-1"], messages.encode(DISPATCH), b"body")]
    link.says()
    link.beats()
    link.host.worker_heartbeat(b"w0-1", Heartbeat(0.5, 7, "there"))
    link.settle()
    outcome, beat, felt = link.inputs[-3:]
    assert outcome.frames[0] == b"w0-1"
    assert outcome.frames[-1] == b"payload"
    assert beat.frames[-1] == BEAT
    assert felt == HeartbeatReceived(b"w0-1", link.now_s, 0.5, 7, "there")
    assert Spawned(b"w0-1", 7) in link.inputs
    assert not link.hosts.take(Kill(b"another", "of this machine"))
    assert (link.hosts.host_of(b"w1-1"), link.hosts.host_of(b"another")) == ("a", None)
    for effect in (Report("info", "no business of hosts"), Spawn(99, b"another", b"i" * 16)):
        assert not link.hosts.take(effect)


def test_a_worker_of_a_host_is_asked_for_a_stack_and_says_it():
    link = joined(workers=2)
    ask = AskWorker(b"w1-1", 5, "0a1b2c3d#4")
    link.hosts.take(ask)
    link.settle()
    assert link.asked == [ask]
    link.host.worker_heartbeat(b"w1-1", Heartbeat(0.5, 7, "", 5, "line 3"))
    link.settle()
    assert link.inputs[-2:] == [
        HeartbeatReceived(b"w1-1", link.now_s, 0.5, 7, ""),
        StackTaken(b"w1-1", link.now_s, 5, "line 3"),
    ]
    assert not link.hosts.take(ask._replace(worker=b"another"))


def test_holder_of_an_interpreter_of_a_host_is_told():
    link = joined(workers=2)
    link.host.worker_heartbeat(b"w1-1", Heartbeat(where="line 3", holder="0a1b2c3d#4"))
    link.host.worker_heartbeat(b"w1-1", Heartbeat(where="line 4", holder=""))
    link.settle()
    assert link.inputs[-2:] == [
        HolderFound(b"w1-1", link.now_s, "0a1b2c3d#4", "line 3"),
        HolderFound(b"w1-1", link.now_s, "", "line 4"),
    ]


def test_a_question_that_is_lost_is_not_asked_later():
    """Who still wants to know asks again; a host that is cut off has none of these to catch up."""
    link = joined()
    (host,) = link.hosts.hosts.values()
    link.cut = True
    link.hosts.take(AskWorker(b"w0-1", 5, "0a1b2c3d#4"))
    link.settle()
    link.cut = False
    link.host.connect()
    link.settle()
    link.second(2)
    assert link.asked == []
    assert len(host.outbox) == 0


def test_a_question_for_nobodys_worker_is_dropped():
    link = joined()
    link.from_router(Item(ItemKind.ASK, b"another", (b"5", b"0a1b2c3d#4")))
    link.carry()
    assert (link.asked, list(link.alive)) == ([], [b"w0-1"])


def test_a_replacement_has_its_predecessors_place_on_the_host():
    """The number of a place says which GPU a worker has; a worker that still ends beside its
    replacement had the next free number."""
    link = Link(workers=2)
    for slot in link.pool.open_slots(3):  # of this machine
        slot.start_at_s = 1e9
    link.joined()
    link.ready()
    worker = next(each for each, place in link.places.items() if place == 1)
    link.host.out.clear()
    life = link.pool.lives[worker]
    link.pool.step(life, LifeInput.RETIRE, link.now_s, "it is recycled")
    link.pool.step(life, LifeInput.DRAINED, link.now_s, "it is recycled")
    link.second(3)
    (fresh,) = [each for each in link.alive if link.places[each] == 1 and each != worker]
    assert worker in link.alive
    assert fresh.endswith(b"-2")


def test_a_refusal_is_logged_once_and_is_over_with_the_welcome():
    link = Link()
    for hello in (1, 2):
        link.host.connect()
        refused = HostRefused(link.host.lease.membership, hello, EPOCH, IN_USE, "another is here\n")
        link.host.message((encode(refused),), 0.0)
    assert link.host.refusal == (IN_USE, "another is here?")
    link.joined()
    assert [text for text in link.logged if "refuses" in text] == [
        "the router refuses this host: another is here?"
    ]
    assert link.host.refusal is None


def test_a_router_of_another_version_is_noticed():
    link = Link()
    link.host.connect()
    with pytest.raises(ForeignHost):
        link.host.message((cbor2.dumps([KINDS[HostWelcome], 1, "more"]),), 0.0)
    assert link.host.refusal == (VERSION, "there protocol version 1 is not spoken, 2 is")


def test_what_a_lost_message_had_comes_with_the_next_beats():
    link = joined()
    link.says()
    link.carry()
    link.up.clear()
    link.tell(ToWorker(b"w0-1", b"i", DISPATCH, b"body"))
    link.route()
    link.down.clear()
    link.second(3)
    assert link.inputs[-1].frames[-1] == b"payload"
    assert link.told[-1][-1] == b"body"


def test_a_host_that_is_cut_off_for_long_is_dead_before_it_is_lost_and_comes_back():
    """It went on with beats that the router answered no more, for ever."""
    link = joined()
    membership = link.host.lease.membership
    link.cut = True
    link.second(21)
    assert not link.alive
    assert not any(isinstance(each, Exited) for each in link.inputs)
    link.second(int(TERMS.wait_s) - 20)
    assert isinstance(link.inputs[-1], Exited)
    assert not link.hosts.hosts
    link.cut = False
    link.second(2)
    assert not link.alive, "its slots are closed"
    for _ in range(5):
        link.second()
        if not link.host.is_joined:  # as its shell does
            link.host.connect()
    assert any("its membership is over" in text for text in link.logged)
    assert link.host.lease.membership != membership
    assert list(link.alive) == [b"w0-2"]


def test_a_host_that_was_stopped_past_its_deadline_begins_with_a_new_guard():
    link = joined()
    link.cut = True
    link.host.beat(link.now_s + 1)
    link.carry()
    late = link.up.pop()
    link.now_s += 22  # the guard has killed it; the host has not noticed, and gets an answer
    link.take(link.hosts.message(b"r", late, link.now_s - 21))
    link.route()
    link.cut = False
    link.settle()
    assert not link.alive
    assert link.deadline_s is None
    link.second(2)
    assert link.deadline_s is not None
    assert link.deadline_s > link.now_s
    link.second(3)
    assert list(link.alive) == [b"w0-2"]


def test_a_spawn_that_comes_too_late_is_an_end():
    link = joined()
    spawn = Item(ItemKind.SPAWN, b"x", (link.ids(), b"0"))
    link.from_router(spawn, skip=5)
    assert b"x" not in link.host.workers, "others before it are missing"
    link.now_s += 100
    link.from_router(spawn)
    assert not any(isinstance(each, Spawn) for each in link.host.out)
    link.now_s -= 100
    link.from_router(*(Item(what, b"x", (b"why",)) for what in (ItemKind.TELL, ItemKind.KILL)))
    assert not any(isinstance(each, TellWorker | Kill) for each in link.host.out)


def test_a_host_that_finds_its_time_over_kills_what_lives():
    """The guard has: but it costs nothing."""
    link = joined()
    link.host.beat(link.now_s + 100)
    link.carry()
    assert not link.alive
    assert not link.host.workers


def test_a_membership_ends_only_when_its_workers_have():
    link = joined()
    membership = link.host.lease.membership
    link.host.connect()
    link.host.lease.refused(link.host.lease.hellos)
    link.host.out.clear()
    link.host.beat(link.now_s)
    assert any(isinstance(each, Kill) for each in link.host.out)
    link.host.out.clear()
    link.host.connect()
    assert not link.host.out
    link.host.exited(b"w0-1", "killed")
    assert link.host.lease.membership != membership
    assert any(isinstance(each, FromHost) for each in link.host.out)


@pytest.mark.parametrize("how", ["cut", "made anew"])
def test_what_ends_while_there_is_no_connection_is_told_later(how):
    link = joined()
    if how == "cut":
        link.host.disconnect()
        assert not link.host.is_joined
    else:
        link.host.connect()
    link.host.out.clear()
    link.host.worker_heartbeat(b"w0-1", Heartbeat())
    link.host.exited(b"w0-1", "exit code 1")
    link.host.flush()
    assert not link.host.out


def test_messages_of_the_wrong_side_are_refused():
    link = joined()
    membership = link.host.lease.membership
    with pytest.raises(ProtocolError):
        link.host.message((encode(HostLeaves(membership, 0)),), link.now_s)
    with pytest.raises(ProtocolError):
        link.hosts.message(
            b"r", (encode(HostWelcome(2, membership, 1, EPOCH, 1.0, {})),), link.now_s
        )
    with pytest.raises(ProtocolError):
        spawned = to_frames(membership, 0, [Item(ItemKind.SPAWNED, b"w0-1", (b"7",))])
        link.host.message(spawned, link.now_s)
    link.host.message((encode(HostWelcome(2, b"x" * 16, 1, EPOCH, 1.0, {})),), link.now_s)


STEPS = ["second", "say", "die", "tell", "lose up", "lose down", "double", "move", "connect", "cut"]


@given(steps=st.lists(st.sampled_from(STEPS), max_size=60))
def test_whatever_is_lost_each_word_of_a_worker_comes_once_and_its_end_comes_last(steps):
    link = joined(workers=2)
    said: dict[bytes, int] = {}
    for step in steps:
        worker = next(iter(link.alive), None)
        if step == "second":
            link.second()
        elif step == "cut":
            link.cut = not link.cut
        elif step == "connect":
            link.host.connect()
        elif step == "lose up" and link.up:
            link.up.popleft()
        elif step == "lose down" and link.down:
            link.down.popleft()
        elif step == "double" and link.up:
            link.up.appendleft(link.up[0])
        elif step == "move":
            link.move()
        elif step == "say" and worker is not None:
            said[worker] = said.get(worker, 0) + 1
            word = b"%d" % said[worker]
            link.says(word, worker)
        elif step == "die" and worker is not None:
            link.dies(worker, "exit code 1")
        elif step == "tell" and worker in link.hosts._of_worker:
            link.tell(ToWorker(worker, b"i", DISPATCH, b"body"))
        link.carry()
        link.route()
    link.cut = False
    for _ in range(3):
        link.host.connect()
        link.second(20)
    ended = [each.worker for each in link.inputs if isinstance(each, Exited)]
    assert len(ended) == len({*ended})
    for worker, words in said.items():
        mine = [
            each.frames[-1] if isinstance(each, WorkerMessage) else each
            for each in link.inputs
            if about(each) == worker and not isinstance(each, Spawned)
        ]
        heard = [each for each in mine if isinstance(each, bytes) and each != HELLO]
        assert heard == [b"%d" % number for number in range(1, len(heard) + 1)]
        if any(isinstance(each, Exited) for each in mine):
            assert isinstance(mine[-1], Exited)
            lost = any("is gone" in each.how for each in mine if isinstance(each, Exited))
            assert lost or len(heard) == words
        else:
            assert worker in link.alive
            assert len(heard) == words


# -- What a router, or a worker, sends wrong to a host -------------------------


def broken_ones(membership: bytes) -> list[Any]:
    messages = [
        HostWelcome(2, membership, 2, EPOCH, 20.0, SERVES),
        HostRefused(membership, 2, EPOCH, "unfit", "no"),
        HostAnswer(membership, 1, 0, 0, 0),
        Items(membership, 0, [17], [b"w0-1"], [0]),
    ]
    return [each for message in messages for each in spoilt([KINDS[type(message)], *message])]


def test_whatever_a_router_sends_the_host_goes_on_or_begins_anew():
    refused = 0
    for number, array in enumerate(broken_ones(b"t" * 16)):
        if number % 20 == 0:  # a link each would take long
            link = joined()
        membership = link.host.lease.membership
        array = [membership if each == b"t" * 16 else each for each in array]
        try:
            link.host.message((cbor2.dumps(array),), link.now_s)
        except ProtocolError:
            refused += 1
        link.settle()
        link.second(4)
        link.ready()
        assert len(link.alive) == 1
    assert refused > 500


@pytest.mark.parametrize(
    "item",
    [
        Item(ItemKind.KILL, b"w0-1", ()),
        Item(ItemKind.KILL, b"w0-1", (b"why", b"why")),
        Item(ItemKind.TELL, b"w0-1", ()),
        Item(ItemKind.SPAWN, b"x", (b"short", b"0")),
        Item(ItemKind.SPAWN, b"x", (b"i" * 16,)),
        *(Item(ItemKind.SPAWN, b"x", (b"i" * 16, place)) for place in (b"-1", b"x", b"1" * 7)),
        Item(ItemKind.ASK, b"w0-1", ()),
        Item(ItemKind.ASK, b"w0-1", (b"5",)),
        Item(ItemKind.ASK, b"w0-1", (b"5", b"0a1b2c3d#4", b"")),
        Item(ItemKind.ASK, b"w0-1", (b"5", b"x" * 65)),
        *(
            Item(ItemKind.ASK, b"w0-1", (number, b"0a1b2c3d#4"))
            for number in (b"", b"-1", b"x", b"\xb2", b"9" * 19, b"1" * 5_000)
        ),
        Item(ItemKind.MESSAGE, b"w0-1", (b"i" * 16, b"")),
    ],
)
def test_items_that_are_none_end_all_workers_since_what_was_wanted_is_lost(item):
    """A kill without a reason ended the host's process."""
    link = joined()
    membership = link.host.lease.membership
    with pytest.raises(ProtocolError):
        link.from_router(Item(ItemKind.KILL, b"w0-1", (b"why",)), item)
    link.carry()
    assert not link.alive
    assert link.host.lease.membership != membership
    link.settle()
    link.second(4)
    assert len(link.alive) == 1
    assert b"w0-1" in [about(each) for each in link.inputs]


def test_a_worker_that_is_there_is_not_started_again():
    link = joined()
    before = dict(link.alive)
    link.from_router(Item(ItemKind.SPAWN, b"w0-1", (b"i" * 16, b"0")))
    link.settle()
    assert link.alive == before
    assert any("wanted a second worker" in text for text in link.logged)


def test_a_lease_is_no_longer_than_a_timer_of_the_kernel_holds():
    """The guard was to be told a number that its message does not hold."""
    link = Link()
    link.host.connect()
    welcome = HostWelcome(2, link.host.lease.membership, 1, EPOCH, LONGEST_S, SERVES)
    with pytest.raises(ProtocolError, match="fence_s"):
        link.host.message((encode(welcome),), link.now_s)


@pytest.mark.parametrize(
    "frames",
    [(), (b"i" * 16,), (b"x",) * 3, (b"x",) * 64, (b"i" * 16, bytes(WireLimits().header_bytes))],
    ids=["none", "one", "three", "many", "long"],
)
def test_what_a_worker_sends_wrong_holds_up_nobody(frames):
    """One message of many frames, which no connection carries, kept back all that came
    later, from all workers of the host."""
    link = joined()
    link.host.worker_message(b"w0-1", frames)
    link.beats()
    said = (link.alive[b"w0-1"], b"client", b"header", b"payload")
    link.host.worker_message(b"w0-1", said)
    link.settle()
    came = [tuple(each.frames[1:]) for each in link.inputs if isinstance(each, WorkerMessage)]
    assert came[-1] == said
    assert any("worker w0-1 sent a malformed message" in text for text in link.logged)
    # It stayed, and its calls waited for ever: the router never heard of the message.
    [ended] = [each for each in link.inputs if isinstance(each, Exited)]
    assert (ended.worker, ended.how) == (b"w0-1", "it sent a malformed message")


# -- A host whose router is killed: the next one, with the same journal, takes over what runs

SESSION = b"s" * 16


def dispatched(link: Link, *numbers: int, worker: bytes = b"w0-1") -> None:
    for number in numbers:
        dispatch = Dispatch(SESSION, number, number, "client", None)
        link.tell(ToWorker(worker, link.alive[worker], dispatch, b"body"))
    link.settle()


def reported(link: Link, number: int, worker: bytes = b"w0-1") -> tuple[bytes, ...]:
    header = encode_worker(WorkerOutcome(SESSION, number, number, 0, 1.0))
    frames = (link.alive[worker], b"client", header, b"payload")
    link.host.worker_message(worker, frames)
    return frames


def said(link: Link, message: Announced | Dispatch, worker: bytes = b"w0-1") -> None:
    link.host.worker_message(worker, (link.alive[worker], encode_worker(message)))


def back(link: Link) -> WorkerBack:
    (found,) = [each for each in link.inputs if isinstance(each, WorkerBack)]
    return found


def test_a_host_states_what_runs_to_the_next_router_and_keeps_its_workers():
    link = joined()
    dispatched(link, 0, 1, 2, 3)
    reported(link, 1)
    said(link, Announced(SESSION, 2, 2, 1 << 20))
    reported(link, 3)
    link.settle()
    before, alive, deadline_s = link.host.lease.membership, dict(link.alive), link.deadline_s
    link.follow()
    given = back(link)
    assert given[:1] + given[2:8] == (
        b"w0-1", link.alive[b"w0-1"], 7, False, HELLO, 4, [0, 1],
    )  # fmt: skip
    assert link.alive == alive
    assert link.deadline_s == deadline_s, "no answer of the next router has moved it"
    assert link.host.is_joined
    assert link.host.lease.membership != before
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
    link.dies()
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


def test_a_worker_that_is_starting_is_taken_over_too():
    link = starting()
    link.follow()
    assert (back(link).hello, back(link).next) == (b"", 0)
    link.ready()
    (hello,) = [each for each in link.inputs if isinstance(each, WorkerMessage)]
    assert hello.frames[-1] == HELLO


def test_more_workers_than_there_is_room_for_get_no_more_work_but_those_that_run_most():
    link = joined(workers=2, offers={"gpu": 2})
    dispatched(link, 0, worker=b"w1-1")
    link.follow(needs={"gpu": 2})
    given = {each.worker: each for each in link.inputs if isinstance(each, WorkerBack)}
    assert not given[b"w1-1"].is_to_end
    assert given[b"w0-1"].is_to_end
    assert link.pool.lives[b"w0-1"].phase is Phase.EMPTYING
    link.second(5)
    assert set(link.alive) == {b"w0-1", b"w1-1"}, "it has what nobody else has, and is not killed"


def test_worker_that_starts_and_has_no_place_at_the_next_router_is_killed():
    link = starting(workers=2, offers={"gpu": 2})
    link.follow(needs={"gpu": 2})
    given = {each.worker: each for each in link.inputs if isinstance(each, WorkerBack)}
    assert not given[b"w0-1"].is_to_end
    assert link.pool.lives[b"w1-1"].phase is Phase.REAPED
    assert list(link.alive) == [b"w0-1"]


def test_worker_beside_its_place_was_given_that_of_its_successor_by_the_next_router():
    """It had more to report than its successor, which was killed."""
    link = joined()
    dispatched(link, 0)
    for each in (LifeInput.RETIRE, LifeInput.SPENT):
        link.pool.step(link.pool.lives[b"w0-1"], each, link.now_s, "old")
    link.second()
    link.ready()
    link.follow()
    assert set(link.alive) == {b"w0-1", b"w0-2"}
    lives = {life.name: life.phase for life in link.pool.lives.values()}
    assert lives == {"w0-1@a": Phase.EMPTYING, "w0-2@a": Phase.READY}
    slot = link.pool.slots[0]
    assert (slot.life, slot.emptying) == (link.pool.lives[b"w0-2"], 1)


def test_what_is_new_has_another_name_than_what_was_there():
    link = joined(workers=2)
    link.dies()
    link.second(1)
    link.follow()
    link.second(3)
    assert len(link.alive) == 2
    assert all(worker == b"w1-1" or b"-1-" in worker for worker in link.alive)


def test_a_router_that_wants_other_workers_gets_new_ones():
    link = joined()
    membership = link.host.lease.membership
    link.follow(serves={"environment": "another"})
    assert not link.alive
    assert link.host.lease.membership != membership
    assert link.serves[-1] == {"environment": "another"}
    assert any("another environment" in text for text in link.logged)


def test_a_host_that_ends_its_workers_does_not_go_on():
    link = joined()
    link.second()
    link.host._ending = "for the test"
    link.moved()
    assert link.host.lease.over


def test_an_old_word_of_another_router_moves_nothing():
    link = joined()
    membership = link.host.lease.membership
    link.moved(before=1)
    assert link.host.lease.membership == membership


def test_a_router_that_dies_before_it_has_welcomed_the_host_is_followed_too():
    link = joined()
    new, _ = decode(hello_of(Host("b", 1, link.ids)), most_bytes=1 << 20)
    assert isinstance(new, HostHello)
    assert not new.to, "it goes on from no router"
    dispatched(link, 0)
    first = link.host.lease.membership
    link.moved()
    second = link.host.lease.membership
    hello, _ = decode(hello_of(link.host), most_bytes=1 << 20)
    assert isinstance(hello, HostHello)
    assert (hello.continues, hello.to, hello.epoch) == ([first], b"n" * 16, EPOCH)
    link.follow()  # to which it has not said what runs
    assert back(link).running == [0, 1]
    assert link.host.lease.membership not in (first, second)
    assert not link.host._continues


def test_what_is_no_message_to_a_worker_is_for_the_worker_to_judge():
    link = joined()
    kind = encode_worker(Dispatch(SESSION, 0, 0, "", None))[:3]
    remote = link.hosts.hosts[link.host.lease.membership]
    for frames in ((link.alive[b"w0-1"], kind), (link.alive[b"w0-1"],)):
        remote.outbox.put(Item(ItemKind.TELL, b"w0-1", frames))
        remote.dirty = True
    link.settle()
    assert len(link.told) == 2
    link.beats()
    announced, dispatch = Announced(SESSION, 2, 2, 9), Dispatch(SESSION, 0, 0, "", None)
    link.tell(ToWorker(b"w0-1", link.alive[b"w0-1"], announced))
    dispatched_by_a_worker = (link.alive[b"w0-1"], b"", encode_worker(dispatch), b"body")
    link.host.worker_message(b"w0-1", dispatched_by_a_worker)
    link.settle()
    link.follow()
    assert back(link).running == []


def test_a_late_statement_for_an_earlier_router_was_taken_for_a_malformed_message():
    link = joined()
    lives = [[b"w0-1", link.alive[b"w0-1"], 7, b"", [0, 1], [], 0]]
    late = HostHello(
        2, "a", b"t" * 16, 1, [], b"x" * 16, 1, 1, {}, [b"c" * 16], b"n" * 16, lives
    )  # fmt: skip
    assert answer_to(link, late, link.now_s) == OVER


def answer_to(link: Link, hello: HostHello, now_s: float) -> str:
    """The code with which a hello is refused, and nothing else done."""
    link.said()
    assert link.hosts.message(b"r", (encode(hello),), now_s) == []
    (effect,) = link.said()
    assert isinstance(effect, ToHost)
    refused, _ = decode(effect.frames, most_bytes=1 << 20)
    assert isinstance(refused, HostRefused)
    return refused.code


def test_what_has_ended_in_one_batch_has_ended_one_by_one():
    """Where outcomes came together, what had ended counted as running for ever: no router
    after the first one took a statement of so many."""
    link = joined()
    worker, incarnation = b"w0-1", link.alive[b"w0-1"]
    told = [(Dispatch(SESSION, n, n, "client", None), b"body") for n in range(70)]
    for each in told:
        assert link.tell(ToWorker(worker, incarnation, *each))
    link.hosts.turn_over()
    assert len(link.hosts.hosts[link.host.lease.membership].outbox) == 2, "64 rows are the most"
    link.settle()
    assert link.host._lives[worker].running == {*range(70)}
    ended = [(WorkerOutcome(SESSION, n, n, 0, 1.0), b"payload") for n in range(69)]
    for header, body in in_batches(ended):
        link.host.worker_message(worker, (incarnation, b"client", header, body))
    link.settle()
    link.follow()
    assert (back(link).running, back(link).next) == ([69, 70], 70)


def test_a_host_remembers_few_gaps_the_newest():
    """Those before count as dispatched: they may have run."""
    link = joined()
    numbers = range(0, 4 * SPANS_MOST, 2)
    dispatched(link, *numbers)
    for number in numbers:
        reported(link, number)
    link.settle()
    link.follow()
    newest = Ranges(number + 1 for number in numbers[-SPANS_MOST:-1])
    assert (back(link).next, back(link).missing) == (numbers[-1] + 1, newest.flat())


def test_a_host_that_came_back_too_late_was_malformed_until_its_workers_were_forgotten():
    """It had not heard the welcome, and said again what it had; it was not told that it is over."""
    link = joined()
    before, lives = (
        link.hosts.leases.epoch,
        [[worker, incarnation, 7, HELLO, [], [], 0] for worker, incarnation in link.alive.items()],
    )
    link.follow()
    membership, epoch = link.host.lease.membership, link.hosts.leases.epoch
    link.take(link.hosts.tick(link.now_s + 1000))
    assert link.pool.lives, "what they had sent may still be taken in"
    hello = HostHello(2, "a", membership, 9, [], before, 1, 1, {}, [b"t" * 16], epoch, lives)
    assert answer_to(link, hello, link.now_s + 1000) == OVER


def test_deltas_have_no_number_and_beats_come_in_their_order_or_not_at_all():
    """A beat that overtook an outcome would differ from what the router knows."""
    link = joined()
    delta = encode_worker(WorkerDelta(SESSION, 0, 0, 0))
    put = link.host._outbox.put_in_all
    for _ in range(2):
        link.host.worker_message(b"w0-1", (link.alive[b"w0-1"], b"client", delta, b"piece"))
        link.beats()
        link.host.disconnect()
    assert link.host._outbox.put_in_all == put + 1
    link.settle()
    said = [each.frames[-1] for each in link.inputs if isinstance(each, WorkerMessage)]
    assert said[-1] == b"piece"
