"""What holds for each of the clients: for trio, for asyncio, and for plain code."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import linecache
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any

import numpy
import pytest
import trio

from tests.client.faces import Face, open_asyncio, open_face, serving
from trio_envserve import (
    CallError,
    ConfigError,
    Health,
    NotEncodable,
    PlainClient,
    RolloutFailed,
    Server,
    ServerNotReady,
    Verdict,
    open_client_asyncio,
)
from trio_envserve.client.options import HASHED_AT_ONCE
from trio_envserve.core.key_records import input_digest

pytestmark = pytest.mark.real

WAIT_S = 60.0


class Environment:
    """Does as its input says, and notes what was cancelled."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.cancelled = threading.Semaphore(0)

    async def run_rollout(self, rollout: Any) -> Any:
        what = rollout.input if isinstance(rollout.input, str) else ""
        if what == "fail":
            raise ValueError("as asked")
        if what == "wait":
            self.begun.release()
            try:
                await trio.sleep_forever()
            finally:
                self.cancelled.release()
        return numpy.arange(1_000_000) if what == "many numbers" else rollout.input


@pytest.fixture
def environment() -> Environment:
    return Environment()


@pytest.fixture
def server(environment: Environment) -> Iterator[Server]:
    with serving(environment) as server:
        yield server


@pytest.fixture(params=["trio", "asyncio", "plain"])
def client(request: pytest.FixtureRequest, server: Server) -> Iterator[Face]:
    with open_face(request.param, server.address) as face:
        yield face


def test_a_rollout_has_its_result(client: Face):
    assert client.run_rollout({"a": [1, 2.5, b"x"]}) == {"a": [1, 2.5, b"x"]}
    outcome = client.outcome("what")
    assert (outcome.value, outcome.executions, outcome.ok) == ("what", 1, True)


def test_a_rollout_that_fails_has_its_error(client: Face):
    with pytest.raises(RolloutFailed, match="as asked") as caught:
        client.run_rollout("fail")
    assert caught.value.verdict is Verdict.RAN_AND_FAILED
    assert isinstance(client.outcome("fail").error, RolloutFailed)


def test_a_wrong_call_is_refused_before_it_is_made(client: Face):
    with pytest.raises(ConfigError, match="max_executions"):
        client.run_rollout(1, max_executions=0)
    with pytest.raises(NotEncodable):
        client.run_rollout(object())
    with pytest.raises(ConfigError, match="in_flight"):
        client.run_many([1], in_flight=0)
    one: list[Any] = [{"a": 1}, "hey", b"hey"]
    for inputs in one:  # its keys or letters were run
        for call in (client.run_group, client.run_many):
            with pytest.raises(ConfigError, match="inputs must be a list with an input for each"):
                call(inputs)


def test_a_group_has_an_outcome_for_each_member(client: Face):
    outcomes = client.run_group([1, "fail", 3])
    assert [each.value for each in outcomes] == [1, None, 3]
    assert isinstance(outcomes[1].error, RolloutFailed)


def test_g9_a_limit_ends_a_call_with_what_is_known(client: Face, environment: Environment):
    outcome = client.outcome("wait", timeout_s=0.05)
    assert isinstance(outcome.error, CallError)
    if environment.begun.acquire(timeout=0):
        assert environment.cancelled.acquire(timeout=WAIT_S)
        # That it ran is known if the worker's beat, one a second, came just then.
        assert outcome.error.verdict in (Verdict.MAY_HAVE_RUN, Verdict.RAN_AND_FAILED)
    else:
        # What was dispatched counts, whether or not the worker got to it.
        assert outcome.error.verdict in (Verdict.DID_NOT_RUN, Verdict.MAY_HAVE_RUN)


def test_many_rollouts_have_their_outcomes_by_the_index_of_the_input(client: Face):
    inputs: list[Any] = [*range(500)]
    inputs[7], inputs[8] = "fail", object()
    outcomes = client.run_many(iter(inputs), in_flight=50)
    by_index = dict(outcomes)
    assert len(outcomes) == len(by_index) == 500
    assert isinstance(by_index.pop(7).error, RolloutFailed)
    assert isinstance(by_index.pop(8).error, NotEncodable)
    assert all(outcome.value == index for index, outcome in by_index.items())


