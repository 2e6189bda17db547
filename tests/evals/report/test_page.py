"""Reports in a real browser: what people see, by mouse and keyboard, without a network."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.browser import IN_A_BROWSER, Browser, open_browser
from tests.evals.report.results import BEGAN_S, HOSTILE, TALK, failure, result, written
from trio_envserve.evals.comparison import compare
from trio_envserve.evals.files import overview
from trio_envserve.evals.report import compared_data, page_data, survey, write_report

pytestmark = IN_A_BROWSER

HANG_S = 600
"""Far more than anything here takes on a busy machine."""
ROWS = "document.querySelectorAll('#rollouts tbody tr')"
FOUND = "document.querySelector('#found').textContent"


@asynccontextmanager
async def shown(
    folder: Path, records: Sequence[dict[str, Any]], *, before: Sequence[dict[str, Any]] = (),
    most: int | None = None, **look: Any,
) -> AsyncIterator[Browser]:  # fmt: skip
    """The report of these results, in a browser that has read it."""
    found = survey(written(folder / "r.jsonl", records))
    data = page_data(found, passed_from=1.0, most=most)
    if before:
        other = written(folder / "before.jsonl", before)
        compared = compare(found.overview.entries, overview(other).entries, shown=None)
        data["compared"] = compared_data(other, compared)
    page = folder / "r.html"
    write_report(str(page), found, data, most)
    with trio.fail_after(HANG_S):
        async with open_browser(folder) as browser:
            await browser.look(page.as_uri(), **look)
            await browser.until("document.documentElement.dataset.ready === 'yes'")
            yield browser


def some(count: int = 6) -> list[dict[str, Any]]:
    """Results of which the last one is an error."""
    return [*(result(n, n / 4) for n in range(count - 1)), result(count - 1, error=failure())]


async def text(browser: Browser, name: str) -> str:
    return str(await browser.run(f"document.querySelector('#{name}').textContent"))


async def search(browser: Browser, words: str) -> str:
    """What is found, in the table's own words."""
    await browser.run("(document.querySelector('#query').focus(), query.value = '')")
    await browser.send("Input.insertText", text=words)
    await browser.run("document.querySelector('#found').textContent = 'to come'")
    await browser.key("Enter")
    await browser.until(f"/rollouts$/.test({FOUND}) && !{FOUND}.startsWith('searching')")
    return str(await browser.run(FOUND))


async def test_a_report_says_what_the_results_say(tmp_path: Path):
    async with shown(tmp_path, some()) as browser:
        tiles = await text(browser, "tiles")
        errors = await text(browser, "errors")
        rows = await browser.run(f"[...{ROWS}].map((row) => row.textContent)")
        workers = await text(browser, "workers-said")
        await browser.run(f"{ROWS}[2].click()")
        fields, talk = await text(browser, "one-fields"), await text(browser, "one-text")
        await browser.run("document.querySelector('#one').close()")
        await browser.run(f"{ROWS}[5].click()")
        failed = await text(browser, "one-text")
    assert "mean reward0.5 ± " in tiles
    assert "prompt tokens150" in tiles
    assert errors == "RolloutFailed (rollout-failed, environment)it ran and failed1"
    assert rows[1] == '100.2510.0 s42w1-1{"q": "question 1"}'
    assert rows[5].endswith("ValueError: no such page")
    assert "6 executions on 2 workers" in workers
    assert "metric: turns3" in fields
    assert all(part in talk for part in ("question 2", "[user]", '→ look({"at": 1})', "a heron"))
    assert "in look\nValueError" in failed


@pytest.mark.parametrize(
    ("rewards", "told"),
    [
        ((0.25, 0.5), "0.4 ± 0.1"),
        ((1e-12, 3e-12), "2.00e-12 ± 1.00e-12"),
        ((1e-12, 1e-12), "1.00e-12 ± 0"),
        ((0.5, 0.5 + 2e-12), "0.5 ± 1.00e-12"),
        ((0.0, 4e10), "2.00e+10 ± 2.00e+10"),
    ],
)
async def test_mean_of_tiny_rewards_was_shown_as_zero(
    tmp_path: Path, rewards: tuple[float, float], told: str
):
    async with shown(tmp_path, [result(n, each) for n, each in enumerate(rewards)]) as browser:
        tiles = await text(browser, "tiles")
    assert f"mean reward{told}95%" in tiles


