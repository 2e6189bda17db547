"""The one line of a stack that says most: where the author's own code stands.

A worker's text is for people, and may be any text: what is not found in it is left out.
"""

from __future__ import annotations

import re

PLACE_CHARACTERS = 200

_FRAME = re.compile(
    r'^[ \t]*File "(?P<path>[^"\n]*)", line \d{1,9}, in (?P<name>.*)$', re.MULTILINE
)
_OTHERS = re.compile(
    r"/site-packages/(?:trio|outcome|anyio|sniffio|httpx2?|httpcore2?|h11)/"
    r"|/trio_envserve/(?:client|core|foreign|host|models|net|server|tracing|worker)\b"
    r"|/lib/python3\.\d+/(?!site-packages/)|^<"
)
"""Paths of code that is not the author's: it waits, or calls the author's."""

_TASKS = "tasks of trio:\n"
_LOOP_OF_ASYNCIO = "the loop of asyncio stands here:\n"


def place(stack: str) -> str:
    """``File "env.py", line 7, in step``: the innermost frame of the author's code, in a stack
    as a worker describes it; empty if there is none.

    If the event loop is late and this execution's code is what runs in it, the loop stands
    further inside than the task.
    """
    stack = stack.partition(_LOOP_OF_ASYNCIO)[0]
    before, tasks, after = stack.partition(_TASKS)
    loop, own = (_frames(before), _frames(after)) if tasks else ([], _frames(before))
    found = own or loop
    if own and any(_same(own[-1], frame) for frame in loop):
        found = loop
    return found[-1][0].strip()[-PLACE_CHARACTERS:] if found else ""


def is_authors(path: str) -> bool:
    """Whether a file is code of the environment's author, as far as its path tells."""
    return not _OTHERS.search(path)


def _frames(text: str) -> list[re.Match[str]]:
    return [frame for frame in _FRAME.finditer(text) if is_authors(frame["path"])]


def _same(one: re.Match[str], other: re.Match[str]) -> bool:
    return (one["path"], one["name"]) == (other["path"], other["name"])
