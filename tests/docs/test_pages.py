"""What the pages say in tables of their own is what the code has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import trio

import trio_envserve
from docs.draw import reference
from tests.memory import pair
from trio_envserve.envs.loading import check_spec
from trio_envserve.server.options import completed

DOCS = Path(__file__).parent.parent.parent / "docs"
NAMES_IN_CODE = re.compile(r"`([\w.]+)`")


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def section(text: str, heading: str) -> str:
    return text.split(f"\n## {heading}\n")[1].split("\n## ")[0]


async def test_every_field_of_the_statistics_is_explained():
    with trio.fail_after(60):
        async with pair("arithmetic") as (server, client):
            await client.run_rollout({"index": 0})
            over_the_wire = (await client.stats()).to_record()
            stats = server.stats().to_record()
    assert set(over_the_wire) == set(stats)
    explained = set(NAMES_IN_CODE.findall(section(page("operations.md"), "Statistics")))
    (worker,) = stats["per_worker"]
    for names in (set(stats), set(worker)):
        assert names <= explained


@pytest.mark.parametrize("name", ["command.md", "operations.md"])
def test_file_of_options_on_a_page_can_be_served(name: str, tmp_path: Path):
    """The one of operations had ``http`` in the table ``serve``, which is refused."""
    verbs = pytest.importorskip("trio_envserve.cli.verbs", exc_type=ImportError)
    (text,) = re.findall(r"```toml\n(.*?)```", page(name), re.DOTALL)
    (tmp_path / "serve.toml").write_text(text, encoding="utf-8")
    told = completed(config=tmp_path / "serve.toml")
    if told["environment"] == "arithmetic":
        check_spec(told["environment"], told["args"])
    asked = verbs.load(verbs.VERBS["serve"]).asked({"config": str(tmp_path / "serve.toml")})
    assert (told["limits"].lease_s, asked.http) == (60, {"bind": "127.0.0.1:8080"})


def test_the_reference_has_every_public_name_once():
    drawn = [name for section in reference.SECTIONS for name in reference.names(section)]
    assert sorted(name for name in drawn if "." not in name) == sorted(trio_envserve.__all__)