def test_leaving_many_early_cancels_the_rest(client: Face, environment: Environment):
    [(index, outcome)] = client.run_many(["wait", "wait", 3, "wait"], most=1)
    assert (index, outcome.value) == (2, 3)
    # Those that had not begun are cancelled, too; nobody hears of them.
    while environment.begun.acquire(timeout=0):
        assert environment.cancelled.acquire(timeout=WAIT_S)


def test_what_had_arrived_when_many_are_left_can_be_taken(client: Face, environment: Environment):
    arrived: list[tuple[int, Any]] = []
    [(first, outcome)] = client.run_many([5, 6, "wait"], most=1, arrived=arrived)
    [(second, other)] = arrived
    assert {first: outcome.value, second: other.value} == {0: 5, 1: 6}
    if environment.begun.acquire(timeout=0):
        assert environment.cancelled.acquire(timeout=WAIT_S)


def test_input_that_is_filled_anew_for_each_of_many_calls_runs_as_it_was(client: Face):
    def filled() -> Iterator[dict[str, int]]:
        row: dict[str, int] = {}
        for number in range(6):
            row["number"] = number
            yield row

    by_index = dict(client.run_many(filled()))
    assert {index: each.value["number"] for index, each in by_index.items()} == {
        number: number for number in range(6)
    }


def test_large_inputs_and_results_take_no_loop(client: Face):
    numbers = client.run_rollout("many numbers")
    assert numbers.shape == (1_000_000,)
    assert (client.run_rollout(numbers) == numbers).all()
    many = client.run_many([numbers, "many numbers"])
    assert sorted(index for index, outcome in many if outcome.ok) == [0, 1]


def test_a_client_tells_of_its_server(client: Face):
    client.wait_ready(timeout_s=WAIT_S)
    assert client.health().health is Health.HEALTHY
    client.run_rollout(1)
    assert client.stats().cache.entered == 1
    assert client.counters().sessions == 1
    assert client.list_running().running == ()


