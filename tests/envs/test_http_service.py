"""Rollouts that another service runs, over real HTTP."""

import json
import socket
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio

from tests.cli.commands import until
from tests.endpoint import Endpoint, Reply, Status
from tests.endpoint import serve as serve_endpoint
from tests.envs import scripted
from trio_envserve.core.errors import ConfigError
from trio_envserve.core.values import encode
from trio_envserve.envs import load
from trio_envserve.envs.loading import check_spec
from trio_envserve.worker.failures import EnvironmentFailure, code_of

DOWN = "environment-unavailable"


@asynccontextmanager
async def serve(answer):
    """A service that answers with what ``answer`` makes of an input: a value, (status, bytes), or
    "hold"."""

    def reply(ask):
        answered = answer(ask.body)
        if answered == "hold":
            return Reply(hold=True)
        is_raw = isinstance(answered, tuple)
        return Status(*(answered if is_raw else (200, json.dumps(answered).encode())))

    endpoint = Endpoint(reply)
    async with serve_endpoint(endpoint) as url:
        yield endpoint, f"{url}/chat/completions"


@asynccontextmanager
async def asking(url, **args):
    async with scripted.running(f"http:{url}", args=args) as run:
        yield partial(run, endpoint="oracle")


def scored(given):
    return {"reward": given["a"] * given["b"], "completion": [], "input": given}


async def test_the_input_is_posted_and_the_answer_is_the_result(monkeypatch):
    monkeypatch.setenv("ENVSERVE_TEST_KEY", " s3cret\n")
    async with serve(scored) as (service, url):
        async with asking(url, key_env="ENVSERVE_TEST_KEY") as run:
            for a in range(10):
                result = await run({"a": a, "b": 0.5}, request_id=f"id-{a}")
                assert result == {"reward": a * 0.5, "completion": [], "input": {"a": a, "b": 0.5}}
                encode(result)
    assert [ask.body for ask in service.asks] == [{"a": a, "b": 0.5} for a in range(10)]
    headers = service.asks[7].headers
    assert (headers["idempotency-key"], headers["authorization"]) == ("id-7/0/1", "Bearer s3cret")


async def test_large_answer_and_half_a_surrogate_pair_can_be_sent_on():
    large = b"x" * 3_000_000
    async with serve(lambda given: (200, b'{"text": "a\\uD800' + large + b'"}')) as (_, url):
        async with asking(url) as run:
            result = await run({})
    assert result == {"text": "a\\ud800" + large.decode()}
    encode(result)


@pytest.mark.parametrize(
    ("answer", "said", "code"),
    [
        ((500, b"Traceback ..."), "answered with status 500: Traceback", "rollout-failed"),
        ((404, b"no"), "answered with status 404: no", "rollout-failed"),
        ((302, b""), r"answered with status 302: \(nothing\)", "rollout-failed"),
        ((429, b"later"), "The rollout did not run: .* refused it for now", DOWN),
        ((502, b""), r"ServiceDown: .* answered with status 502: \(nothing\)", DOWN),
        ((503, b""), r"ServiceDown: .* answered with status 503: \(nothing\)", DOWN),
        ((504, b""), r"ServiceDown: .* answered with status 504: \(nothing\)", DOWN),
        ((200, b"<html>"), "answered with what is not JSON .*: <html>", "rollout-failed"),
        ((200, b""), "is not JSON", "rollout-failed"),
        ((200, b'{"reward": 1'), "is not JSON", "rollout-failed"),
        ((200, b"[" * 100_000), "is not JSON", "rollout-failed"),
        ((200, b"\xff\xfe\x00"), "is not JSON", "rollout-failed"),
        ((200, b" " * 2_000_000), "with more than 1000000 bytes", "rollout-failed"),
    ],
    ids=lambda value: str(value)[:30],
)
async def test_answer_that_is_no_result_is_told_with_whose_fault_it_is(answer, said, code):
    async with serve(lambda given: answer) as (service, url):
        async with asking(url, max_answer_bytes=1_000_000) as run:
            with pytest.raises(EnvironmentFailure, match=f"(?s){said}") as failed:
                await run({})
    assert code_of(failed.value) == code
    assert len(service.asks) == 1


