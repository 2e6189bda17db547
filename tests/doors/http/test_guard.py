"""Who may use the HTTP door, and where it may be opened."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.doors.http.door import AT, TOKEN, asking, echo, open_door, tokens, told
from trio_envserve import ConfigError
from trio_envserve.doors.http import HttpLimits, open_http_door

CLOSED = [
    ("POST", "/v1/rollouts"), ("POST", "/v1/batches"), ("POST", "/run"), ("GET", AT),
    ("DELETE", AT), ("GET", "/v1/openapi.json"), ("GET", "/v1/running"), ("GET", "/v1/events"),
    ("GET", "/v1/stack?number=0"), ("GET", "/metrics"),
]  # fmt: skip


async def test_callers_must_show_a_token_at_all_but_the_probes_and_the_page(tmp_path: Path):
    path = tokens(tmp_path, f"{'x' * 32}\n\n{TOKEN}\r\n")
    async with open_door(echo, token_file=path) as door, asking(door) as client:
        for shown in (None, "Bearer", f"Bearer {TOKEN}x", f"Basic {TOKEN}", f"Bearer \xe9{TOKEN}"):
            headers = {} if shown is None else {"authorization": shown.encode("latin-1")}
            for method, where in CLOSED:
                answer = await client.request(method, where, headers=headers)
                assert told(answer) == (401, "unauthorized"), where
                assert answer.headers["www-authenticate"].startswith("Bearer")
        headers = {"authorization": f"bearer {TOKEN}".encode()}
        for method, where in (*CLOSED, ("GET", "/readyz"), ("GET", "/livez"), ("GET", "/")):
            if where == "/v1/events":  # which has no end
                continue
            bare = {} if where in ("/readyz", "/livez", "/") else headers
            answer = await client.request(method, where, headers=bare)
            assert answer.status_code != 401, where


@pytest.mark.parametrize(
    ("text", "mode", "why"),
    [
        (TOKEN, 0o644, "chmod 600"),
        (TOKEN, 0o620, "chmod 600"),
        ("", 0o600, "holds no token"),
        ("short", 0o600, "line 1"),
        (f"{TOKEN}\nwith a space in it", 0o600, "line 2"),
    ],
)
async def test_file_that_is_no_secret_is_refused(tmp_path: Path, text: str, mode: int, why: str):
    with pytest.raises(ConfigError, match=why):
        async with open_http_door("memory:x", token_file=tokens(tmp_path, text, mode)):
            pass


async def test_what_is_no_file_of_tokens_is_refused(tmp_path: Path):
    os.mkfifo(tmp_path / "fifo", 0o600)
    for name in ("missing", "fifo", "."):
        with pytest.raises(ConfigError, match=str(tmp_path)):
            async with open_http_door("memory:x", token_file=tmp_path / name):
                pass


WRONG: list[tuple[dict[str, Any], str]] = [
    *(({"bind": bind}, "--token-file")
      for bind in ("0.0.0.0:0", "*:0", "[::]:0", "example.com:0")),
    *(({"bind": bind}, "HOST:PORT expected")
      for bind in ("127.0.0.1", "127.0.0.1:x", "http://127.0.0.1:1", "")),
    ({"hosts": ["a.example:80"]}, "without a port"),
    ({"run_failures": "row"}, "run_failures is problems or rows, not 'row'"),
    ({"run_execution_s": -1.0}, "run_execution_s"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "why"), WRONG)
async def test_wrong_option_is_refused(options: dict[str, Any], why: str):
    with pytest.raises(ConfigError, match=why):
        async with open_http_door("memory:x", **options):
            pass


def test_a_limit_that_is_none_is_refused():
    with pytest.raises(ConfigError, match=r"HttpLimits\.calls"):
        HttpLimits(calls=0)


HOSTS = {
    "127.0.0.1": True, "LOCALHOST:1": True, "[::1]:80": True, "192.0.2.7": True,
    "rollouts.example": True, "rollouts.example.:443": True, "other.example": False,
    "localhost@evil.example": False, "": False,
}  # fmt: skip


async def test_door_at_every_interface_knows_addresses_and_the_names_it_was_told():
    options: dict[str, Any] = {"bind": "0.0.0.0:0", "insecure": True, "hosts": ["rollouts.example"]}
    async with open_door(echo, **options) as door, asking(door) as client:
        for host, known in HOSTS.items():
            answer = await client.get("/livez", headers={"host": host})
            assert answer.status_code == (200 if known else 421), host
            if known:
                headers = {"host": host, "origin": f"https://{host}"}
                assert (await client.get("/livez", headers=headers)).status_code == 200
