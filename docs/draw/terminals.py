"""Pictures of terminals, drawn from real runs of the example in docs/evaluating.md.

Theory of operation
-------------------
The example is taken from the page, served from two workers, and evaluated.  In the middle
of that the live view is drawn, and at the end the summary, a page of ``show`` and a
comparison: by the functions that the command prints with, into SVG instead of a terminal.
Times and numbers differ from run to run, so a picture on disk is as good as a new one if it
has the same words.
"""

from __future__ import annotations

import html
import io
import re
import tempfile
from pathlib import Path
from typing import Any

import trio
from rich.console import Console

from trio_envserve import ServerLimits, open_client, open_server
from trio_envserve.cli.evaluate import Seen, progress_tables, summary_tables
from trio_envserve.cli.render import rich_tables
from trio_envserve.cli.results import compared_tables, rich_page
from trio_envserve.evals.comparison import compare
from trio_envserve.evals.files import chosen, open_results, overview, record_at
from trio_envserve.evals.page import page
from trio_envserve.evals.run import Evaluation, EvaluationPlan
from trio_envserve.evals.tally import ResultsTally, retries

DOCS = Path(__file__).resolve().parent.parent
EXAMPLE = re.compile(r"<!-- file: guessing.py -->\n```python\n(.*?)```", re.DOTALL)
WIDTH = 104
COUNT = 30
TITLE = "guessing, model oracle"


def example() -> str:
    """The environment of the page."""
    found = EXAMPLE.search((DOCS / "evaluating.md").read_text(encoding="utf-8"))
    assert found is not None
    return found[1]


async def pictures(folder: Path) -> dict[str, str]:
    """Run the example in a folder; the pictures by the names of their files."""
    program = folder / "guessing.py"
    await trio.Path(program).write_text(example(), encoding="utf-8")
    inputs = [{"secret": 37 * number % 101} for number in range(COUNT)]
    drawn = {}
    async with open_server(
        f"{program}:Guessing",
        args={"unlucky": 74, "pause_s": 0.02},
        workers=2,
        limits=ServerLimits(beat_s=0.05),
    ) as server:
        async with open_client(server.address) as client:
            while server.status().ready < 2:  # noqa: ASYNC110  # each is in the picture
                await trio.sleep(0.01)
            first, second = str(folder / "before.jsonl"), str(folder / "after.jsonl")
            evaluation = _evaluation(EvaluationPlan(inputs, repeat=2), first, "oracle")
            async with trio.open_nursery() as nursery:
                names = list(evaluation.plan.names())
                nursery.start_soon(evaluation.run, client, names, 12)
                seen = Seen({})
                while evaluation.progress.done < COUNT or not seen.usage.get("calls"):
                    await trio.sleep(0.01)
                    seen.take(await client.stats())
                drawn["eval-live.svg"] = svg(
                    rich_tables(progress_tables(evaluation, seen, TITLE)), "eval"
                )
            summary = {
                **evaluation.tally.summary(),
                "seconds": evaluation.progress.seconds,
                "rate": evaluation.progress.rate,
                "retries": retries(client.counters(), 0),
            }
            again = _evaluation(EvaluationPlan(inputs, repeat=2), second, "random")
            await again.run(client, names, 12, model="random")
    drawn["eval-summary.svg"] = svg(rich_tables(summary_tables(summary, TITLE)), "eval")
    a, b = overview(first), overview(second)
    entries = chosen(a.entries, worst=True)
    lines = page(record_at(first, entries[0]), which=f"1 of {len(entries)}")
    drawn["show.svg"] = svg(rich_page(lines), "show before.jsonl --worst")
    names_of = ("before.jsonl: guessing, oracle", "after.jsonl: guessing, random")
    drawn["compare.svg"] = svg(
        rich_tables(compared_tables(compare(a.entries, b.entries), names_of)), "compare"
    )
    return drawn


def _evaluation(plan: EvaluationPlan, path: str, model: str) -> Evaluation:
    file = open_results(path)
    return Evaluation(plan, ResultsTally(), file=file, environment="guessing", model=model)


def svg(shown: Any, verb: str) -> str:
    """Output of rich as a picture that needs nothing from elsewhere."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    console.print(shown)
    drawn = console.export_svg(title=f"trio-envserve {verb}", unique_id="terminal")
    return re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL)


def drawn() -> dict[str, str]:
    """All pictures, from a new run."""
    with tempfile.TemporaryDirectory() as folder:
        return trio.run(pictures, Path(folder))


def words(picture: str) -> set[str]:
    """Words in a picture, but for numbers and progress."""
    text = html.unescape(re.sub(r"<style>.*?</style>|<[^>]*>", " ", picture, flags=re.DOTALL))
    return set(re.findall(r"[a-z]{2,}", text.lower()))
