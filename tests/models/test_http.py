"""Models over HTTP, against a real endpoint."""

import array
import contextlib
import dataclasses
import json
import os
import random
import re
import socket
import ssl

import pytest
import trio
import trustme

from tests.cli.commands import until
from tests.connections import held_port
from tests.endpoint import Cut, Endpoint, Reply, Status, prompt_tokens, serve
from tests.models.helpers import HANG_S, HELLO, NO_PAUSE, opened, scripted, served
from trio_envserve import turns
from trio_envserve.core.errors import ConfigError
from trio_envserve.models import ModelError, chat, http, patience, waits
from trio_envserve.models.endpoints import Endpoint as Where
from trio_envserve.models.http import HttpModel
from trio_envserve.models.interface import AskingRollout

pytestmark = pytest.mark.usefixtures("quick")

EVERY_TOKEN = {"return_token_ids": True, "logprobs": True}
AS_SGLANG = {
    "return_input_ids_in_sglext": True, "return_output_ids_in_sglext": True, "logprobs": True,
}  # fmt: skip


async def ask(model, messages=HELLO, **sampling_args):
    return await model.complete(messages, name="m", sampling_args=sampling_args)


async def test_a_large_answer_is_read_in_a_thread_that_lets_the_loop_run(monkeypatch):
    """One of 9 MiB kept the loop of the worker, and all its rollouts, for 200 ms."""
    count = 200
    tokens = [
        {"token": "abc", "logprob": -0.25 * (number % 8), "bytes": [97, 98, 99],
         "top_logprobs": [{"token": "abc", "logprob": -0.5, "bytes": [97]}] * 2}
        for number in range(count)
    ]  # fmt: skip
    choice = {
        "index": 0, "finish_reason": "stop", "token_ids": list(range(count)),
        "message": {"role": "assistant", "content": "x" * http.AT_ONCE_BYTES},
        "logprobs": {"content": tokens},
    }  # fmt: skip
    body = {"choices": [choice], "prompt_token_ids": [1, 2]}
    data = json.dumps(body).encode()
    given = []
    monkeypatch.setattr(turns, "_TURN_S", 0.0)
    run_sync = trio.from_thread.run_sync
    monkeypatch.setattr(trio.from_thread, "run_sync", lambda f: given.append(run_sync(f)))
    async with served(scripted(Status(200, data, {"content-type": "application/json"}))) as model:
        answer = await ask(model)
    assert len(given) > 3 * count, "one at each number and object"
    assert answer == dataclasses.replace(
        chat.read_answer(data, Where(url="http://x/v1")), requests=1
    )
    assert answer.response_ids == array.array("i", range(count))
    assert answer.logprobs is not None
    assert list(answer.logprobs) == [token["logprob"] for token in tokens]


@pytest.mark.parametrize("stream", [False, True])
async def test_everything_that_an_answer_has(stream):
    reply = Reply("yes", tools=[("look", {"at": 1}), ("go", "not JSON")], reasoning="hm")
    endpoint = scripted(reply)
    async with served(endpoint) as model:
        answer = await ask(model, stream=stream, temperature=0.5, **EVERY_TOKEN)
    assert answer.text == "yes"
    assert answer.reasoning == "hm"
    assert answer.finish_reason == "tool_calls"
    assert [(call.id, call.name, call.arguments) for call in answer.tool_calls] == [
        ("call_0", "look", '{"at": 1}'), ("call_1", "go", "not JSON"),
    ]  # fmt: skip
    assert answer.tool_calls[0].parsed() == {"at": 1}
    with pytest.raises(ValueError, match="the arguments of go are not JSON"):
        answer.tool_calls[1].parsed()
    assert answer.prompt_ids == array.array("i", prompt_tokens(HELLO))
    assert answer.response_ids is not None
    assert answer.logprobs is not None
    assert len(answer.response_ids) == len(answer.logprobs) == answer.completion_tokens
    assert answer.prompt_tokens == len(answer.prompt_ids)
    assert answer.requests == 1
    (seen,) = endpoint.asks
    assert seen.body["model"] == "m"
    assert seen.body["temperature"] == 0.5
    assert seen.body["messages"] == HELLO
    assert "authorization" not in seen.headers
    # The next turn has the answer as it was.
    assert answer.message["tool_calls"][1]["function"] == {"name": "go", "arguments": "not JSON"}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("tokens", [EVERY_TOKEN, AS_SGLANG])
