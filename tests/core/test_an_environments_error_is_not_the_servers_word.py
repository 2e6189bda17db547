"""An error of environment code that happened to have the code ``stopping`` was
taken for the server's own "it did not run" and the call issued again."""

from __future__ import annotations

from trio_envserve.core import error_records, messages
from trio_envserve.core.client import ClientCore
from trio_envserve.core.client_effects import Answer
from trio_envserve.core.errors import ErrorInfo
from trio_envserve.core.terms import Status, Verdict


def test_a_stopping_error_of_something_that_ran_is_an_answer() -> None:
    client = ClientCore(name="c", new_id=lambda: b"n" * 16, now_s=0.0)
    client.connected(0.0)
    server = {"status": "ready", "environment": "e", "rerun": True}
    welcome = messages.Welcome(1, b"n" * 16, b"s" * 16, b"e" * 16, 10, 10**6, server)
    client.message([messages.encode(welcome)], 0.1)
    number = client.submit(b"body", 0.2)
    client.take()
    body = error_records.encode(
        ErrorInfo(code="stopping", verdict=Verdict.RAN_AND_FAILED, message="mine")
    )
    outcome = messages.Outcome(b"s" * 16, 0, Status.ERROR, "w0-1", 0.1, 1)
    client.message([messages.encode(outcome), body], 0.3)
    answers = [effect for effect in client.take() if isinstance(effect, Answer)]
    assert [answer.call for answer in answers] == [number]
