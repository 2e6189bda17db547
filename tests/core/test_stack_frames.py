"""The author's own line, out of a stack as workers describe it."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

import trio_envserve
from trio_envserve.core.stack_frames import (
    AUTHORS_LINE_CHARACTERS,
    authors_line,
    authors_part,
    dumped_stacks,
    holder_in,
    is_ours,
    named,
)

TRIO = "/v/lib/python3.11/site-packages/trio"
OWN = "/v/lib/python3.11/site-packages/trio_envserve/worker/runners.py"


def frame(path: str, line: int, name: str) -> str:
    return f'  File "{path}", line {line}, in {name}\n    code()\n'


def test_who_waits_in_trio_stands_where_the_author_wrote_it():
    stack = (
        "tasks of trio:\nrequest ab#1\n" + frame(OWN, 9, "run") + frame("/home/late.py", 7, "step")
        + frame(f"{TRIO}/_timeouts.py", 70, "sleep_forever")
        + frame(f"{TRIO}/_core/_traps.py", 2, "wait_task_rescheduled")
    )  # fmt: skip
    assert authors_line(stack) == 'File "/home/late.py", line 7, in step'


def test_who_waits_for_an_answer_over_http_stands_where_the_author_asked():
    """It was a line of the HTTP library."""
    libraries = "/v/lib/python3.11/site-packages"
    stack = (
        "tasks of trio:\n" + frame("/home/env.py", 7, "run_rollout")
        + frame(f"{libraries}/httpx2/_client.py", 2, "send")
        + frame(f"{libraries}/httpcore2/_async/http11.py", 3, "_receive_event")
    )  # fmt: skip
    assert authors_line(stack) == 'File "/home/env.py", line 7, in run_rollout'


def test_rollout_that_waits_for_its_model_stands_where_the_author_asked():
    """It was the line of ``ask`` in this package."""
    ours = "/v/lib/python3.11/site-packages/trio_envserve"
    author = frame("/home/env.py", 7, "run_rollout")
    for inner in ("envs/interface.py", "commands.py", "sandboxes/sandbox.py", "envs/tool_loop.py"):
        stack = "tasks of trio:\n" + author + frame(f"{ours}/{inner}", 9, "ask")
        assert authors_line(stack) == 'File "/home/env.py", line 7, in run_rollout'
    built_in = frame(f"{ours}/envs/arithmetic.py", 9, "_converse")
    assert authors_line(f"tasks of trio:\n{built_in}").endswith("in _converse")


def test_modules_below_a_rollout_are_those_of_this_package():
    root = Path(trio_envserve.__file__).parent
    found = {each for each in root.rglob("*.py") if is_ours(str(each))}
    apart = {each.relative_to(root).parts[0] for each in {*root.rglob("*.py")} - found}
    assert apart == {"envs", "lab", "retrylab", "testing"}  # which have environments of their own
    known = {each.name for each in (root / "envs").glob("*.py")} - {each.name for each in found}
    assert known == {"arithmetic.py", "reasoning_gym.py"}
    assert not is_ours("/home/trio_envserve/examples/env.py")


def test_who_holds_the_loop_stands_where_the_loop_stands():
    held = frame("/home/late.py", 7, "environment") + frame("/home/late.py", 11, "holds")
    stack = (
        "the event loop is late, and stands here:\n" + frame(f"{TRIO}/_core/_run.py", 3, "run")
        + held + "\ntasks of trio:\n" + frame("/home/late.py", 7, "environment")
    )  # fmt: skip
    assert authors_line(stack) == 'File "/home/late.py", line 11, in holds'


def test_another_rollout_that_holds_the_loop_is_not_taken_for_this_one():
    stack = (
        "the event loop is late, and stands here:\n" + frame("/home/other.py", 3, "busy")
        + "\ntasks of trio:\n" + frame("/home/late.py", 7, "environment")
    )  # fmt: skip
    assert authors_line(stack) == 'File "/home/late.py", line 7, in environment'


def test_threads_and_tasks_of_asyncio_have_a_line_too():
    library = frame("/usr/lib/python3.11/threading.py", 300, "wait")
    assert authors_line("thread:\n" + frame("/home/t.py", 1, "f") + library).endswith("in f")
    stack = "task of asyncio:\n" + frame("/home/a.py", 2, "g") + library
    stack += "\nthe loop of asyncio stands here:\n" + frame("/home/b.py", 3, "h")
    assert authors_line(stack) == 'File "/home/a.py", line 2, in g'


def test_a_library_of_the_author_is_the_authors():
    installed = "/v/lib/python3.11/site-packages/my_envs/maze.py"
    assert authors_line("thread:\n" + frame(installed, 4, "go")).endswith("line 4, in go")


@pytest.mark.parametrize("stack", ["", "nothing", 'File "', frame(f"{TRIO}/x.py", 1, "y")])
def test_a_text_without_a_line_of_the_author_has_none(stack: str):
    assert authors_line(stack) == ""


def test_g10_a_line_is_short_whatever_a_worker_says():
    assert (
        len(authors_line(frame("/home/" + "x" * 20_000, 1, "f" * 20_000)))
        == AUTHORS_LINE_CHARACTERS
    )


DUMP = """Timeout (0:00:01)!
Thread 0x00007f0000000001 (most recent call first):
  File "/v/lib/python3.11/threading.py", line 5 in wait
  File "/home/env.py", line 9 in "odd" name

