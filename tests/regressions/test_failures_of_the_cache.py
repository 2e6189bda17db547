"""What goes wrong in the memory of a server: failures 5, 6, 9, 10, 17.

Each test is named after a failure that servers of this kind have had.  ``run.py``
puts each failure back, by the patch of the same number, and sees the test turn red.
"""

from __future__ import annotations

import pytest

from tests.regressions.bench import System, is_outcome
from trio_envserve.core.messages import Finish, Refused, Request, decode, encode
from trio_envserve.core.terms import Status


def test_failure_05_kept_outcome_expires_sooner_than_the_retry():
    """The outcome is kept for 300 s and the client retries for 600 s: a client that is
    back after 400 s has the request run again.

    Here an outcome is kept until the client has it (G4); only the lease ends that, it
    is not shorter than the client's patience, and no client that is back outlives it.
    """
    system = System(rerun=True)
    call = system.submit()
    system.lose = is_outcome
    system.client.disconnected(system.now_s, "cut")
    system.end()
    limits = system.server_limits, system.client.limits
    assert limits[0].lease_s >= limits[1].recovery_s
    system.advance(400.0)
    assert system.ended == {}

    system.lose = lambda message: False
    system.reconnect(b"route 2")
    system.advance(2.0)
    assert len(system.starts) == 1, "it ran again"
    assert system.result(call) == b"outcome"


def test_failure_05_kept_outcome_is_evicted_at_the_entry_limit():
    """The same past the entry limit: the oldest outcome makes room for the newest, and
    its client's retry runs again.

    Here nothing that has run is thrown away for what has not (G8): at the bound
    dispatching pauses, and goes on when clients have their outcomes.
    """
    system = System(rerun=True, server={"kept_outcomes": 4, "session_share": 1.0})
    system.lose = is_outcome
    bodies = [b"%d" % number for number in range(12)]
    calls = [system.submit(body) for body in bodies]
    system.end_all(lambda start: b"outcome of " + start.body)
    system.advance(5.0)

    system.lose = lambda message: False
    taken: set[int] = set()
    for _ in range(10):
        system.advance(2.0)
        system.end_all(lambda start: b"outcome of " + start.body)
        system.received(*system.ended.keys() - taken)
        taken.update(system.ended)
    assert sorted(start.body for start in system.starts) == sorted(bodies), "each once"
    assert [system.result(call) for call in calls] == [b"outcome of " + body for body in bodies]


def test_failure_06_late_duplicate_of_an_acknowledged_request_runs_again():
    """The client acknowledges, the server forgets, and a late duplicate of the request
    looks like a new one: it runs again.

    Here finished sequences are remembered, as ranges, so "finished" and "never seen"
    are different things, and the duplicate is refused.
    """
    system = System(rerun=True)
    call = system.submit()
    system.end()
    system.received(call)
    assert any(isinstance(message, Finish) for message in system.to_server)

    answers = system.tell(*system.asked[0])
    assert len(system.starts) == 1, "it ran again"
    assert [answer.code for answer in answers if isinstance(answer, Refused)] == ["finished"]
    assert len(answers) == 1


@pytest.mark.parametrize("state", ["waiting", "running", "completed"])
def test_failure_09_first_result_is_replayed_for_another_payload(state):
    """The same id comes with another payload, and gets the result of the first.

    Here the id is tied to a digest of body and options: another one is refused as a
    conflict, and the first is not disturbed (G6).
    """
    system = System(server={"worker_capacity": 1})
    if state == "waiting":
        system.submit(b"in the way")
    call = system.submit(b"first")
    if state == "completed":
        system.lose = is_outcome
        system.end()
    system.lose = lambda message: True  # what follows is about somebody else's message
    header, _ = system.asked[-1]
    request = decode(header, most_bytes=1000)
    assert isinstance(request, Request)

    forged = encode(request._replace(digest=b"another digest !"))
    answers = system.tell(forged, b"other")
    assert [type(answer) for answer in answers] == [Refused], "it was answered, or coalesced"
    assert isinstance(answers[0], Refused)
    assert (answers[0].code, answers[0].delay_s) == ("conflict", None)
    assert all(start.body != b"other" for start in system.starts)

    system.lose = lambda message: False
    system.end_all(lambda start: b"outcome of " + start.body)
    system.advance(2.0)
    assert system.result(call) in (b"outcome of first", b"outcome"), "the first is not disturbed"


def test_failure_10_cached_cancelled_is_replayed_as_the_result_of_a_retry():
    """A request is cancelled; "cancelled" is kept like an outcome; the caller asks
    again and is told "cancelled".

    Here a cancel finishes the request: nothing is kept and nothing replayed, another
    transmission of it is refused, and asking again is another request (G7).
    """
    system = System()
    first = system.submit(b"asked twice")
    system.client.cancel(first, system.now_s)
    system.settle()
    assert system.halts, "the environment code is told"

    answers = system.tell(*system.asked[0])
    assert [type(answer) for answer in answers] == [Refused]
    system.end(status=Status.CANCELLED, payload=b"cancelled")
    answers = system.tell(*system.asked[0])
    assert [type(answer) for answer in answers] == [Refused]
    assert system.router.stats()["kept"] == 0

    second = system.submit(b"asked twice")
    system.end()
    assert system.result(second) == b"outcome"
    assert first not in system.ended


def test_failure_17_kept_outcomes_are_bounded_in_number_but_not_in_bytes():
    """10,000 outcomes may be kept, of 5 MB each.

    Here bytes have a bound too, in all and for each session (G8): past it dispatching
    pauses, so what is kept is at most the bound and what was running.
    """
    bound, size, at_once = 40_000, 5_000, 2
    limits = {"kept_bytes": bound, "session_share": 1.0, "worker_capacity": at_once}
    system = System(server=limits)
    system.lose = is_outcome
    calls = [system.submit(b"%d" % number) for number in range(50)]
    system.end_all(lambda start: bytes(size))
    kept_bytes = system.router.stats()["kept_bytes"]
    assert bound <= kept_bytes <= bound + at_once * 2 * size, "kept without a bound"
    assert len(system.starts) < len(calls), "the rest waits"

    system.lose = lambda message: False
    taken: set[int] = set()
    for _ in range(20):
        system.advance(2.0)
        system.received(*system.ended.keys() - taken)
        taken.update(system.ended)
        system.end_all(lambda start: bytes(size))
    assert len(taken) == len(system.starts) == len(calls)