async def test_nothing_is_loaded_and_a_file_is_enough(tmp_path: Path):
    async with shown(tmp_path, some(), before=some()) as browser:
        await search(browser, "heron")
        await browser.run(f"{ROWS}[0].click()")
        assert browser.asked == [(tmp_path / "r.html").as_uri()]
        # Were a script to ask for something in spite of that, the policy would refuse it.
        refused = "fetch('http://127.0.0.1:9/').then(() => 'asked', () => 'refused')"
        assert await browser.run(refused) == "refused"
        assert any("Content Security Policy" in each for each in browser.said)


async def test_hostile_text_is_shown_as_text(tmp_path: Path):
    value = {"reward": 1.0, HOSTILE: HOSTILE, "completion": [{"role": HOSTILE, "content": HOSTILE}]}
    told = {"environment": HOSTILE, "model": HOSTILE, "worker": HOSTILE, "metrics": {HOSTILE: 1.0}}
    records = [
        result(0, input=HOSTILE, value=value, usage={HOSTILE: 3}, **told),
        result(1, error=failure(HOSTILE, HOSTILE), **told),
    ]
    async with shown(tmp_path, records, before=records) as browser:
        for number in range(2):
            await browser.run(f"{ROWS}[{number}].click()")
            assert "<img src=x" in await text(browser, "one-text")
            assert "<img src=x" in await text(browser, "one-fields")
            await browser.run("document.querySelector('#one').close()")
        assert "<img src=x" in await text(browser, "rollouts")
        assert await browser.run("document.querySelectorAll('img').length") == 0
        assert await browser.run("document.querySelectorAll('script:not([type])').length") == 2
        assert browser.said == []
        await browser.run(
            "document.body.append(Object.assign(document.createElement('script'),"
            " {textContent: 'window.hacked = 1'}))"
        )
        assert await browser.run("window.hacked === undefined")
        assert any("Content Security Policy" in each for each in browser.said)


async def test_a_search_looks_at_inputs_outputs_and_errors_and_at_nothing_else(tmp_path: Path):
    said = [{"role": "user", "content": "a NIGHTjar <i>&</i>"}]
    records = [
        result(0, value={"reward": 1.0, "completion": said}),
        result(1, input={"q": 'a "quoted" <b> & more\nof it'}),
        result(2, error=failure(traceback='File "öre.py", line 7')),
    ]
    async with shown(tmp_path, records) as browser:
        for words, count in (
            ("Nightjar", 1), ("jar <I>&</i>", 1), ('"quoted', 1), ("<b> & m", 1), ("ÖRE.py", 1),
            ("no such page", 1), ("heron", 1), ("question", 2),
            ("left_out", 0), ("nthing", 0), ("u003c", 0),
        ):  # fmt: skip
            assert await search(browser, words) == f"{count} of 3 rollouts", words
            assert await browser.run(f"{ROWS}.length") == count
        assert await search(browser, "") == "3 rollouts"
        await browser.run("document.querySelector('#only-errors').click()")
        assert await browser.run(f"[...{ROWS}].map((row) => row.cells[0].textContent)") == ["2"]


async def test_columns_sort_and_what_has_no_number_comes_last(tmp_path: Path):
    records = [result(0, 0.5), result(1, error=failure()), result(2, 0.75), result(3, -1.0)]
    look = f"[...{ROWS}].map((row) => row.cells[0].textContent)"
    async with shown(tmp_path, records) as browser:
        sort = "document.querySelectorAll('#rollouts th button')[2].click()"
        await browser.run(sort)
        assert await browser.run(look) == ["3", "0", "2", "1"]
        await browser.run(sort)
        assert await browser.run(look) == ["2", "0", "3", "1"]
        heads = "[...document.querySelectorAll('#rollouts th')].map((each) => each.ariaSort)"
        assert (await browser.run(heads))[:3] == [None, None, "descending"]


async def test_by_keyboard_a_rollout_is_found_opened_and_left(tmp_path: Path):
    async with shown(tmp_path, some()) as browser:
        while await browser.run("document.activeElement.id") != "query":
            await browser.key("Tab")
        await browser.send("Input.insertText", text="question")
        await browser.key("Enter")
        await browser.until(f"{FOUND} === '6 rollouts'")
        while await browser.run("document.activeElement.ariaLabel") != "open input 1, repeat 0":
            await browser.key("Tab")
        await browser.key("Enter")
        assert await text(browser, "one-name") == "input 1, repeat 0"
        for key in ("ArrowRight", "ArrowRight", "ArrowLeft"):
            await browser.key(key)
        assert await text(browser, "one-name") == "input 2, repeat 0"
        for _ in range(6):  # the first one has none before it
            await browser.key("ArrowLeft")
        assert await text(browser, "one-name") == "input 0, repeat 0"
        await browser.key("Escape")
        assert not await browser.run("document.querySelector('#one').open")
        label = await browser.run("document.activeElement.ariaLabel")
        assert label == "open input 1, repeat 0"
        assert browser.said == []


