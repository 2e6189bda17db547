"""The outcome that is made of a value, or of what went wrong."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import pytest
import trio

from tests.worker.helpers import served
from trio_envserve import RolloutFailed, open_client, open_server
from trio_envserve.core import error_records, values
from trio_envserve.core.errors import ConfigError, ErrorInfo
from trio_envserve.core.limits import KIB, WireLimits
from trio_envserve.core.terms import SentBody, Status, Verdict
from trio_envserve.envs.request import RolloutRequest
from trio_envserve.foreign import CodeResult
from trio_envserve.net import MemoryNetwork
from trio_envserve.worker.failures import EnvironmentFailure
from trio_envserve.worker.outcomes import OutcomeMaker, Returned
from trio_envserve.worker.runners import ExecutionContext

WIRE = WireLimits()
INCARNATION = bytes(range(16))
LARGE = [[number / 3, f"{number}"] * 60 for number in range(1_000)]
"""Takes long to decode, and to encode."""


class Runner:
    """Answers with what ``act`` returns or raises, two seconds later."""

    def __init__(self, act: Callable[[], Any]) -> None:
        self._act = act
        self.seen: list[Any] = []

    async def run(self, request: Any, **how: Any) -> Any:
        self.seen = [request, how]
        await trio.sleep(2)
        return self._act()


def maker(act: Callable[[], Any] = lambda: None, wire: WireLimits = WIRE) -> OutcomeMaker:
    runner = cast("Any", Runner(act))
    return OutcomeMaker(runner, worker="w0-1", incarnation=INCARNATION, wire=wire)


ASKED = RolloutRequest(kind="rollout", input=None, endpoint="oracle", model_name="m")


async def outcome_of(
    act: Callable[[], Any], wire: WireLimits = WIRE, asked: CodeResult | None = None
) -> Any:
    """The outcome of an execution that began 3 s after the clock."""
    make = maker(act, wire)
    await trio.sleep(3)
    began_s = trio.current_time()
    made = await make.run("r", asked or CodeResult(ASKED), began_s, ExecutionContext())
    return await make.of(made, began_s) if isinstance(made, Returned) else made


def error_of(outcome: tuple[Status, SentBody]) -> ErrorInfo:
    """The record in an outcome that is an error, of this worker."""
    status, body = outcome
    info = error_records.decode(bytes(body))
    assert status is (Status.CANCELLED if info.code == "cancelled" else Status.ERROR)
    assert (info.worker, info.incarnation) == ("w0-1", INCARNATION.hex())
    return info


def failure(error: BaseException) -> Callable[[], Any]:
    def act() -> None:
        raise EnvironmentFailure(error, attempts=1, during="rollout") from error

    return act


GROUP = [{"ok": True, "value": 1}]


@pytest.mark.parametrize(
    ("work", "made"),
    [
        (lambda make: make.decoded(values.encode(ASKED.to_body())), CodeResult(ASKED)),
        (
            lambda make: make.of(Returned(GROUP, of_group=True), 0.0),
            (Status.RESULT, values.encode(GROUP)),
        ),
    ],
    ids=["request", "results of a group"],
)
def test_what_is_small_is_decoded_and_encoded_at_once(work: Any, made: Any) -> None:
    working = work(maker())
    with pytest.raises(StopIteration) as ended:  # it waits for no thread
        working.send(None)
    assert ended.value.value == made


@pytest.mark.parametrize(
    ("waited_s", "told"),
    [(0.04, ""), (0.05, " (it has waited for the model's endpoint for 0.1 s besides)"),
     (3.25, " (it has waited for the model's endpoint for 3.2 s besides)")],
)  # fmt: skip
async def test_overworked_execution_has_run_and_failed_and_says_for_how_long_it_waited(
    autojump_clock: Any, waited_s: float, told: str
) -> None:
    await trio.sleep(3)
    began_s = trio.current_time()
    await trio.sleep(2)
    info = error_of(maker().overworked(began_s, 1.5, waited_s))
    assert (info.code, info.verdict) == ("execution-limit", Verdict.RAN_AND_FAILED)
    assert info.message == (
        "the 1.5 s that the call lets an execution work (its working_s) passed while it "
        f"ran{told}; it was stopped"
    )
    assert info.duration_s == 2.0


async def test_a_cancelled_execution_may_have_run_and_says_how_long(autojump_clock: Any) -> None:
    await trio.sleep(3)
    began_s = trio.current_time()
    await trio.sleep(2)
    info = error_of(maker().cancelled(began_s))
    assert (info.verdict, info.duration_s) == (Verdict.MAY_HAVE_RUN, 2.0)


async def test_a_request_that_cannot_be_decoded_is_refused(autojump_clock: Any) -> None:
    broken = await maker().decoded(b"\xff")
    info = error_of(await outcome_of(lambda: None, asked=broken))
    assert (info.code, info.verdict) == ("refused", Verdict.DID_NOT_RUN)
    assert info.type == "trio_envserve.core.values.DecodingError"
    assert info.duration_s == 0.0


def wrong_option() -> None:
    raise ConfigError("write it otherwise")


def wrong_code() -> None:
    try:
        raise KeyError("mine")
    except KeyError as error:
        raise ConfigError("write it otherwise") from error


@pytest.mark.parametrize(
    ("act", "code", "verdict", "message", "traceback"),
    [
        (wrong_option, "refused", Verdict.DID_NOT_RUN, "write it otherwise", ""),
        (
            wrong_code, "refused", Verdict.DID_NOT_RUN, "write it otherwise",
            "KeyError: 'mine'\n\nwrite it otherwise",
        ),
        (
            failure(ValueError("mine")), "rollout-failed", Verdict.RAN_AND_FAILED, "mine",
            "ValueError: mine\n",
        ),
    ],
    ids=["option", "code", "failure"],
)  # fmt: skip
async def test_an_error_says_whether_it_ran(
    autojump_clock: Any, act: Callable[[], Any], code: str, verdict: Verdict, message: str,
    traceback: str,
) -> None:  # fmt: skip
    """Of an error of this package's own the traceback is that of its cause, and its text."""
    info = error_of(await outcome_of(act))
    assert (info.code, info.verdict, info.message) == (code, verdict, message)
    assert info.duration_s == 2.0
    assert info.traceback.endswith(traceback) if traceback else not info.traceback


