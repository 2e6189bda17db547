"""No page is cut off: on a screen of 1280 pixels nothing has to be scrolled sideways, and on a
phone only what scrolls by itself, as long lines of code do.

The pages are built, and looked at in a real browser.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from tests.browser import IN_A_BROWSER, Browser, open_browser

pytestmark = [
    *IN_A_BROWSER,
    pytest.mark.real,
    pytest.mark.skipif(importlib.util.find_spec("furo") is None, reason="the theme is missing"),
]

ROOT = Path(__file__).parent.parent.parent
WAIT_S = 1200
DESK, PHONE = 1280, 390

CUT = """(() => {
    const wide = document.documentElement.clientWidth;
    const told = (each) => `${each.tagName} ${each.className}: ${each.textContent.slice(0, 60)}`;
    const found = [];
    if (document.documentElement.scrollWidth > wide) found.push('the page itself');
    for (const each of document.querySelectorAll('article, article *')) {
        const way = getComputedStyle(each).overflowX;
        const hidden = each.closest('.headerlink, .sr-only, .visually-hidden');
        const inside = each.parentElement.closest('pre, .table-wrapper, svg');
        if (hidden || inside) continue;
        const cut = each.clientWidth && each.scrollWidth > each.clientWidth + 1;
        const scrolls = SCROLLING && (way === 'auto' || way === 'scroll');
        if (cut && way !== 'visible' && !scrolls) found.push(`cut: ${told(each)}`);
        const box = each.getBoundingClientRect();
        if (box.width && (box.right > wide + 1 || box.left < -1)) found.push(`out: ${told(each)}`);
    }
    return found.slice(0, 5);
})()"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("pages")
    command = ["sphinx", "-q", "-b", "html", "-d", str(folder / "trees"), str(ROOT / "docs")]
    subprocess.run(
        [sys.executable, "-m", *command, str(folder / "html")], timeout=WAIT_S, check=True
    )
    yield folder / "html"
    shutil.rmtree(folder)


async def cut_off(browser: Browser, page: Path, width: int) -> list[str]:
    await browser.look(page.as_uri(), width=width)
    await browser.until(
        f"location.href === '{page.as_uri()}' && document.readyState === 'complete'"
    )
    found: list[str] = await browser.run(CUT.replace("SCROLLING", str(width < DESK).lower()))
    return found


@pytest.mark.parametrize("width", [DESK, PHONE])
async def test_nothing_is_cut_off(pages: Path, tmp_path: Path, width: int):
    found = {}
    names = sorted(page.stem for page in (ROOT / "docs").glob("*.md"))
    with trio.fail_after(WAIT_S):
        async with open_browser(tmp_path) as browser:
            for name in names:
                if cut := await cut_off(browser, pages / f"{name}.html", width):
                    found[name] = cut
    assert not found


async def test_what_is_cut_off_is_seen(tmp_path: Path):
    """The check can fail: at each of its widths, for each of its reasons."""
    line = f"<pre style='overflow-x: auto'>{'x' * 300}</pre>"
    hidden = f"<p style='overflow-x: hidden'>{'x' * 300}</p>"
    wide = "<div style='width: 1400px'>x</div>"
    seen = {}
    with trio.fail_after(WAIT_S):
        async with open_browser(tmp_path) as browser:
            for number, text in enumerate(("<p>fits</p>", line, hidden, wide)):
                page = tmp_path / f"{number}.html"
                page.write_text(f"<!doctype html><article>{text}</article>")
                for width in (DESK, PHONE):
                    seen[number, width] = bool(await cut_off(browser, page, width))
    right = {(0, DESK): False, (0, PHONE): False, (1, DESK): True, (1, PHONE): False}
    assert seen == {**right, **{(n, width): True for n in (2, 3) for width in (DESK, PHONE)}}
