"""A browser without a window, driven over the pipe of the DevTools protocol."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--hide-scrollbars")
PATIENCE_S = 60.0
TO_BROWSER, FROM_BROWSER = 3, 4
BESIDE = 20
"""Descriptors of ours begin here, out of the way of those two."""


class Browser:
    """One tab. What the page says on its console, and what it throws, is kept in ``complaints``."""

    def __init__(self, binary: str, home: Path) -> None:
        theirs, self._write = os.pipe()
        self._read, back = os.pipe()
        given = [fcntl.fcntl(end, fcntl.F_DUPFD, BESIDE) for end in (theirs, back)]

        def pass_pipes() -> None:
            for end, number in zip(given, (TO_BROWSER, FROM_BROWSER), strict=True):
                os.dup2(end, number)

        with (home / "log").open("wb") as log:
            command = [binary, *FLAGS, f"--user-data-dir={home}", "about:blank"]
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stderr=log, stdout=log, close_fds=False, preexec_fn=pass_pipes
            )
        for end in (theirs, back, *given):
            os.close(end)
        self._rest, self._number, self._session = b"", 0, ""
        self.complaints: list[str] = []
        self.requests: list[str] = []
        target = next(each for each in self._call("Target.getTargets")["targetInfos"] if each["type"] == "page")
        attached = self._call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        message |= {"sessionId": self._session} if self._session else {}
        os.write(self._write, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + PATIENCE_S
        while True:
            answer = self._next(until)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result
            self._hear(answer)

    def _next(self, until: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], max(until - time.monotonic(), 0))
            data = os.read(self._read, 1 << 20) if ready else b""
            assert data, "the browser does not answer"
            self._rest += data
        first, self._rest = self._rest.split(b"\0", 1)
        message: dict[str, Any] = json.loads(first)
        return message

    def _hear(self, event: dict[str, Any]) -> None:
        method, told = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(told["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled":
            self.complaints.append(json.dumps(told["args"]))
        elif method == "Log.entryAdded":
            self.complaints.append(told["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(told["request"]["url"])

    def ask(self, expression: str) -> Any:
        """What an expression gives, awaited if it is a promise."""
        answer = self._call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def open(self, page: Path, width: int = 1280, height: int = 900, ratio: float = 1.0) -> None:
        """Show a file, and wait until it is drawn."""
        size = {"width": width, "height": height, "deviceScaleFactor": ratio, "mobile": False}
        self._call("Emulation.setDeviceMetricsOverride", **size)
        self.complaints.clear()
        self.requests.clear()
        self._call("Page.navigate", url=page.resolve().as_uri())
        until = time.monotonic() + PATIENCE_S
        while self.ask("document.readyState") != "complete":
            assert time.monotonic() < until
        self.drawn()

    def drawn(self) -> None:
        """Wait until the time lines stand and two frames have passed."""
        frames = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
        ready = "(async () => { while (data.points.length && !shown.view) await FRAMES; await FRAMES; })()"
        self.ask(ready.replace("FRAMES", frames))

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """``mouseMoved``, ``mousePressed``, ``mouseReleased`` or ``mouseWheel`` at a place of the window."""
        self._call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)
        self.drawn()

    def click(self, x: float, y: float) -> None:
        """Press the left button and let it go."""
        for kind in ("mousePressed", "mouseReleased"):
            self.mouse(kind, x, y, button="left", clickCount=1)

    def key(self, key: str) -> None:
        """Press a key."""
        text = {"text": key} if len(key) == 1 else {}
        self._call("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self._call("Input.dispatchKeyEvent", type="keyUp", key=key)
        self.drawn()

    def prefer(self, scheme: str) -> None:
        """The user's wish, ``light`` or ``dark``."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self._call("Emulation.setEmulatedMedia", features=features)

    def screenshot(self, file: Path, full: bool = False) -> None:
        """What is seen, or the whole page, as PNG."""
        answer = self._call("Page.captureScreenshot", format="png", captureBeyondViewport=full)
        file.write_bytes(base64.b64decode(answer["data"]))

    def pdf(self, file: Path) -> None:
        """The page as it is printed."""
        answer = self._call("Page.printToPDF", printBackground=True)
        file.write_bytes(base64.b64decode(answer["data"]))

    def close(self) -> None:
        """End the browser."""
        self._session = ""
        self._call("Browser.close")
        self._process.wait(PATIENCE_S)
        os.close(self._write)
        os.close(self._read)


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser for all tests; skipped where none is installed."""
    binary = next(filter(None, map(shutil.which, NAMES)), None)
    if binary is None:
        pytest.skip("no Chromium here: apt-get install chromium")
    opened = Browser(binary, tmp_path_factory.mktemp("browser"))
    yield opened
    opened.close()
