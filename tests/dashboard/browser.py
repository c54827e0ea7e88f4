"""A real browser: headless Chromium, driven over its DevTools protocol."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest
from websockets.sync.client import connect

REQUIRE = "PENSTOCK_REQUIRE_BROWSER"
NAMES = ("chromium", "chromium-browser", "google-chrome")
PATIENCE_S = 30.0


def find_chromium() -> str:
    """Its path; skips the test where there is none, unless a browser is required."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is not None:
        return found
    if os.environ.get(REQUIRE):
        pytest.fail(f"no Chromium ({', '.join(NAMES)}) on the path, and {REQUIRE} is set")
    pytest.skip("no Chromium on the path: apt-get install chromium (Debian)")


class Browser:
    """One page of a headless Chromium of its own. Every wait ends with an error that says what was not there."""

    def __init__(self, folder: Path, width: int = 1360, height: int = 900) -> None:
        self._opened = ExitStack()
        self._log = (folder / "chromium.log").open("wb")
        self._process = subprocess.Popen(
            [
                find_chromium(), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                "--no-first-run", "--no-default-browser-check", "--disable-background-networking",
                "--disable-component-update", "--disable-sync", "--hide-scrollbars", "--remote-debugging-port=0",
                f"--window-size={width},{height}", f"--user-data-dir={folder / 'profile'}", "about:blank",
            ],
            stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log,
        )  # fmt: skip
        try:
            address = self._page_socket(folder / "profile" / "DevToolsActivePort")
            self._socket = self._opened.enter_context(connect(address, max_size=None))
        except BaseException:
            self._end()
            raise
        self._calls = 0
        self.messages: list[dict[str, Any]] = []
        """What the page said on its console, and what went wrong in it."""
        self.call("Runtime.enable")
        self.call("Log.enable")
        self.call("Page.enable")

    def _page_socket(self, port_file: Path) -> str:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            assert self._process.poll() is None, f"Chromium ended: {Path(self._log.name).read_text()[-2000:]}"
            if port_file.exists() and len(lines := port_file.read_text().splitlines()) >= 2:
                with urllib.request.urlopen(f"http://127.0.0.1:{lines[0]}/json/list", timeout=10) as answer:
                    pages = [target for target in json.load(answer) if target["type"] == "page"]
                if pages:
                    return str(pages[0]["webSocketDebuggerUrl"])
            time.sleep(0.05)
        raise TimeoutError(f"Chromium did not open a page within {PATIENCE_S:g} s")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the DevTools protocol, and its result."""
        self._calls += 1
        self._socket.send(json.dumps({"id": self._calls, "method": method, "params": parameters}))
        deadline = time.monotonic() + PATIENCE_S
        while True:
            message = json.loads(self._socket.recv(timeout=max(0.0, deadline - time.monotonic())))
            if message.get("id") == self._calls:
                assert "error" not in message, f"{method}: {message['error']}"
                result: dict[str, Any] = message["result"]
                return result
            if message.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
                self.messages.append(message["params"])

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, f"{expression}: {result['exceptionDetails']}"
        return result["result"].get("value")

    def go(self, url: str) -> None:
        self.call("Page.navigate", url=url)
        self.wait_for("document.readyState === 'complete'")

    def text(self, selector: str) -> str:
        """What a person reads there: the rendered text."""
        return str(self.evaluate(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    def wait_for(self, expression: str, timeout_s: float = PATIENCE_S) -> Any:
        """The first truthy value of an expression in the page."""
        deadline = time.monotonic() + timeout_s
        while not (value := self.evaluate(expression)):
            if time.monotonic() > deadline:
                shown = self.evaluate("document.body.innerText")
                raise TimeoutError(f"not within {timeout_s:g} s: {expression}; the page shows:\n{shown}")
            time.sleep(0.02)
        return value

    def wait_text(self, selector: str, part: str, timeout_s: float = PATIENCE_S) -> str:
        """The rendered text there, once it contains ``part``."""
        at = f"document.querySelector({json.dumps(selector)})"
        return str(self.wait_for(f"({at}?.innerText ?? '').includes({json.dumps(part)}) && {at}.innerText", timeout_s))

    def screenshot(self, path: Path, *, dark: bool = False, height: int = 0) -> None:
        """A picture of the page's upper part, or of so many pixels of its height."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        clip = {}
        if height:
            width = self.evaluate("innerWidth")
            clip = {"clip": {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}}
        taken = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=bool(height), **clip)
        path.write_bytes(base64.b64decode(taken["data"]))

    def _end(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)
        self._log.close()

    def close(self) -> None:
        self._opened.close()
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
