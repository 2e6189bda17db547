"""Streamed tool calls, put together from their fragments as engines really send them.  Pure.

Theory of operation
-------------------
OpenAI's stream gives each call an ``index``, names it in its first fragment (``id`` and
``function.name``), and sends pieces of its arguments after that.  Engines differ:

* The id is new in each fragment, and the name is repeated (vLLM with a named tool).
* The name or the id is repeated in each fragment (vLLM, SGLang), or is empty text in later ones.
* All calls have the index 0 and ids of their own (Ollama, LMDeploy, older SGLang and vLLM).
* There is no index (Gemini, Ollama before 0.4.7, mistral.rs), and later fragments may have no
  id either.
* Arguments are an object, or each fragment repeats all of them so far.

A fragment belongs to the open call under its index, or to the one with its id, or else to the
last one.  It begins another call only with a name, where its id is new and the call before has
all its arguments (they are whole JSON), or where the name is another one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, final

from .interface import ToolCall

_MARKS = re.compile(r'\\.|["{}\[\]]', re.DOTALL)


@final
class ToolCalls:
    """The tool calls of one answer while they arrive."""

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        self._by_index: dict[int, _Call] = {}
        self._by_id: dict[str, _Call] = {}

    @property
    def begun(self) -> bool:
        """Whether there is any."""
        return bool(self._calls)

    def add(self, given: Mapping[str, Any]) -> None:
        """Take a whole call."""
        self._begin(given, None).take(given)

    def add_fragment(self, given: Mapping[str, Any]) -> None:
        """Take a fragment of a streamed call."""
        index, identity = given.get("index"), _text(given.get("id"))
        indexed = type(index) is int
        call: _Call | None
        if indexed:
            call = self._by_index.get(index)  # type: ignore[arg-type]  # an int: indexed
        else:
            call = self._by_id.get(identity) or (self._calls[-1] if self._calls else None)
        if call is None or call.ends_before(given, indexed):
            again = call is not None and indexed and call.name == _name(given)
            call = self._begin(given, index if indexed else None)
            call.in_doubt = again
        call.take(given)

    def _begin(self, given: Mapping[str, Any], index: Any) -> _Call:
        call = _Call(_text(given.get("id")))
        self._calls.append(call)
        if index is not None:
            self._by_index[index] = call
        if call.identity:
            self._by_id[call.identity] = call
        return call

    def whole(self) -> Iterator[ToolCall]:
        """The calls, with ids that name each of them: some endpoints give one id twice, or
        none."""
        numbers: dict[str, int] = {}
        """Last number behind each id that was given."""
        for call in self._calls:
            arguments = call.arguments()
            if call.in_doubt and not arguments:
                continue  # the empty last fragment of the call before, with an id of its own
            identity = wanted = call.identity or "call"
            while identity in numbers:
                numbers[wanted] += 1
                identity = f"{wanted}-{numbers[wanted]}"
            numbers[identity] = 1
            yield ToolCall(identity, call.name, arguments, call.extra_content)


@final
class _Call:
    def __init__(self, identity: str) -> None:
        self.identity = identity
        self.name = ""
        self.extra_content: Mapping[str, Any] | None = None
        self.in_doubt = False
        """Whether it may be the end of the call before it, which has the same index and name."""
        self._object = ""
        """Arguments that came as an object, as text."""
        self._pieces: list[str] = []
        self._named = 0
        """Number of fragments with a name."""
        self._seen = _Json()

    def ends_before(self, given: Mapping[str, Any], indexed: bool) -> bool:
        """Whether a fragment begins another call."""
        identity, name = _text(given.get("id")), _name(given)
        if not name or (identity and identity == self.identity):
            return False
        if name != self.name:
            # A name in pieces comes before all arguments, and has no further id.
            return bool(self.name) and (bool(identity) or self._begun or not indexed)
        if identity:
            return self._complete if indexed else bool(self.identity)
        return not indexed and self._complete

    @property
    def _begun(self) -> bool:
        return bool(self._object or self._pieces)

    @property
    def _complete(self) -> bool:
        return bool(self._object) or self._seen.complete(self._pieces)

    def take(self, given: Mapping[str, Any]) -> None:
        self.identity = self.identity or _text(given.get("id"))
        name = _name(given)
        if name:
            self._named += 1
            if name != self.name:
                self.name += name
        if isinstance(given.get("extra_content"), Mapping):
            self.extra_content = given["extra_content"]
        arguments = _function(given).get("arguments")
        if isinstance(arguments, dict | list):
            self._object = json.dumps(arguments)
        elif text := _text(arguments):
            self._pieces.append(text)

    def arguments(self) -> str:
        pieces = self._pieces
        joined = "".join(pieces) or self._object
        if len(pieces) == self._named > 1 and _is_chain(pieces) and not _is_json(joined):
            return pieces[-1] if _is_json(pieces[-1]) else joined
        return joined


@final
class _Json:
    """Whether pieces of text are a whole JSON object, list or string; each character is
    looked at once."""

    def __init__(self) -> None:
        self._pieces = 0
        """Number of pieces that were looked at."""
        self._held = ""
        self._depth = 0
        self._in_text = False
        self._ended = False

    def complete(self, pieces: list[str]) -> bool:
        for piece in pieces[self._pieces :]:
            self._look(self._held + piece)
        self._pieces = len(pieces)
        return self._ended and self._depth == 0 and not self._in_text

    def _look(self, text: str) -> None:
        end = 0
        for found in _MARKS.finditer(text):
            end, mark = found.end(), found[0]
            if mark == '"':
                self._in_text = not self._in_text
                self._ended = not self._in_text
            elif mark in "{[" and not self._in_text:
                self._depth += 1
            elif mark in "}]" and not self._in_text:
                self._depth -= 1
                self._ended = True
        self._held = "\\" if text.endswith("\\") and end < len(text) else ""


def _is_chain(pieces: list[str]) -> bool:
    """Whether each piece begins with all of the one before it."""
    return all(pieces[n].startswith(pieces[n - 1]) for n in range(1, len(pieces)))


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _function(given: Mapping[str, Any]) -> Mapping[str, Any]:
    function = given.get("function")
    return function if isinstance(function, Mapping) else {}


def _name(given: Mapping[str, Any]) -> str:
    return _text(_function(given).get("name"))


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