async def test_a_service_that_is_not_there_did_not_run_it_and_is_tried_again():
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}/run"
        async with asking(url) as run:
            with pytest.raises(
                EnvironmentFailure, match=r"did not run: .* was not reached"
            ) as failed:
                await run({}, max_retries=1)
    assert failed.value.attempts == 2
    assert code_of(failed.value) == DOWN


@asynccontextmanager
async def cutting(what):
    """A service that takes the input, sends ``what``, and ends the connection."""
    taken = []

    async def take(stream):
        async with stream:
            data = b""
            while b"}" not in data:
                data += await stream.receive_some()
            taken.append(data)
            if what:
                await stream.send_all(what)

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, take, 0, host="127.0.0.1"))
        port = listeners[0].socket.getsockname()[1]
        yield taken, f"http://127.0.0.1:{port}/run"
        nursery.cancel_scope.cancel()


HALF = b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n" + b'{"reward"'


@pytest.mark.parametrize("what", [b"", HALF, b"HTTP/1.1 2", b"not http\r\n\r\n"])
async def test_what_was_cut_off_after_sending_may_have_run_and_is_never_sent_again(what):
    async with cutting(what) as (taken, url):
        async with asking(url) as run:
            with pytest.raises(EnvironmentFailure) as failed:
                await run({"a": 1}, max_retries=3)
            assert "ServiceLost: The rollout may have run" in str(failed.value)
            assert "It was not sent again" in str(failed.value)
            assert len(taken) == 1
            with pytest.raises(EnvironmentFailure, match="may have run"):
                await run({"a": 1}, request_id="another")  # is another rollout
    assert len(taken) == 2


async def test_a_service_that_does_not_answer_in_time_may_have_run_it():
    async with serve(lambda given: "hold") as (service, url):
        async with asking(url, timeout_s=0.2) as run:
            with pytest.raises(EnvironmentFailure, match=r"may have run: .* within 0\.2 s"):
                await run({}, max_retries=2)
    assert len(service.asks) <= 1  # none if sending it took so long


async def test_cancelling_closes_the_connection():
    with trio.fail_after(30):
        async with serve(lambda given: "hold") as (service, url):
            async with asking(url) as run:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(run, {})
                    await until(lambda: service.waiting)
                    nursery.cancel_scope.cancel()
                await until(lambda: service.asks[0].closed)
    assert len(service.asks) == 1


async def test_an_input_that_is_no_json_did_not_run():
    async with serve(scored) as (service, url):
        async with asking(url) as run:
            for given in ({1, 2}, {"a": float("nan")}, b"bytes"):
                with pytest.raises(EnvironmentFailure, match="did not run: its input cannot be"):
                    await run(given)
    assert service.asks == []


@pytest.mark.parametrize(
    ("spec", "args", "said"),
    [
        ("http:ftp://host/x", {}, "'ftp://host/x' is no URL of a service"),
        ("http:host", {}, "'host' is no URL of a service"),
        ("http:http://host:99999/", {}, "is no URL of a service"),
        ("http:http://me:secret@host/", {}, "name the key's variable with key_env"),
        ("http://host/run", {"timeout_s": 0}, "timeout_s must be a number > 0"),
        ("http://host/run", {"max_answer_bytes": 1.5}, "max_answer_bytes must be an integer"),
        ("http://host/run", {"key_env": "ENVSERVE_NO_KEY"}, "ENVSERVE_NO_KEY (key_env) is not set"),
        # The key itself was shown, as the name of a variable.
        ("http://host/run", {"key_env": "sk-secret"}, "of an environment variable, not the key"),
        ("http://host/run", {"timeout": 3}, "did you mean 'timeout_s'"),
        ("http:", {}, "needs a name after the colon"),
    ],
)
def test_wrong_urls_and_arguments(spec, args, said):
    with pytest.raises(ConfigError) as caught:
        load(spec, args)
    assert said in str(caught.value)
    assert "secret" not in str(caught.value)


def test_urls_in_both_forms():
    assert load("http://host:80/run").name == "http://host:80/run"
    assert load("http:http://host/run").name == "http://host/run"
    assert load("https://host/run").name == "https://host/run"
    assert load("http:https://host/run").name == "https://host/run"
    check_spec("http://host/run")
    with pytest.raises(ConfigError, match="is no URL"):
        check_spec("http:host")