async def test_token_arrays_equal_the_endpoints_over_eight_turns(stream, tokens):
    rng = random.Random(1)
    replies = [
        Reply(
            "t" * turn,
            token_ids=[rng.randrange(200_000) for _ in range(turn * 7)],
            logprobs=[-rng.random() for _ in range(turn * 7)],
            weight_version=None if stream else f"step-{turn}",
        )
        for turn in range(1, 9)
    ]
    endpoint = Endpoint(lambda ask: replies[ask.turn])
    messages = list(HELLO)
    async with served(endpoint) as model:
        for reply in replies:
            answer = await ask(model, messages, stream=stream, **tokens)
            assert reply.token_ids is not None
            assert reply.logprobs is not None
            assert answer.response_ids == array.array("i", reply.token_ids)
            assert answer.logprobs == array.array("f", reply.logprobs)
            assert answer.prompt_ids == array.array("i", prompt_tokens(messages))
            assert answer.weight_version == reply.weight_version
            messages += [answer.message, {"role": "user", "content": "on"}]


async def test_images_and_tools_reach_the_endpoint_as_they_are():
    from trio_envserve.models import image_part

    parts = [{"type": "text", "text": "what is it?"}, image_part(b"\x89PNG")]
    endpoint = scripted(Reply("a picture"))
    tool = {"type": "function", "function": {"name": "look", "parameters": {}}}
    async with served(endpoint) as model:
        await ask(model, [{"role": "user", "content": parts}], tools=[tool])
    (seen,) = endpoint.asks
    assert seen.messages[0]["content"] == [
        {"type": "text", "text": "what is it?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw=="}},
    ]
    assert seen.body["tools"] == [tool]