Current thread 0x00007f0000000002 (most recent call first):
  File "/v/lib/python3.11/re/__init__.py", line 166 in match
  File "/home/env.py", line 7 in hang
  ...
Stack (most recent call first):
"""


def test_dump_of_threads_is_read_as_stacks_with_the_innermost_frame_last():
    assert dumped_stacks(DUMP) == [
        '  File "/home/env.py", line 9, in "odd" name\n'
        '  File "/v/lib/python3.11/threading.py", line 5, in wait\n',
        '  File "/home/env.py", line 7, in hang\n'
        '  File "/v/lib/python3.11/re/__init__.py", line 166, in match\n',
        "",
    ]
    assert dumped_stacks('  File "/home/env.py", line 9 in hang\nno dump') == []
    assert authors_line(dumped_stacks(DUMP)[1]) == 'File "/home/env.py", line 7, in hang'


def test_function_that_is_named_is_the_same_but_for_the_name_of_its_frame():
    apart = 3

    def add(one: int, two: int = 2, *, three: int = 4) -> tuple[int, str]:
        frame = inspect.currentframe()
        assert frame is not None
        return one + two + three + apart, frame.f_code.co_name

    assert named(add, "request ab#1")(1) == (10, "request ab#1")
    assert add(1) == (10, "add")


OTHER = '  File "/e.py", line 5, in f\n'
AB = f'  File "{OWN}", line 4, in request ab#1\n{OTHER}'
LIBRARY = '  File "/v/lib/python3.11/threading.py", line 5, in wait\n'


def test_part_of_the_author_begins_with_the_first_of_the_authors_frames():
    assert authors_part(LIBRARY + OTHER + LIBRARY) == OTHER + LIBRARY
    assert authors_part(LIBRARY) == LIBRARY


@pytest.mark.parametrize(
    ("stacks", "request_id", "found"),
    [
        ([AB, LIBRARY], "ab#1", [OTHER]),
        ([LIBRARY, OTHER], "", [OTHER]),
        ([AB, OTHER], "", [OTHER, OTHER]),
        ([LIBRARY, LIBRARY], "", []),
    ],
)  # fmt: skip
def test_holder_is_the_one_thread_that_runs_the_authors_code(
    stacks: list[str], request_id: str, found: list[str]
):
    assert holder_in(stacks) == (request_id, found)
