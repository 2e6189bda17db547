"""The dashboard and the alert rules of the docs ask for metrics that exist.

The slow test gives both to a real Prometheus (in Debian: the package ``prometheus``).
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.connections import held_port
from tests.doors.http.door import HANG_S, TOKEN, asking, httpx2, open_door, tokens
from trio_envserve.doors.http.metrics import METRICS, PREFIX

pytest.importorskip("prometheus_client")

DOCS = Path(__file__).parent.parent.parent.parent / "docs"
RULES = DOCS / "prometheus-rules.yml"
DASHBOARD = DOCS / "grafana-dashboard.json"


def series() -> set[str]:
    """The names of all series, as a query has them."""
    found = set()
    for metric in METRICS:
        ends = ("_bucket", "_sum", "_count") if metric.kind == "histogram" else ("",)
        found |= {f"{metric.full_name}{end}" for end in ends}
    return found


def queries() -> list[str]:
    """The queries of the dashboard, with its variables filled in."""
    panels = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    filled = {"$job": ".*", "$instance": ".*", "$__rate_interval": "10s"}
    found = []
    for expression in (target["expr"] for panel in panels for target in panel.get("targets", ())):
        for name, value in filled.items():
            expression = expression.replace(name, value)
        assert "$" not in expression
        found.append(expression)
    return found


@pytest.mark.parametrize("path", [RULES, DASHBOARD], ids=lambda path: path.name)
def test_every_metric_that_is_asked_for_exists(path: Path):
    asked = set(re.findall(rf"\b{PREFIX}\w+", path.read_text(encoding="utf-8")))
    assert asked
    assert asked <= series()


@asynccontextmanager
async def prometheus(folder: Path, target: str) -> AsyncIterator[Any]:
    """A client of a Prometheus with these rules that scrapes a door."""
    (folder / "token").write_text(TOKEN)
    (folder / "prometheus.yml").write_text(
        "global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}\n"
        f"rule_files: [{json.dumps(str(RULES))}]\n"
        "scrape_configs:\n"
        "  - job_name: rollouts\n"
        f"    authorization: {{credentials_file: {json.dumps(str(folder / 'token'))}}}\n"
        f"    static_configs: [{{targets: [{json.dumps(target)}]}}]\n"
    )
    with held_port() as port:
        place = f"127.0.0.1:{port}"
        command = [
            "prometheus", f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address={place}",
            "--log.level=warn",
        ]  # fmt: skip
        async with trio.open_nursery() as nursery:
            await nursery.start(trio.run_process, command)
            async with httpx2.AsyncClient(base_url=f"http://{place}", timeout=None) as client:
                yield client
            nursery.cancel_scope.cancel()


async def ask(client: Any, path: str, **params: str) -> Any:
    """What the API says; None until it answers."""
    try:
        answer = await client.get(f"/api/v1/{path}", params=params)
    except httpx2.TransportError:
        return None
    if answer.status_code == 503:
        return None  # it is still starting
    told = answer.json()
    assert told["status"] == "success", (params, told)
    return told["data"]


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs Prometheus")
async def test_a_real_prometheus_takes_the_rules_and_answers_every_query(tmp_path: Path):
    header = {"authorization": f"Bearer {TOKEN}"}
    with trio.fail_after(HANG_S):
        async with (
            open_door("arithmetic", token_file=tokens(tmp_path)) as door,
            asking(door, headers=header) as client,
            prometheus(tmp_path, door.url.removeprefix("http://")) as asked,
        ):
            text = (await client.get("/metrics")).content
            await trio.run_process(["promtool", "check", "rules", str(RULES)], capture_stdout=True)
            await trio.run_process(["promtool", "check", "metrics"], stdin=text)
            for query in queries():
                while not ((data := await ask(asked, "query", query=query)) and data["result"]):
                    await client.post(
                        "/v1/rollouts", json={"input": {"index": 0}, "model": "oracle"}
                    )
                    await trio.sleep(0.1)
            while (rules := await evaluated(asked)) is None:
                await trio.sleep(0.1)
    assert len(rules) == RULES.read_text(encoding="utf-8").count("- alert:")
    assert {(rule["health"], rule.get("lastError", "")) for rule in rules} == {("ok", "")}
    assert "firing" not in {rule["state"] for rule in rules}


async def evaluated(client: Any) -> list[dict[str, Any]] | None:
    """The rules, once each was evaluated."""
    data = await ask(client, "rules")
    rules: list[dict[str, Any]] = [
        rule for group in (data or {}).get("groups", ()) for rule in group["rules"]
    ]
    return rules if rules and all(rule["health"] != "unknown" for rule in rules) else None