class Lazy(Mapping[str, int]):
    """A value with code that fails."""

    def __getitem__(self, name: str) -> int:
        raise AssertionError

    def __iter__(self) -> Iterator[str]:
        raise SystemExit("lazy")

    def __len__(self) -> int:
        return 1


async def test_a_value_that_has_no_encoding_is_told_with_why(autojump_clock: Any) -> None:
    info = error_of(await outcome_of(object))
    assert (info.code, info.verdict) == ("outcome-not-encodable", Verdict.RAN_AND_FAILED)
    assert info.message.startswith("result: cannot encode a value of type object")
    assert info.duration_s == 2.0
    info = error_of(await outcome_of(lambda: [{"ok": True, "value": object()}]))
    assert info.code == "outcome-not-encodable", "it looks like a group's, and is that of one"
    info = error_of(await outcome_of(Lazy))
    assert (info.code, info.verdict) == ("outcome-not-encodable", Verdict.RAN_AND_FAILED)
    assert info.message == "result: encoding it raised SystemExit: lazy"
    assert "in __iter__" in info.traceback


async def test_a_value_may_fill_a_message_and_no_more(autojump_clock: Any) -> None:
    wire = WireLimits(message_bytes=100_000)
    head = len(values.encode(bytes(99_000))) - 99_000
    status, body = await outcome_of(lambda: bytes(100_000 - head), wire)
    assert (status, len(body)) == (Status.RESULT, 100_000)
    result = {"reward": 0.5, "state": bytes(100_000)}
    result["state"] = bytes(200_000 - len(values.encode(result)))
    status, body = await outcome_of(lambda: result, wire)
    assert (status, len(body), values.decode(bytes(body))) == (Status.RESULT, 100_000, result)
    info = error_of(await outcome_of(lambda: bytes(100_001 - head), wire))
    assert (info.code, info.verdict) == ("outcome-too-large", Verdict.RAN_AND_FAILED)
    assert info.message.startswith("the outcome has 100001 bytes, and a message has at most 100000")
    assert "WireLimits.message_bytes" in info.message


