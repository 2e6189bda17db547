"""Debian's chromium, headless, driven by its own protocol over two pipes: no other program is
needed.  A module that uses it has :data:`IN_A_BROWSER` among its marks: it is skipped where
chromium is missing (in Debian: the package ``chromium``), and runs in a session of nox of its
own."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import trio

CHROMIUM = shutil.which("chromium") or ""

IN_A_BROWSER = [
    pytest.mark.slow,
    pytest.mark.browser,
    pytest.mark.skipif(not CHROMIUM, reason="chromium is not installed"),
]

_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-extensions", "--disable-background-networking", "--remote-debugging-pipe",
    "--js-flags=--expose-gc",
)  # fmt: skip


class Browser:
    """One page of it."""

    def __init__(self, writing: trio.lowlevel.FdStream, reading: trio.lowlevel.FdStream) -> None:
        self._writing, self._reading = writing, reading
        self._rest = b""
        self._numbers = count(1)
        self._session = ""
        self.said: list[str] = []
        """What its console has said, and what its scripts have raised."""
        self.asked: list[str] = []
        """The addresses that it has asked for anything, data in the page apart."""

    async def begin(self) -> None:
        target = await self.send("Target.createTarget", url="about:blank")
        found = await self.send("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = found["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self.send(f"{domain}.enable")

    async def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Ask it to do something; what it answers."""
        number = next(self._numbers)
        asked = {"id": number, "method": method, "params": parameters}
        if self._session:
            asked["sessionId"] = self._session
        await self._writing.send_all(json.dumps(asked).encode() + b"\0")
        while True:
            told = await self._next()
            if told.get("id") == number:
                assert "error" not in told, told
                answer: dict[str, Any] = told["result"]
                return answer

    async def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            piece = await self._reading.receive_some()
            assert piece, "chromium has ended"
            self._rest += piece
        one, _, self._rest = self._rest.partition(b"\0")
        told: dict[str, Any] = json.loads(one)
        method, about = told.get("method"), told.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.said.append(json.dumps(about["exceptionDetails"]))
        elif method == "Log.entryAdded" and about["entry"]["level"] == "error":
            self.said.append(json.dumps(about["entry"]))
        elif method == "Network.requestWillBeSent":
            url = about["request"]["url"]
            self.asked += [] if url.startswith("data:") else [url]
        return told

    async def run(self, script: str) -> Any:
        """The value of an expression on the page."""
        found = await self.send(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    async def until(self, script: str) -> Any:
        """Wait until an expression is true there; it may raise while the page loads."""
        script = f"(() => {{ try {{ return {script} }} catch {{ return false }} }})()"
        while not (value := await self.run(script)):
            await trio.sleep(0.05)
        return value

    async def look(self, url: str, *, width: int = 1280, dark: bool = False) -> None:
        """Open a page, on a screen of this width."""
        await self.screen(width)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.send("Emulation.setEmulatedMedia", features=[scheme])
        await self.send("Page.navigate", url=url)

    async def screen(self, width: int) -> None:
        await self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1,
            mobile=False,
        )  # fmt: skip

    async def key(self, name: str) -> None:
        """Press a key, such as Tab."""
        codes = {"Tab": 9, "Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowRight": 39}
        text = {"text": "\r"} if name == "Enter" else {}
        about = {"key": name, "code": name, "windowsVirtualKeyCode": codes[name]}
        await self.send("Input.dispatchKeyEvent", type="keyDown", **about, **text)
        await self.send("Input.dispatchKeyEvent", type="keyUp", **about)

    async def heap_bytes(self) -> int:
        await self.send("HeapProfiler.collectGarbage")
        return int((await self.send("Runtime.getHeapUsage"))["usedSize"])


@asynccontextmanager
async def open_browser(folder: Path) -> AsyncIterator[Browser]:
    """A browser whose files are in this folder."""
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    flags = " ".join(_FLAGS)
    script = f'exec "$0" {flags} --user-data-dir="$1" about:blank 3<&{theirs_in} 4>&{theirs_out}'
    with (folder / "chromium.log").open("wb") as log:
        process = await trio.lowlevel.open_process(
            ["bash", "-c", script, CHROMIUM, str(folder / "profile")],
            pass_fds=(theirs_in, theirs_out), stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    os.close(theirs_in)
    os.close(theirs_out)
    try:
        async with trio.lowlevel.FdStream(ours_out) as out, trio.lowlevel.FdStream(ours_in) as back:
            browser = Browser(out, back)
            await browser.begin()
            yield browser
    finally:
        with trio.CancelScope(shield=True):
            os.killpg(process.pid, 9)
            await process.wait()
