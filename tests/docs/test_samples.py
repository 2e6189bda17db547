"""Every code sample of the documentation is run.

A ``python`` block is a whole program and is run in a process of its own, a fork of one that
has imported the command, in a folder with the files of its page: a block after
``<!-- file: NAME -->`` is such a file and is not run.  A block after
``<!-- part of: PATH -->`` stands in that file of the tree, to the letter, and is not run
either.  A ``console`` block is a shell session of this command, of ``python`` and of ``curl``:
a line that serves, or ends with ``&``, goes on beside the lines after it, and where a page
names a model's endpoint, at port 8000, there is one.
"""

from __future__ import annotations

import re
import shlex
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
import trio
from _pytest.mark import ParameterSet

from tests.cli import commands
from tests.cli.commands import Finished
from tests.connections import held_port

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(
    r"(?:^<!-- (?:file: (?P<file>\S+)|part of: (?P<whole>\S+)) -->\n)?"
    r"^```(?P<language>\w+)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
MODEL_PORT = ":8000"
CASES = ("*session*", "*full-queue*", "*silent-client*")
"""Where a page has a server judged by all cases, with limits that these need."""


class Sample(NamedTuple):
    page: str
    number: int
    language: str
    file: str
    whole: str
    text: str

    def __str__(self) -> str:
        return f"{Path(self.page).stem}-{self.number}"


def samples() -> list[Sample]:
    found = []
    for page in PAGES:
        for number, block in enumerate(BLOCK.finditer(page.read_text(encoding="utf-8")), 1):
            file, whole = block["file"] or "", block["whole"] or ""
            found.append(Sample(page.name, number, block["language"], file, whole, block["text"]))
    return found


SAMPLES = samples()
PARTS = [each for each in SAMPLES if each.whole]
PROGRAMS = [each for each in SAMPLES if each.language == "python" and not (each.file or each.whole)]
SESSIONS = [each for each in SAMPLES if each.language == "console"]
LONG = {
    "conformance.md", "evaluating.md", "exploring.md", "first-environment.md", "fuzzing.md",
    "laboratory.md",
}  # fmt: skip
"""Pages of which the samples evaluate, measure and search."""


def each_of(samples: list[Sample]) -> list[ParameterSet]:
    """The parameters of a test that runs them."""
    slow = pytest.mark.slow
    return [pytest.param(each, id=str(each), marks=[slow] * is_long(each)) for each in samples]


def is_long(sample: Sample) -> bool:
    """Whether it is run with the slow tests only; Reasoning Gym takes seconds to import."""
    return sample.page in LONG or "reasoning-gym" in sample.text


def skip_without_bwrap(page: str) -> None:
    """Skip what needs bubblewrap where that is not installed."""
    if page == "sandboxes.md" and shutil.which("bwrap") is None:
        pytest.skip("needs bubblewrap")


def write_files(folder: Path, page: str, model_port: str = MODEL_PORT) -> None:
    for each in SAMPLES:
        if each.file and each.page == page:
            text = each.text.replace(MODEL_PORT, model_port)
            (folder / each.file).write_text(text, encoding="utf-8")


@contextmanager
def model_of(page: str) -> Iterator[str]:
    """The port of the model's endpoint for a page that names one, with its colon."""
    if not any(MODEL_PORT in each.text for each in SAMPLES if each.page == page):
        yield MODEL_PORT
        return
    from tests.endpoint import Answer, Ask, Endpoint, Reply, running  # skips where it cannot run

    def answer(ask: Ask) -> Answer:
        if ask.turn == 0 and "tools" in ask.body:
            return Reply(tools=[("look", {"country": "France"})])
        return Reply(f"{ask.turn}, or Paris")

    with running(Endpoint(answer)) as url:
        yield url.removeprefix("http://127.0.0.1").removesuffix("/v1")


def test_there_are_samples_and_no_block_of_an_unknown_kind():
    assert PROGRAMS
    assert SESSIONS
    known = {"python", "console", "sh", "text", "toml", "yaml", "cddl", "include", "toctree"}
    assert {each.language for each in SAMPLES} <= known


@pytest.mark.parametrize("sample", PARTS, ids=str)
def test_a_part_of_a_file_stands_in_it(sample: Sample):
    assert sample.text in (ROOT / sample.whole).read_text(encoding="utf-8")


@pytest.mark.real
@pytest.mark.parametrize("sample", each_of(PROGRAMS))
async def test_a_program_runs(sample: Sample, tmp_path: Path):
    skip_without_bwrap(sample.page)
    write_files(tmp_path, sample.page)
    (tmp_path / "sample.py").write_text(sample.text, encoding="utf-8")
    done = await run(tmp_path, "sample.py")
    assert done.code == 0, done.err
    assert "Traceback" not in done.err, done.err


@pytest.mark.real
@pytest.mark.parametrize("sample", each_of(SESSIONS))
async def test_a_session_runs(sample: Sample, tmp_path: Path):
    text = sample.text
    skip_without_bwrap(sample.page)
    if "textarena:" in text:
        pytest.importorskip("textarena")
    if "curl " in text and shutil.which("curl") is None:
        pytest.skip("curl is not there")
    async with AsyncExitStack() as stack:
        model_port = stack.enter_context(model_of(sample.page))
        write_files(tmp_path, sample.page, model_port)
        for port in (":5555", ":5556", ":8001", ":8080"):
            text = text.replace(port, f":{stack.enter_context(held_port())}")
        text = text.replace(MODEL_PORT, model_port)
        for line in text.splitlines():
            command, *words = shlex.split(line)
            assert command in ("trio-envserve", "python", "curl")
            if words[0] == "conform":
                words += ["--patience-s", "60"]  # for a busy machine
                if "--case" not in words:  # tests/conformance has all of them
                    words += [word for case in CASES for word in ("--case", case)]
            if words[0] == "serve":
                await stack.enter_async_context(serving(tmp_path, *words))
            elif words[-1] == "&":
                await stack.enter_async_context(beside(tmp_path, *words[:-1]))
            else:
                if command == "curl":
                    done = await unforked(tmp_path, "curl", "--noproxy", "*", *words)
                elif words[0] == "-m":
                    done = await unforked(tmp_path, sys.executable, "-W", "error", *words)
                else:
                    done = await run(tmp_path, *words)
                assert done.code == 0 or stood_still(done), (line, done)


async def run(folder: Path, *words: str) -> Finished:
    """Run a line of the command, or a program of Python."""
    # By CI Hypothesis knows that it is on a machine which may be slow.
    return await commands.run(folder, *words, QWEN_KEY="sk-1", CI="1")


async def unforked(folder: Path, *words: str) -> Finished:
    """Run another program to its end."""
    done = await trio.run_process(
        words, cwd=folder, capture_stdout=True, capture_stderr=True, check=False
    )
    return Finished(done.returncode, done.stdout.decode(), done.stderr.decode())


def stood_still(done: Finished) -> bool:
    """Whether ``validate --strict`` warned of nothing but a loop that was held: a machine
    that stands still holds it, too."""
    late = re.search(r"^  event loop +WARNING ", done.out, re.MULTILINE)
    return late is not None and "0 failed, 1 warnings" in done.err


@asynccontextmanager
async def serving(folder: Path, *words: str) -> AsyncIterator[None]:
    """A server of these arguments, from its first line of output on."""
    async with commands.forked(folder, *words) as server:
        assert "tcp://" in await server.line()
        yield
        server.signal(signal.SIGTERM)
        done = await server.wait()
        assert done.code == 0, done.err


@asynccontextmanager
async def beside(folder: Path, *words: str) -> AsyncIterator[None]:
    """A program that goes on until the block ends.  Who needs it waits for it."""
    async with commands.forked(folder, *words) as running:
        yield
        assert running.process.poll() is None, f"{words} has ended: {running.err}"
        if words[0] == "join":  # else its router waits for it
            running.signal(signal.SIGTERM)
            assert (await running.wait()).code == 0


# -- what the pages name must exist ----------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_a_page_names_are_there(page: Path):
    text = page.read_text(encoding="utf-8")
    for path in re.findall(r"`(tests/[\w/.]+)`", text):
        assert (ROOT / path).exists(), path
    for path in re.findall(r"\]\((?!http)([\w/.]+\.md)", text):
        assert (page.parent / path).exists(), path