def test_calls_of_many_threads_at_once(client: Face):
    results: list[Any] = []

    def call(number: int) -> None:
        results.append(client.run_rollout(number))

    threads = [threading.Thread(target=call, args=(number,)) for number in range(100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [*range(100)]


@pytest.mark.parametrize("many", [False, True])
def test_large_inputs_of_keyed_calls_were_hashed_on_the_loop_of_asyncio(
    server: Server, many: bool, monkeypatch: pytest.MonkeyPatch
):
    on_loop: list[bool] = []

    def hashed(body: Any, rerun: Any) -> bytes:
        on_loop.append(asyncio._get_running_loop() is not None)
        return input_digest(body, rerun)

    monkeypatch.setattr("trio_envserve.client.options.input_digest", hashed)
    with open_face("asyncio", server.address) as client:
        for size, key in ((HASHED_AT_ONCE, "large"), (HASHED_AT_ONCE // 2, "small")):
            if many:
                client.run_many([bytes(size)], key=key)
            else:
                client.outcome(bytes(size), key=key)
    assert on_loop == [False, True]


@pytest.mark.parametrize("kind", ["trio", "asyncio", "plain"])
def test_pending_calls_end_when_the_client_is_closed(
    server: Server, environment: Environment, kind: str
):
    errors: list[Any] = []
    with open_face(kind, server.address) as client:
        threads = [
            threading.Thread(target=lambda: errors.append(client.outcome("wait").error))
            for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        for _ in threads:
            assert environment.begun.acquire(timeout=WAIT_S)
        if kind == "plain":
            client.client.close()
        # The other two have one loop for the client and its callers: leaving the block
        # ends the callers, too.
    if kind == "plain":
        for thread in threads:
            thread.join()
        assert [each.verdict for each in errors] == [Verdict.MAY_HAVE_RUN] * 3
        assert client.client.outcome(1).error.verdict is Verdict.DID_NOT_RUN
        with pytest.raises(ServerNotReady, match="closed"):
            client.client.stats()
        client.client.close()  # once more
    for _ in range(3):
        assert environment.cancelled.acquire(timeout=WAIT_S)


@pytest.mark.parametrize("kind", ["trio", "asyncio", "plain"])
def test_a_wrong_address_is_an_error_at_once(kind: str):
    with pytest.raises(ConfigError), open_face(kind, "tcp://127.0.0.1"):
        pass


def asyncio_main(server: Server, main: Callable[[Any], Any]) -> None:
    with open_asyncio(server.address) as (client, loop):
        asyncio.run_coroutine_threadsafe(main(client), loop).result()


def test_cancelling_a_task_of_asyncio_cancels_its_rollout(server: Server, environment: Environment):
    async def main(client: Any) -> None:
        call = asyncio.create_task(client.run_rollout("wait"))
        assert await asyncio.to_thread(environment.begun.acquire, timeout=WAIT_S)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert await asyncio.to_thread(environment.cancelled.acquire, timeout=WAIT_S)

    asyncio_main(server, main)


def test_a_client_of_another_event_loop_is_refused(server: Server):
    with open_asyncio(server.address) as (client, _):
        with pytest.raises(ConfigError, match="another event loop"):
            asyncio.run(client.run_rollout(1))


def test_a_plain_client_works_beside_a_running_event_loop(server: Server):
    """As in a notebook."""

    async def cell() -> Any:
        with PlainClient(server.address) as client:
            return client.run_rollout(1)

    assert asyncio.run(cell()) == 1


def script(text: str, server: Server) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", text, server.address], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_ctrl_c_in_a_script_cancels_the_rollout(server: Server, environment: Environment):
    text = (
        "import sys; from trio_envserve import PlainClient\n"
        "with PlainClient(sys.argv[1]) as client: client.run_rollout('wait')"
    )
    with script(text, server) as process:
        assert environment.begun.acquire(timeout=WAIT_S)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=WAIT_S)
        assert "KeyboardInterrupt" in err
    assert environment.cancelled.acquire(timeout=WAIT_S)


def test_the_end_of_the_interpreter_cancels_the_rollouts(server: Server, environment: Environment):
    text = (
        "import sys, threading; from trio_envserve import PlainClient\n"
        "client = PlainClient(sys.argv[1])\n"
        "waiting = threading.Thread(target=client.outcome, args=('wait',), daemon=True)\n"
        "waiting.start()\n"
        "sys.stdin.read()\n"
    )
    with script(text, server) as process:
        assert environment.begun.acquire(timeout=WAIT_S)
        assert process.communicate(timeout=WAIT_S) == ("", "")
        assert process.returncode == 0
    assert environment.cancelled.acquire(timeout=WAIT_S)


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_forked_child_is_told_to_open_a_client_of_its_own(server: Server):
    with PlainClient(server.address) as client:
        assert client.run_rollout(1) == 1
        read, write = os.pipe()
        child = os.fork()
        if not child:
            try:
                client.run_rollout(2)
            except ConfigError as error:
                os.write(write, str(error).encode())
            client.close()  # ends nothing of the parent's
            os._exit(0)
        os.close(write)
        os.waitpid(child, 0)
        text = os.read(read, 1000).decode()
        os.close(read)
        assert f"belongs to process {os.getpid()}" in text
        assert f"(process {child})" in text
        assert client.run_rollout(3) == 3


class Interrupted:
    """Ctrl-C at the n-th line of this thread that stands in the clients' modules."""

    def __init__(self, at: int, latest: str = "never") -> None:
        self._at = at
        self._latest = latest
        """Part of the line at which it comes at the latest."""
        self.lines: list[str] = []

    def __enter__(self) -> Interrupted:
        sys.settrace(self._trace)
        return self

    def __exit__(self, *args: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        file = frame.f_code.co_filename
        if not file.endswith(("/client/plain.py", "/client/thread.py")):
            return None
        if event == "line":
            self.lines.append(linecache.getline(file, frame.f_lineno).strip())
            if len(self.lines) == self._at or self._latest in self.lines[-1]:
                raise KeyboardInterrupt
        return self._trace


def test_g7_g9_ctrl_c_at_any_line_of_a_call_cancels_it_and_nothing_else(
    server: Server, environment: Environment
):
    """Between two lines the loop was not woken, and all later calls waited for ever; between
    two others the rollout ran on for nobody."""
    with PlainClient(server.address) as client:
        with Interrupted(at=0) as whole:
            assert client.run_rollout(0) == 0
        waits = next(n for n, line in enumerate(whole.lines, 1) if "box.get()" in line)
        for at in range(1, waits + 1):
            # A call has a few lines less while the loop is awake.
            with pytest.raises(KeyboardInterrupt), Interrupted(at, latest="box.get()"):
                client.run_rollout("wait")
            assert client.run_rollout(at) == at
            while environment.begun.acquire(timeout=0):
                assert environment.cancelled.acquire(timeout=WAIT_S)
        for at in range(waits + 1, len(whole.lines) + 1):
            with contextlib.suppress(KeyboardInterrupt), Interrupted(at):
                client.run_rollout(at)
            assert client.run_rollout(at) == at


def test_ctrl_c_at_any_line_of_many_calls_loses_no_outcome_in_silence(server: Server):
    """After some the iteration waited for ever, after others it left inputs out."""
    inputs = [1, 2]

    def take(client: PlainClient) -> tuple[list[Any], bool]:
        """What was taken, going on after an interrupt; and whether that was refused."""
        taken: list[Any] = []
        with client.run_many(inputs, in_flight=1) as outcomes:
            while True:
                try:
                    for _, outcome in outcomes:
                        taken.append(outcome.unwrap())
                    return taken, False
                except KeyboardInterrupt:
                    continue
                except RuntimeError:
                    return taken, True

    with PlainClient(server.address) as client:
        with Interrupted(at=0) as whole:
            assert take(client) == (inputs, False)
        began = next(n for n, line in enumerate(whole.lines, 1) if "if self._interrupted" in line)
        ended = next(n for n, line in enumerate(whole.lines, 1) if "raise StopIteration" in line)
        for at in range(began, ended):
            taken: list[Any] = []
            refused = True
            with contextlib.suppress(KeyboardInterrupt), Interrupted(at):
                taken, refused = take(client)
            assert refused or taken == inputs, whole.lines[at - 1]
            assert client.run_rollout(at) == at


def test_a_signal_handler_may_use_the_client_that_it_interrupts(server: Server):
    """Both held a lock, and waited for each other."""
    with PlainClient(server.address) as client:
        stuck: list[int] = []

        def use(number: int, frame: object) -> None:
            stuck.append(client.run_rollout(number))
            # Not before: where a call takes longer than this, each would interrupt the last.
            signal.setitimer(signal.ITIMER_REAL, 0.003)

        before = signal.signal(signal.SIGALRM, use)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.003)
            for number in range(80):
                assert client.run_rollout(number) == number
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        assert set(stuck) == {signal.SIGALRM}


def test_g10_a_limit_that_is_no_number_is_refused_before_it_ends_the_client(client: Face):
    for timeout_s in (numpy.timedelta64(5, "s"), "1", True, 0, float("nan")):
        with pytest.raises(ConfigError, match="timeout_s"):
            client.run_rollout(1, timeout_s=timeout_s)
        assert client.run_rollout(2, timeout_s=numpy.float32(60)) == 2
    assert client.run_rollout(3, timeout_s=10**400) == 3


class Lazy(Mapping[str, Any]):
    """Its own code runs where it is encoded."""

    def __init__(self, act: Callable[[], object]) -> None:
        self._act = act

    def __getitem__(self, key: str) -> Any:
        return self._act()

    def __iter__(self) -> Iterator[str]:
        return iter(["key"])

    def __len__(self) -> int:
        return 1


def test_g10_code_of_a_large_input_runs_where_it_is_from(client: Face):
    """It ran in the loop of the client for asyncio, and could end it for everybody."""
    ran: list[str] = []

    def note() -> str:
        ran.append(threading.current_thread().name)
        return "value"

    large = [[float(number) for number in range(300_000)], Lazy(note)]
    assert client.run_rollout(large)[1] == {"key": "value"}
    assert "trio_envserve client" not in ran
    assert client.run_rollout(1) == 1


def test_g4_a_task_of_asyncio_that_is_cancelled_loses_no_outcome(server: Server):
    """Each 64th had been taken already when others had a turn."""

    async def main(client: Any) -> None:
        taken: list[int] = []
        async with client.run_many(range(200)) as outcomes:
            while True:
                one = asyncio.ensure_future(anext(outcomes))
                await asyncio.sleep(0)
                one.cancel()
                try:
                    taken.append((await one)[0])
                except asyncio.CancelledError:
                    pass
                except StopAsyncIteration:
                    break
        assert sorted(taken) == [*range(200)]

    asyncio_main(server, main)


def held_until(condition: Callable[[], bool]) -> None:
    """Hold up a loop, as a step of training does."""
    until_s = time.monotonic() + WAIT_S
    while not condition() and time.monotonic() < until_s:
        time.sleep(0.001)


def test_outcomes_that_came_while_a_loop_of_asyncio_was_held_up_have_arrived(server: Server):
    async def main(client: Any) -> None:
        async with client.run_many(range(50)) as outcomes:
            await anext(outcomes)
            held_until(lambda: len(client._delivered) + len(outcomes._ready) == 49)
        assert len(outcomes.arrived()) == 49

    asyncio_main(server, main)


def test_g7_leaving_many_on_asyncio_cancels_at_once_and_not_when_its_loop_has_a_turn(
    server: Server, environment: Environment
):
    async def main(client: Any) -> None:
        async with client.run_many(["now", "wait"]) as outcomes:
            await anext(outcomes)
            assert environment.begun.acquire(timeout=WAIT_S)
        assert environment.cancelled.acquire(timeout=WAIT_S)  # the loop is held up meanwhile

    asyncio_main(server, main)


def test_g10_outcomes_that_are_ready_leave_other_tasks_of_asyncio_their_turns(server: Server):
    async def main(client: Any) -> None:
        turns = [0]

        async def other() -> None:
            while True:
                turns[0] += 1
                await asyncio.sleep(0)

        async with client.run_many(range(1000)) as outcomes:
            await anext(outcomes)
            while len(client._delivered) + len(outcomes._ready) < 999:
                await asyncio.sleep(0.001)
            beside = asyncio.create_task(other())
            most, last = 0, -1
            async for _ in outcomes:
                most, last = (most + 1, last) if turns[0] == last else (1, turns[0])
            beside.cancel()
        assert most <= 64

    asyncio_main(server, main)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="tasks begin at once from 3.12 on")
def test_g9_many_calls_end_where_tasks_of_asyncio_begin_at_once(server: Server):
    async def main(client: Any) -> None:
        loop = asyncio.get_running_loop()
        loop.set_task_factory(getattr(asyncio, "eager_task_factory"))  # noqa: B009  # not on 3.11
        async with client.run_many([1, object(), bytes(1 << 21)], key="large") as outcomes:
            assert sorted([index async for index, _ in outcomes]) == [0, 1, 2]

    asyncio_main(server, main)


def test_g9_client_whose_thread_cannot_be_started_says_so(server: Server):
    """The one for asyncio waited for its end for ever."""

    async def opening() -> None:
        async with open_client_asyncio(server.address):
            pass

    def refused(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            asyncio.run(asyncio.wait_for(opening(), WAIT_S))


def client_threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "trio_envserve client"]


def test_an_opening_that_is_cancelled_leaves_no_thread(server: Server):
    async def main(turns: int) -> None:
        async def opening() -> None:
            async with open_client_asyncio(server.address):
                await asyncio.sleep(WAIT_S)

        task = asyncio.create_task(opening())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    for turns in (1, 2, 5, 50):
        asyncio.run(main(turns))
        for thread in client_threads():
            thread.join(WAIT_S)  # it has said that it is over
        assert client_threads() == []


def test_a_plain_client_that_is_dropped_ends_by_itself(server: Server):
    client = PlainClient(server.address)
    thread = client._thread._thread
    del client
    gc.collect()
    thread.join(WAIT_S)
    assert not thread.is_alive()


def test_closing_waits_for_the_end_every_time(server: Server):
    client = PlainClient(server.address)
    ended = client._thread.stop()
    client.close()
    assert ended.done()  # the thread may have its last instruction before it
    client.close()


def test_a_client_called_in_its_own_thread_says_so(server: Server):
    """It waited for itself for ever, for example in a handler of its own log lines."""
    with PlainClient(server.address) as itself:

        async def call(_: object) -> None:
            itself.health()

        with pytest.raises(ConfigError, match="its own thread"):
            itself._run(call)
        assert itself.run_rollout(1) == 1