@pytest.mark.parametrize("width", [400, 1280])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
async def test_it_fits_in_dark_and_light_and_says_no_error(tmp_path: Path, width: int, dark: bool):
    async with shown(tmp_path, some(40), before=some(20), width=width, dark=dark) as browser:
        drawn = await browser.run("document.querySelectorAll('canvas').length")
        wide = await browser.run("document.documentElement.scrollWidth")
        colour = await browser.run("getComputedStyle(document.body).backgroundColor")
        await browser.run(f"{ROWS}[0].click()")
        box = await browser.run("document.querySelector('#one').getBoundingClientRect().width")
        await browser.run("document.querySelector('#one').close()")
        await browser.run("document.querySelector('#theme').click()")
        other = await browser.run("getComputedStyle(document.body).backgroundColor")
    assert drawn == 3
    assert wide <= width
    assert box <= width
    assert (colour == "rgb(255, 255, 255)") is not dark
    assert (other == "rgb(255, 255, 255)") is dark
    assert browser.said == []


async def test_the_differences_are_shown_and_their_inputs_open(tmp_path: Path):
    before = [result(n, 0.5) for n in range(4)] + [result(4, 0.5, input="another")]
    async with shown(tmp_path, [result(n, n / 4) for n in range(5)], before=before) as browser:
        said, means = await text(browser, "compared-said"), await text(browser, "means")
        await browser.run("document.querySelector('details').open = true")
        changed = await browser.run(
            "[...document.querySelectorAll('#changed tr')].map((row) => row.textContent)"
        )
        await browser.run("document.querySelectorAll('#changed button')[1].click()")
        name = await text(browser, "one-name")
    assert "is 0.5 here, and 0.5 there" in said
    assert "1 inputs of the same number differ" in said
    assert means.startswith("reward0.125-0.")
    assert changed == ["000.50.5", "10.250.50.25", "30.750.5-0.25"]
    assert name == "input 1, repeat 0"


async def test_the_timeline_leaves_out_the_night_and_a_rollout_of_it_opens(tmp_path: Path):
    late = [result(n, ended_s=BEGAN_S + 40_000 + n) for n in range(6, 8)]
    async with shown(tmp_path, [*some(), *late]) as browser:
        said = await text(browser, "workers-said")
        await browser.run("""(() => {
            const place = document.querySelector('#timeline').getBoundingClientRect();
            document.querySelector('#timeline').dispatchEvent(new MouseEvent('click',
                {clientX: place.left + 95, clientY: place.top + 25, bubbles: true}));
        })()""")
        name = await text(browser, "one-name")
    assert "8 executions on 2 workers" in said
    assert "1 ended in errors (red)" in said
    assert "left out where nothing ran: 11.1 h" in said
    assert name == "input 0, repeat 0"


async def test_results_that_say_no_time_have_no_timeline(tmp_path: Path):
    records = [result(n, ended_s=None) for n in range(3)]
    async with shown(tmp_path, records) as browser:
        assert "do not say when" in await text(browser, "workers-said")
        assert browser.said == []


async def test_ten_thousand_rollouts_are_drawn_as_they_are_looked_at(tmp_path: Path):
    async with shown(tmp_path, [result(n, n % 7) for n in range(10_000)]) as browser:
        assert await browser.run(FOUND) == "10,000 rollouts"
        assert await browser.run(f"{ROWS}.length") == 100
        await browser.run("document.querySelector('#more').scrollIntoView()")
        await browser.until(f"{ROWS}.length > 100")
        assert await browser.run(f"{ROWS}.length") < 1000
        assert await search(browser, "question 9876") == "1 of 10,000 rollouts"
        await browser.run(f"{ROWS}[0].click()")
        assert await text(browser, "one-name") == "input 9876, repeat 0"


async def test_what_is_cut_is_told_where_it_is_read(tmp_path: Path):
    long = {"reward": 1.0, "completion": [*TALK, {"role": "user", "content": "x" * 5000}]}
    records = [result(0), result(1, value=long)]
    async with shown(tmp_path, records, most=2000) as browser:
        told = []
        for number in range(2):
            await browser.run(f"{ROWS}[{number}].click()")
            hidden = await browser.run("document.querySelector('#one-cut').hidden")
            told.append("" if hidden else await text(browser, "one-cut"))
    assert told[0] == ""
    assert told[1].startswith("cut at 2,000 characters: 3,")
    assert "--whole" in told[1]
