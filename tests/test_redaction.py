"""Secrets in texts: shown as the names of their variables, in whatever form they stand."""

from __future__ import annotations

import base64
import json
import logging
import os
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, quote_plus

import cbor2
import pytest
import trio
import trio.testing
from hypothesis import example, given
from hypothesis import strategies as st

from trio_envserve import redaction, tracing
from trio_envserve.core import values
from trio_envserve.core.limits import WireLimits
from trio_envserve.core.terms import Status
from trio_envserve.envs.notes import RolloutNotes
from trio_envserve.logs import Writer
from trio_envserve.models.endpoints import parse_endpoints
from trio_envserve.redaction import forms_of, redacted, without
from trio_envserve.worker.failures import describe_exception, plain
from trio_envserve.worker.outcomes import OutcomeMaker, Returned
from trio_envserve.worker.stacks import describe_request

SECRET = "sk-proj/+S3CR3T=äß 0123456789"
"""With characters that each encoding writes in another way."""


@pytest.fixture
def secret(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("SANDBOX_KEY", SECRET)
    monkeypatch.setenv(redaction.VARIABLE, "SANDBOX_KEY,NOT_THERE")
    redaction.hide_named()
    yield SECRET
    redaction.forget()


@pytest.mark.parametrize(
    "form",
    [
        str, repr, json.dumps, quote, quote_plus,
        lambda text: quote(text, safe=""),
        lambda text: quote(text, safe="").lower(),
        lambda text: json.dumps({"inner": json.dumps(text)}),
        lambda text: base64.b64encode(text.encode()).decode(),
        lambda text: base64.b64encode(f"user:{text}".encode()).decode(),
        lambda text: base64.b64encode(f"u:{text}!".encode()).decode(),
        lambda text: base64.urlsafe_b64encode(f"me:{text}".encode()).decode(),
        lambda text: text.encode().hex(),
    ],
)  # fmt: skip
def test_each_form_of_a_secret_is_hidden(form: Any):
    forms = forms_of({"SANDBOX_KEY": SECRET})
    shown = without(f"401 for <{form(SECRET)}>", forms)
    assert "$SANDBOX_KEY" in shown
    assert form(SECRET)[4:-4] not in shown


@given(
    before=st.text(max_size=20), behind=st.text(max_size=20),
    value=st.text(st.characters(exclude_categories=["Cs"]), min_size=8, max_size=40),
)  # fmt: skip
@example(before="", behind="", value="0" * 8)
def test_a_text_never_keeps_the_value(before: str, behind: str, value: str):
    shown = without(before + value + behind, forms_of({"K": value}))
    assert value not in shown or value in "$K"
    data = (before + value + behind).encode("utf-8", "surrogatepass")
    encoded = base64.b64encode(data).decode()
    assert without(encoded, forms_of({"K": value})) != encoded


def test_a_secret_that_holds_another_is_hidden_whole():
    forms = forms_of({"INNER": "12345678", "OUTER": "0012345678ff"})
    assert without("0012345678ff and 12345678", forms) == "$OUTER and $INNER"


def test_a_short_value_is_not_hidden():
    assert without("true", forms_of({"FLAG": "true"})) == "true"


def test_a_line_of_a_key_of_several_lines_is_hidden():
    key = "-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG9w0B\nAQEFAASCBKcwggSjAgEA\n-----END KEY-----"
    assert without("| MIIEvQIBADANBgkqhkiG9w0B", forms_of({"PEM": key})) == "| $PEM"


def test_a_failure_shows_no_secret(secret: str):
    error = RuntimeError(f"401 for Bearer {secret}")
    error.add_note(f"url: https://sandbox/?key={quote(secret, safe='')}")
    error.__cause__ = ValueError(secret)
    about = describe_exception(ExceptionGroup(f"all of {secret}", [error]))
    assert "$SANDBOX_KEY" in about.message
    assert about.traceback.count("$SANDBOX_KEY") >= 4
    for text in (*about, str(plain(error))):
        assert secret not in text


def test_a_message_is_redacted_before_it_is_cut(secret: str):
    about = describe_exception(RuntimeError("x" * 4070 + secret + "y" * 9000))
    assert secret[:8] not in about.message


def test_a_note_shows_no_secret(secret: str):
    kept: list[bytes] = []

    class Text(str):
        __slots__ = ()

    note = RolloutNotes(kept.append, url=secret)
    note(text=f"key={secret}", mine=Text(secret), turn=3)
    note.add(tool=secret)
    for encoded in kept:
        assert secret not in str(cbor2.loads(encoded))
    assert cbor2.loads(kept[-1])["turn"] == 3


def test_an_attribute_of_a_span_shows_no_secret(secret: str):
    found = tracing._bounded({"url": f"https://sandbox/?key={secret}", "n": 3})
    assert found == {"url": "https://sandbox/?key=$SANDBOX_KEY", "n": 3}


def test_a_line_of_the_log_shows_no_secret(secret: str):
    reading, writing = os.pipe()
    writer = Writer(writing)
    writer.put(f"401 for {secret}\n" + json.dumps({"message": secret}) + "\n")
    assert writer.flush(60)
    text = os.read(reading, 10_000).decode()
    assert text == '401 for $SANDBOX_KEY\n{"message": "$SANDBOX_KEY"}\n'
    os.close(reading)


async def test_a_stack_shows_no_secret(secret: str):
    async def named(task_status: Any) -> None:
        task_status.started()
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        async with trio.open_nursery() as inner:
            await inner.start(named, name="request r")
            inner.start_soon(trio.sleep_forever, name=secret)
            await trio.testing.wait_all_tasks_blocked()
            shown = describe_request(trio.lowlevel.current_task(), "r")
            inner.cancel_scope.cancel()
        nursery.cancel_scope.cancel()
    assert secret not in shown


async def test_a_result_with_a_secret_is_said_and_not_changed(
    secret: str, caplog: pytest.LogCaptureFixture
):
    value = {"reward": 1.0, "completion": [{"role": "tool", "content": secret}]}
    runner: Any = None  # it runs nothing
    made = OutcomeMaker(runner, worker="w0-1", incarnation=bytes(16), wire=WireLimits())
    for _ in range(2):
        status, payload = await made.of(Returned(value, of_group=False), 0.0)
        assert status == Status.RESULT
        assert secret in str(values.decode(bytes(payload)))
    said = [each for each in caplog.records if each.levelno == logging.WARNING]
    assert [each.getMessage() for each in said] == [
        "a result holds the value of $SANDBOX_KEY, and is not changed"
    ]


def test_the_key_of_an_endpoint_is_hidden_as_soon_as_its_file_is_read(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("LAB_KEY", "a-key-of-the-lab")
    parse_endpoints(b'[lab]\nurl = "http://127.0.0.1:1/v1"\nkey_env = "LAB_KEY"\n', "file")
    try:
        assert redacted("no: a-key-of-the-lab") == "no: $LAB_KEY"
    finally:
        redaction.forget()
