"""docs/protocol.md says what the code does: its tables are the code's own."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from docs.draw import tables
from trio_envserve.core import messages, router, values, work
from trio_envserve.core.key_records import KeyAct, input_digest
from trio_envserve.core.limits import KeyLimits, ServerLimits, WireLimits
from trio_envserve.core.router import Router
from trio_envserve.core.router_effects import ToClient
from trio_envserve.core.router_inputs import ClientMessage, SaveFailed
from trio_envserve.core.terms import COST_HEADER
from trio_envserve.core.work import Refusal
from trio_envserve.envs.request import RolloutRequest

DOCS = Path(__file__).parent.parent.parent / "docs"
PAGE = (DOCS / "protocol.md").read_text(encoding="utf-8")
MOST = 1 << 20
NONCE, SESSION, DIGEST = b"n" * 16, (1).to_bytes(16, "big"), b"d" * 16


# -- refusals, each provoked -----------------------------------------------------


def hello() -> messages.Hello:
    return messages.Hello(2, NONCE, 1, "test", MOST, bytes(16))


def request(sequence: int, **other: Any) -> tuple[messages.Request, bytes]:
    body = other.pop("body", b"body")
    ask = messages.Request(SESSION, sequence, DIGEST, None, 1, None)
    return ask._replace(**other), body


def asked(sequence: int, **other: Any) -> tuple[messages.Request, bytes]:
    """An ask of a key; its body is empty unless it is given."""
    body = other.pop("body", b"")
    ask = messages.Request(
        SESSION, sequence, input_digest(body, None), None, 1, None, None, None, b"default", b"key"
    )
    return ask._replace(**other), body


class Said:
    """A router without workers, and what it answers."""

    def __init__(self, keys: KeyLimits | None = None, **limits: Any) -> None:
        numbers = iter(range(1, 100))
        self.router = Router(
            epoch=b"e" * 16, slots=1, now_s=0.0,
            new_id=lambda: next(numbers).to_bytes(16, "big"),
            limits=ServerLimits(**limits), wire=WireLimits(message_bytes=100), keys=keys,
        )  # fmt: skip
        self.say(hello())

    def say(self, message: Any, *body: bytes) -> list[Any]:
        frames = (message if isinstance(message, bytes) else messages.encode(message), *body)
        effects = self.router.take(ClientMessage(b"route", frames, 0.0))
        sent = [effect for effect in effects if isinstance(effect, ToClient)]
        return [messages.decode(bytes(effect.frames[0]), most_bytes=MOST) for effect in sent]


PROVOKED: dict[str, tuple[dict[str, Any], tuple[tuple[Any, ...], ...]]] = {
    "conflict": ({}, (request(0), request(0, digest=b"x" * 16))),
    "finished": ({}, ((messages.Finish(SESSION, [0, 1]),), request(0))),
    "window": ({"window": 1}, (request(0), request(1))),
    "queue-full": ({"queue": 2}, (request(0), request(1))),
    "refused": ({}, (request(0, body=bytes(101)),)),
    "key-conflict": ({}, (asked(0), asked(1, body=b"another input"))),
    "unknown-key": ({}, (asked(0, act=KeyAct.ATTACH),)),
    "keys-full": (
        {"keys": KeyLimits(generations=1)}, (asked(0), asked(1, key=b"another key")),
    ),
    "key-queue-full": (
        {"keys": KeyLimits(namespaces=1)}, (asked(0), asked(1, namespace=b"another")),
    ),
    "commands-full": (
        {"keys": KeyLimits(commands=1)},
        (asked(0, act=KeyAct.FORGET, tag=b"one"), asked(1, act=KeyAct.FORGET, tag=b"two")),
    ),
    "early": ({}, (asked(0, earlier=1, allowance=4),)),
    "server-lost": ({}, (request(0, earlier=1, rerun=False),)),
    "journal": ({}, (SaveFailed("the disk is full", False, 0.0), asked(0))),
    "key-crowded": ({"keys": KeyLimits(waiters=1)}, (asked(0), asked(1))),
    "foreign-version": ({}, ((hello()._replace(version=1),),)),
    "malformed": ({}, ((b"",),)),
    "no-session": ({"connection_sessions": 1}, ((hello()._replace(nonce=b"m" * 16),),)),
}  # fmt: skip
"""For each code the options of a router, and what it is told; the last is refused so."""


@pytest.mark.parametrize("code", PROVOKED)
def test_a_refusal_is_as_documented(code: str):
    options, told = PROVOKED[code]
    said, answers = Said(**options), []
    for one in told:
        if isinstance(one, SaveFailed):
            said.router.take(one)
        else:
            answers = said.say(*one)
    (answer,) = answers
    assert answer.code == code
    start = f"| {type(answer).__name__} | `{code}` |"
    (row,) = [line for line in PAGE.splitlines() if line.startswith(start)]
    if isinstance(answer, messages.Refused):
        assert ("for now" in row) == (answer.delay_s is not None)


def test_every_refusal_is_documented():
    documented = {*tables.REFUSAL_WORDS, *tables.ERROR_WORDS}
    assert documented == set(PROVOKED)
    assert {refusal.value[0] for refusal in Refusal} <= documented
    # What the sources say where they refuse:
    sources = inspect.getsource(router) + inspect.getsource(work)
    for node in ast.walk(ast.parse(sources.replace("from __future__ import annotations", ""))):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in (
            "messages.Refused",
            "messages.Error",
            "self._refuse",
        ):
            codes = {arg.value for arg in node.args if isinstance(arg, ast.Constant)}
            assert {code for code in codes if isinstance(code, str)} <= documented


# -- bodies -----------------------------------------------------------------------


def test_the_documented_request_is_the_one_that_is_sent():
    found = re.search(r"request-body = \{(.*?)\n\}", PAGE, re.DOTALL)
    assert found is not None
    documented = re.findall(r"^  (\w+):", found[1], re.MULTILINE)
    sent = RolloutRequest(kind="rollout", input=None, endpoint="oracle", model_name="").to_body()
    assert documented == list(sent)


def test_the_tags_are_those_that_are_read():
    section = PAGE[PAGE.index("\n## Bodies") : PAGE.index("**The body of a request**")]
    documented = set()
    for row in re.findall(r"^\| ([\d,\u2013 ]+?(?:, not \d+)?) \|", section, re.MULTILINE):
        spans, _, left_out = row.partition(", not ")
        for span in spans.split(", "):
            first, _, last = span.partition("\u2013")
            documented |= set(range(int(first), int(last or first) + 1))
        documented -= {int(left_out)} if left_out else set()
    header = int.from_bytes(COST_HEADER[1:5], "big")
    read = set(values._accepted_tags("auto", 1)) | set(values._BUILT_IN) | {header}
    assert documented == read