FAULTS = {
    "cut before the answer": Cut(),
    "cut in the answer": Cut(Reply("half")),
    "429": Status(429, headers=NO_PAUSE),
    "503": Status(503),
    "500 that says come again": Status(500, headers=NO_PAUSE),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
async def test_a_call_that_was_not_answered_is_sent_again_and_counted(fault, stream):
    endpoint = scripted(fault, fault, Reply("at last"))
    async with served(endpoint) as model:
        answer = await ask(model, stream=stream)
    assert answer.text == "at last"
    assert answer.requests == len(endpoint.asks) == 3
    assert endpoint.asks[0].body == endpoint.asks[2].body


async def test_an_endpoint_that_is_down_for_a_while_is_waited_for(caplog, monkeypatch):
    # It is asked as often as it takes a busy machine to start one.
    monkeypatch.setattr(patience, "FIRST_ANSWER_S", HANG_S)
    answers = []

    async def call():
        answers.append(await ask(model))

    with held_port() as port:
        async with opened(url=f"http://127.0.0.1:{port}/v1", retries=10_000) as model:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(call)
                await until(lambda: caplog.records)
                async with serve(scripted(Reply("up")), port=port):
                    await until(lambda: answers)
    assert answers[0].text == "up"
    assert answers[0].requests > 1
    (said,) = caplog.records  # however often it was asked
    assert "the model mine did not answer: ConnectError" in said.getMessage()


@pytest.mark.parametrize(
    ("limit", "stream", "told"),
    [
        ({"whole_s": 0.2}, False, "did not end its answer within 0.2 s"),
        ({"first_token_s": 0.1}, True, "sent no token within 0.1 s"),
    ],
)
async def test_answer_that_takes_too_long_is_told_and_its_request_closed(limit, stream, told):
    endpoint = scripted(Reply(hold=True))
    async with served(endpoint, **limit) as model:
        with pytest.raises(ModelError, match=told):
            await ask(model, stream=stream)
        await until(lambda: not endpoint.waiting)


async def test_connection_that_takes_too_long_is_told():
    with contextlib.ExitStack() as stack:
        full = stack.enter_context(socket.socket())
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        address = full.getsockname()
        for _ in range(4):  # until nobody is let in any more
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(address)
        url = f"http://127.0.0.1:{address[1]}/v1"
        async with opened(url=url, connect_s=0.1, retries=1) as model:
            with pytest.raises(ModelError, match=r"ConnectTimeout.*2 requests"):
                await ask(model)


async def test_certificate_is_trusted_or_told_at_once(tmp_path):
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    trusted, chain, key = (str(tmp_path / name) for name in ("ca.pem", "cert.pem", "key.pem"))
    authority.cert_pem.write_to_path(trusted)
    certificate.cert_chain_pems[0].write_to_path(chain)
    certificate.private_key_pem.write_to_path(key)
    endpoint = scripted(Reply("hi"))
    async with serve(endpoint, certificate=chain, key=key) as url:
        async with opened(url=url) as model:
            with pytest.raises(ModelError, match="certificate that is not trusted") as caught:
                await ask(model)
        assert (caught.value.requests, endpoint.asks) == (1, [])
        async with opened(url=url, ca_file=trusted) as model:
            assert (await ask(model)).text == "hi"
    os.mkfifo(tmp_path / "fifo")
    for name, told in (("none", "cannot be read"), ("fifo", "cannot be read: .* no regular file")):
        with pytest.raises(ModelError, match=told):
            await ask(HttpModel(Where(url="https://x/v1", ca_file=str(tmp_path / name)), "mine"))
    assert ssl.create_default_context()  # the process's own trust is as it was


async def test_certificates_were_read_for_an_address_that_has_no_tls(monkeypatch):
    """All of the system's, which took 0.13 s of a processor, and memory in each worker."""
    import httpx2

    given, read = [], httpx2.create_ssl_context

    def noted():
        given.append(read())
        return given[-1]

    monkeypatch.setattr(httpx2, "create_ssl_context", noted)
    for scheme, count in (("http", 0), ("HTTPS", 1)):
        async with opened(url=f"{scheme}://127.0.0.1:9/v1", retries=0) as model:
            with pytest.raises(ModelError):
                await ask(model)
        assert len(given) == count


async def test_an_endpoint_without_tls_is_told_at_once():
    """It was asked for more than a minute, and all that was said was ConnectError."""
    async with serve(scripted(Reply("secret"))) as url:
        async with opened(url=url.replace("http://", "https://")) as model:
            with pytest.raises(ModelError, match="speaks no TLS: its address") as caught:
                await ask(model)
    assert caught.value.requests == 1


HINTED = {
    "another path": ("", "m", 404, "asked at http.*/chat/completions; most addresses end with /v1"),
    "another path, no model": (
        "",
        "",
        404,
        "most addresses end with /v1; or the request names no model: --model-name",
    ),
    "no model": ("/v1", "", 400, "the request names no model: --model-name"),
    "no such model": ("/v1", "m", 404, "scripted$"),
    "another mistake": ("", "", 403, "scripted$"),
}


@pytest.mark.parametrize(("path", "name", "status", "told"), HINTED.values(), ids=HINTED)
async def test_what_a_status_mostly_comes_of_is_told(path, name, status, told):
    async with serve(scripted(Status(status))) as url:
        async with opened(url=url.removesuffix("/v1") + path) as model:
            with pytest.raises(ModelError, match=told):
                await model.complete(HELLO, name=name, sampling_args={})


async def test_the_key_is_sent_and_never_told(monkeypatch, caplog):
    key = "sk-very-secret"
    monkeypatch.setenv("MY_KEY", f" {key}\n")
    endpoint = scripted(
        Status(429, f'{{"error": "wrong key {key}"}}'.encode(), NO_PAUSE),
        Status(401, f"Bearer {key} is wrong".encode()),
    )
    async with served(endpoint, key_env="MY_KEY") as model:
        with pytest.raises(ModelError, match=r"answered 401: Bearer \[key\] is wrong") as caught:
            await ask(model)
    assert endpoint.asks[0].headers["authorization"] == f"Bearer {key}"
    assert "wrong key [key]" in caplog.text
    assert key not in f"{caplog.text} {caught.value!r} {model!r} {vars(caught.value)}"


async def test_no_part_of_a_key_is_left_where_a_long_text_is_shortened(monkeypatch):
    """The text was shortened first, in the middle of the key."""
    key = "sk-" + "very-secret" * 20
    monkeypatch.setenv("MY_KEY", key)
    for before in (0, 200, 380, 1900):
        body = b"<html>" + b"x" * before + key.encode() + b"y" * 5000
        async with served(scripted(Status(401, body)), key_env="MY_KEY") as model:
            with pytest.raises(ModelError) as caught:
                await ask(model)
        assert "sk-" not in str(caught.value)
        assert len(str(caught.value)) < 500


async def test_a_key_that_no_header_can_have_is_refused_without_showing_it(monkeypatch):
    where = Where(url="http://x/v1", key_env="MY_KEY")
    for value in ("", "sk\n1", "sk-ü"):
        monkeypatch.setenv("MY_KEY", value)
        with pytest.raises(ConfigError, match="MY_KEY") as caught:
            HttpModel(where, "mine")
        assert not value or value not in str(caught.value)


async def test_cancelled_calls_close_as_many_requests():
    endpoint = scripted(Reply("first"), Reply(hold=True))
    async with served(endpoint, connect_s=HANG_S) as model:  # however busy the machine is
        await ask(model)  # one that has never answered is given up after seconds
        async with trio.open_nursery() as nursery:
            for number in range(70):  # more than a part of the pool has
                nursery.start_soon(lambda n: ask(model, stream=n % 2 == 0), number)
            await until(lambda: endpoint.waiting == 70)
            nursery.cancel_scope.cancel()
        await until(lambda: not endpoint.waiting)
        assert all(seen.closed for seen in endpoint.asks[1:])
        # The pool is whole.
        endpoint._answer = lambda ask: Reply("fresh")
        async with trio.open_nursery() as nursery:
            for _ in range(70):
                nursery.start_soon(ask, model)
    assert len(endpoint.asks) == 141


async def test_no_more_requests_than_allowed_are_under_way():
    most = 0

    def answer(ask):
        nonlocal most
        most = max(most, endpoint.waiting)
        return Reply("x", delay_s=0.001)

    endpoint = Endpoint(answer)
    async with served(endpoint, concurrency=3) as model:
        async with trio.open_nursery() as nursery:
            for _ in range(40):
                nursery.start_soon(ask, model)
    assert most <= 3
    assert len(endpoint.asks) == 40


async def test_what_json_lacks_is_refused_before_it_is_sent():
    endpoint = scripted(Reply("x"))
    async with served(endpoint) as model:
        for wrong in ({"n": 2}, {"seed": float("nan")}, {"stop": {1}}):
            with pytest.raises(ModelError):
                await ask(model, **wrong)
    assert not endpoint.asks


async def test_an_answer_without_end_is_bounded(monkeypatch):
    monkeypatch.setattr(http, "MAX_ANSWER_BYTES", 1000)
    monkeypatch.setattr(http, "MAX_STREAM_BYTES", 1000)
    async with served(scripted(Reply("x" * 2000))) as model:
        for stream in (False, True):
            with pytest.raises(ModelError, match="larger than 1000 bytes"):
                await ask(model, stream=stream)


async def ask_for(model, rollout="r1", told=None):
    asker = AskingRollout(rollout, "r1", 0, 2, (told if told is not None else []).append)
    return await model.complete_for(asker, HELLO, name="m", sampling_args={})


async def test_headers_have_the_fields_of_the_rollout():
    endpoint = scripted(Reply("x"))
    headers = {"X-Session-ID": "s-{rollout}.{attempt}", "X-Plain": "p"}
    async with served(endpoint, headers=headers) as model:
        await ask_for(model, "r1/3")
        await ask(model)  # of no rollout
    seen = [(each.headers.get("x-session-id"), each.headers["x-plain"]) for each in endpoint.asks]
    assert seen == [("s-r1/3.2", "p"), (None, "p")]


async def test_a_rollout_keeps_to_one_of_several_addresses():
    endpoints = [scripted(Reply("x")) for _ in range(3)]
    async with contextlib.AsyncExitStack() as stack:
        urls = [await stack.enter_async_context(serve(each)) for each in endpoints]
        async with opened(urls=urls, headers={"x-rollout": "{rollout}"}) as model:
            for _ in range(3):
                for number in range(20):
                    await ask_for(model, f"rollout-{number}")
    asked = [{seen.headers["x-rollout"] for seen in each.asks} for each in endpoints]
    assert sum(map(len, asked)) == 20  # none at two of them
    assert all(asked)  # and each has some


async def test_a_rollout_goes_on_to_the_next_address_if_one_is_gone():
    with held_port() as port:
        async with serve(scripted(Reply("x"))) as url:
            async with opened(urls=[f"http://127.0.0.1:{port}/v1", url]) as model:
                answers = [await ask_for(model, f"rollout-{number}") for number in range(20)]
    # The one that is gone is asked once, and is the last choice after that.
    assert sorted(answer.requests for answer in answers) == [1] * 19 + [2]


async def test_an_endpoint_that_never_answered_was_asked_for_two_minutes(monkeypatch):
    monkeypatch.setattr(patience, "FIRST_ANSWER_S", 0.0)
    with held_port() as port:
        async with opened(url=f"http://127.0.0.1:{port}/v1") as model:
            with pytest.raises(ModelError) as caught:
                await ask(model)
            assert caught.value.requests == 1
            assert f"is it running, at http://127.0.0.1:{port}/v1" in str(caught.value)
            assert "the model http" in await model.unreachable()
            # Once it has answered, it has all its patience.
            async with serve(scripted(Status(404)), port=port):
                assert await model.unreachable() == ""
                with pytest.raises(ModelError, match="answered 404"):
                    await ask(model)
            monkeypatch.setattr(patience, "pause_s", lambda *args: 0.0)
            with pytest.raises(ModelError, match=r"did not answer.*11 requests"):
                await ask(model)


async def test_a_rollout_says_how_long_it_waits(monkeypatch):
    monkeypatch.setattr(waits, "TELL_AFTER_S", 0.0)
    told: list[str | None] = []
    wait = trio.Event()
    endpoint = Endpoint(lambda ask: Status(503) if ask.number == 0 else Reply("x", until=wait))
    async with served(endpoint) as model:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask_for, model, "r1", told)
            await until(lambda: endpoint.waiting and len(endpoint.asks) == 2)
            model.tell_waits()
            wait.set()
        model.tell_waits()
    said, over = told
    assert over is None
    assert said is not None
    assert re.fullmatch(r"for the model, \d+\.\d s, second try", said)