TOKENS = {"segments": [{"token_ids": [1, 2, 3], "logprobs": [-0.5, -0.25, 0.0]}]}
IMAGE = f"data:image/png;base64,{'iVBORw0K' * 1_000}"


def screenshots(count: int, text: str = "") -> dict[str, Any]:
    """A result with screenshots, in one message each."""
    part = {"type": "image_url", "image_url": {"url": IMAGE}}
    messages = [{"role": "tool", "content": [part, {"type": "text", "text": f"turn {number}"}]}
                for number in range(count)]  # fmt: skip
    return {
        "reward": 0.5, "metrics": {"turns": count}, **TOKENS,
        "completion": messages, "state": {"text": text, "frame": bytes(2_000)},
    }  # fmt: skip


async def value_of(act: Callable[[], Any], message_bytes: int) -> Any:
    status, body = await outcome_of(act, WireLimits(message_bytes=message_bytes))
    assert status == Status.RESULT
    assert len(body) <= message_bytes
    return values.decode(bytes(body), root="result", limits=WIRE)


async def test_a_result_too_large_by_its_screenshots_keeps_everything_else(
    autojump_clock: Any,
) -> None:
    whole = screenshots(10)
    got = await value_of(lambda: whole, 40_000)
    cut = got.pop("cut")
    assert {name: got[name] for name in ("reward", "metrics", "segments", "state")} == {
        name: whole[name] for name in ("reward", "metrics", "segments", "state")
    }
    assert [each["content"][1] for each in got["completion"]] == [
        each["content"][1] for each in whole["completion"]
    ]
    urls = [each["content"][0]["image_url"]["url"] for each in got["completion"]]
    marker = f"(cut: data:image/png;base64 of {len(IMAGE)} bytes)"
    assert set(urls) == {IMAGE, marker}, "no more were cut than had to be"
    assert cut["parts"] == urls.count(marker)
    assert cut["of"] == {"completion": cut["bytes"]}
    assert "a message has at most 40000 (WireLimits.message_bytes" in cut["why"]
    assert whole["completion"][0]["content"][0]["image_url"]["url"] == IMAGE


async def test_a_result_too_large_without_its_screenshots_loses_more(autojump_clock: Any) -> None:
    got = await value_of(lambda: screenshots(3, "many words " * 10_000), 40_000)
    assert (got["reward"], [*got["cut"]["of"]]) == (0.5, ["completion", "state"])


async def test_a_result_that_just_fits_once_it_is_cut_loses_no_more(autojump_clock: Any) -> None:
    whole = screenshots(1, "many words " * 1_000)
    del whole["state"]["frame"]
    most_bytes = len(values.encode(await value_of(lambda: whole, 15_000)))
    assert most_bytes > 10_000, "its limit has as many digits"
    got = await value_of(lambda: whole, most_bytes)
    assert [*got["cut"]["of"]] == ["completion"]


class Once(Mapping[str, int]):
    """A value whose code fails when it is encoded for the second time."""

    def __init__(self) -> None:
        self._left = ["n"]

    def __getitem__(self, name: str) -> int:
        return 1

    def __iter__(self) -> Iterator[str]:
        yield self._left.pop()

    def __len__(self) -> int:
        return 1


async def test_a_result_whose_code_fails_when_it_is_cut_is_told_with_why(
    autojump_clock: Any,
) -> None:
    wire = WireLimits(message_bytes=20_000)
    info = error_of(await outcome_of(lambda: {**screenshots(4), "x": Once()}, wire))
    assert (info.code, info.verdict) == ("outcome-not-encodable", Verdict.RAN_AND_FAILED)
    assert info.message.startswith("result.x: cannot encode a value of type")
    assert "IndexError" in info.message


class Played:
    """An environment with as many screenshots as the input says, and no result below 0."""

    async def run_rollout(self, rollout: Any) -> Any:
        if rollout.input < 0:
            raise ValueError("no such game")
        return screenshots(rollout.input)


class PlayedTogether(Played):
    async def run_group(self, rollouts: Any) -> list[Any]:
        return [
            screenshots(each.input) if each.input >= 0 else ValueError("no such game")
            for each in rollouts
        ]


