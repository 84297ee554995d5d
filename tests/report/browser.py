"""A page in headless Chromium, driven through the DevTools protocol.

Only what the tests ask: open a file at a width and in a colour scheme, collect whatever the page asks the
network for and whatever goes wrong in it, move the pointer, press keys, and evaluate expressions.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from types import TracebackType
from typing import Any

import aiohttp

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
LIMIT_S = 600.0


def installed() -> str | None:
    """Return the path of a Chromium, or None."""
    return next((found for name in NAMES if (found := shutil.which(name)) is not None), None)


class Page:
    """An open page; ``requests``: the addresses it asked for, ``problems``: errors and warnings."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._number = 0
        self.requests: list[str] = []
        self.problems: list[str] = []
        self._loaded = False

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol and return its result; events that come meanwhile are noted."""
        self._number += 1
        await self._socket.send_json({"id": self._number, "method": method, "params": parameters})
        while True:
            message = await self._socket.receive_json()
            if message.get("id") == self._number:
                assert "error" not in message, message
                result: dict[str, Any] = message["result"]
                return result
            self._note(message)

    def _note(self, message: dict[str, Any]) -> None:
        parameters = message.get("params", {})
        match message.get("method"):
            case "Page.loadEventFired":
                self._loaded = True
            case "Network.requestWillBeSent":
                self.requests.append(parameters["request"]["url"])
            case "Runtime.exceptionThrown":
                self.problems.append(str(parameters["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if parameters["type"] in ("error", "warning", "assert"):
                self.problems.append(str(parameters["args"]))
            case "Log.entryAdded" if parameters["entry"]["level"] in ("error", "warning"):
                self.problems.append(str(parameters["entry"]))

    async def open(self, path: Path | str, *, width: int = 1280, dark: bool = False) -> None:
        """Open a file, or a URL, and wait until it is loaded."""
        for domain in ("Page", "Network", "Runtime", "Log"):
            await self.call(f"{domain}.enable")
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=900, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])
        # The load of the empty page that was there before must not be taken for this one's.
        await self.until("document.readyState === 'complete'")
        self._loaded = False
        await self.call("Page.navigate", url=path if isinstance(path, str) else path.as_uri())
        while not self._loaded:
            self._note(await self._socket.receive_json())

    async def painted(self) -> None:
        """Wait until the page has been laid out and drawn."""
        await self.call(
            "Runtime.evaluate",
            expression="new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))",
            awaitPromise=True,
        )

    async def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression."""
        found = await self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    async def until(self, expression: str) -> None:
        """Wait until a JavaScript expression is true."""
        while not await self.evaluate(expression):
            await asyncio.sleep(0.05)

    async def screenshot(self, path: Path) -> None:
        """Write a picture of the whole page, as PNG."""
        found = await self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))

    async def press(self, key: str) -> None:
        """Press and release a key."""
        for kind in ("keyDown", "keyUp"):
            await self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    async def point_at(self, x: float, y: float) -> None:
        """Move the pointer to a place of the window."""
        await self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)


class Browser:
    """A running Chromium with a profile of its own, which ends with the context."""

    def __init__(self, program: str, profile: Path) -> None:
        self._profile = profile
        arguments = [
            "--headless", "--disable-gpu", "--no-first-run", "--disable-background-networking",
            "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
            f"--user-data-dir={profile}", "--remote-debugging-port=0", "about:blank",
        ]  # fmt: skip
        if os.geteuid() == 0:
            arguments.insert(0, "--no-sandbox")  # it refuses to start as root with one
        self._process = subprocess.Popen(
            [program, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.wait(LIMIT_S)

    async def _port(self) -> int:
        said = self._profile / "DevToolsActivePort"
        async with asyncio.timeout(LIMIT_S):
            while True:
                assert self._process.poll() is None, f"Chromium ended with {self._process.returncode}"
                with contextlib.suppress(FileNotFoundError):
                    first, _, rest = said.read_text().partition("\n")
                    if rest:
                        return int(first)
                await asyncio.sleep(0.05)

    @contextlib.asynccontextmanager
    async def page(self) -> AsyncIterator[Page]:
        """Open an empty page."""
        address = f"http://127.0.0.1:{await self._port()}/json/new?about:blank"
        async with (
            asyncio.timeout(LIMIT_S),
            aiohttp.ClientSession() as session,
            session.put(address) as answer,
            session.ws_connect((await answer.json())["webSocketDebuggerUrl"], max_msg_size=0) as socket,
        ):
            yield Page(socket)