@pytest.mark.parametrize("environment", [Played, PlayedTogether])
async def test_results_of_a_group_are_cut_where_they_are_large(environment: type[Played]) -> None:
    """Its members had lost their rewards and tokens."""
    wire, network = WireLimits(message_bytes=KIB * KIB), MemoryNetwork()
    async with (
        open_server(
            environment(), workers=0, bind="memory:s", network=network, wire=wire
        ) as server,
        open_client(server.address, network=network, wire=wire) as client,
    ):
        with trio.fail_after(60):
            few, many, failed = await client.run_group([0, 200, -1])
    assert few.value == {"reward": 0.5, "metrics": {"turns": 0}, "completion": [], **TOKENS}
    assert (many.value["reward"], many.value["metrics"]) == (0.5, {"turns": 200})
    assert many.value["segments"] == TOKENS["segments"]
    assert many.value["cut"]["of"].keys() == {"completion"}
    assert many.value["cut"]["why"].startswith("the group's results had 1")
    assert many.value["completion"][7]["content"][1] == {"type": "text", "text": "turn 7"}
    assert "no such game" in str(failed.error)


class Odd:
    """A result that has no encoding where the input is 1."""

    rows = 0
    x: Mapping[int, Any] = {0: {1: 2}, 1: object(), 2: {1: 2}}

    async def run_rollout(self, rollout: Any) -> Any:
        rows = [[index] * 60 for index in range(self.rows)]
        return {"reward": 0.5, "rows": rows, "x": self.x[rollout.input]}


class OddTogether(Odd):
    async def run_group(self, rollouts: Any) -> list[Any]:
        return [await self.run_rollout(each) for each in rollouts]


class OddLarge(Odd):
    rows = 1_000


class Own(dict[str, int]):
    """A value whose class may have code, which runs on the loop alone."""


class OddBesideCode(OddTogether):
    x: Mapping[int, Any] = {**Odd.x, 2: Own(n=1)}


@pytest.mark.parametrize("environment", [Odd, OddTogether, OddLarge, OddBesideCode])
async def test_a_group_loses_the_one_result_that_has_no_encoding_and_no_other(
    environment: type[Odd],
) -> None:
    """All of its members were lost with it."""
    async with served(environment()) as (_, client):
        first, odd, last = await client.run_group([0, 1, 2])
    assert [each.value["reward"] for each in (first, last)] == [0.5, 0.5]
    assert isinstance(odd.error, RolloutFailed)
    assert "result[1].value.x: cannot encode a value of type object" in str(odd.error)


async def test_a_group_with_a_result_without_an_encoding_held_its_loop_up_once_for_each_member(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here, real = [], values.encode_to_send

    def encode(value: Any, **how: Any) -> Any:
        here.append(threading.current_thread() is threading.main_thread())
        return real(value, **how)

    monkeypatch.setattr(values, "encode_to_send", encode)
    group = [{"ok": True, "value": value} for value in (1, object(), LARGE[:50])]
    status, body = await maker().of(Returned(group, of_group=True), 0.0)
    assert here.count(True) == 1
    records = cast("Any", values.decode(bytes(body)))
    assert (status, [each["ok"] for each in records]) == (Status.RESULT, [True, False, True])
    assert records[1]["error"]["attempts"] == 1


async def test_a_large_result_is_cut_in_its_thread() -> None:
    large = {**screenshots(10), "rows": [[index] * 60 for index in range(1_000)]}
    made = maker(wire=WireLimits(message_bytes=200_000))
    status, _ = await made.of(Returned(large, of_group=False), 0.0)
    assert status == Status.RESULT


@pytest.mark.parametrize(
    ("message_bytes", "most_bytes"), [(64 * KIB, 8 * KIB), (100 * KIB * KIB, 128 * KIB)]
)
async def test_the_texts_of_an_error_fit_into_a_message(
    autojump_clock: Any, message_bytes: int, most_bytes: int
) -> None:
    """One with larger texts could not be sent, so that its call waited for ever."""
    error = ValueError("mine")
    for _ in range(64):
        error.add_note("\u00e9" * 8 * KIB)
    outcome = await outcome_of(failure(error), WireLimits(message_bytes=message_bytes))
    assert abs(len(error_of(outcome).traceback.encode()) - most_bytes) < 50
