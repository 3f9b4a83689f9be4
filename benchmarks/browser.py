"""A headless Chromium over its DevTools pipe: pages opened from files, scripts run in them, pictures taken."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
    "--hide-scrollbars", "--remote-debugging-pipe",
)  # fmt: skip


def find_browser() -> str | None:
    """The path of a Chromium; $CHROMIUM goes first."""
    return next((found for n in (os.environ.get("CHROMIUM", ""), *NAMES) if n and (found := shutil.which(n))), None)


class Page:
    """One page. ``said`` are errors and warnings of its console, ``requests`` the addresses it asked for."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._out, self._in = to_browser, from_browser
        self._buffer, self._number, self._session = b"", 0, ""
        self.said: list[str] = []
        self.requests: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, timeout_s: float = 60.0, **parameters: Any) -> dict[str, Any]:
        """One command and its answer. Raises `RuntimeError` for an error, `TimeoutError`."""
        self._number += 1
        number = self._number
        message = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        left = json.dumps(message).encode() + b"\0"
        while left:
            left = left[os.write(self._out, left) :]
        deadline = time.monotonic() + timeout_s
        while True:
            answer = self._next(deadline)
            if answer.get("id") != number:
                self._event(answer)
            elif "error" in answer:
                raise RuntimeError(f"{method}: {answer['error']}")
            else:
                return dict(answer["result"])

    def open(self, path: Path, timeout_s: float = 60.0) -> None:
        """Open a report and wait until its traces are drawn."""
        self.call("Page.navigate", url=path.absolute().as_uri())
        deadline = time.monotonic() + timeout_s
        while self.run("document.documentElement?.dataset.ready || ''") not in ("yes", "failed"):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{path} was not ready in {timeout_s} s: {self.said}")
            time.sleep(0.05)

    def run(self, script: str, timeout_s: float = 60.0) -> Any:
        """The value of an expression, a promise's once it is there."""
        answer = self.call("Runtime.evaluate", timeout_s, expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(str(answer["exceptionDetails"].get("exception", answer["exceptionDetails"])))
        return answer["result"].get("value")

    def picture(self, path: Path, width: int = 1280, height: int = 900, *, scheme: str = "light") -> None:
        """A PNG of the first ``height`` pixels from where the page is scrolled to."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.run("new Promise(done => setTimeout(done, 200))")
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def _next(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            if not select.select([self._in], [], [], max(deadline - time.monotonic(), 0))[0]:
                raise TimeoutError("the browser does not answer")
            data = os.read(self._in, 1 << 20)
            if not data:
                raise RuntimeError("the browser has ended")
            self._buffer += data
        text, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(text))

    def _event(self, event: dict[str, Any]) -> None:
        method, p = event.get("method"), event.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(p["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.said.append(str(p["exceptionDetails"].get("exception", {}).get("description", p["exceptionDetails"])))
        elif method == "Runtime.consoleAPICalled" and p["type"] in ("error", "warning", "assert"):
            self.said.append(" ".join(str(a.get("value", a.get("description"))) for a in p["args"]))
        elif method == "Log.entryAdded" and p["entry"]["level"] in ("error", "warning"):
            self.said.append(p["entry"]["text"])


@contextmanager
def browser_page(path: str) -> Iterator[Page]:
    """A page in a browser of its own, which ends with it."""
    to_browser, from_browser = os.pipe(), os.pipe()

    def descriptors() -> None:
        # The pipe's protocol: commands come in on 3, answers go out on 4.
        at, to = os.dup(to_browser[0]), os.dup(from_browser[1])
        os.dup2(at, 3)
        os.dup2(to, 4)

    with tempfile.TemporaryDirectory(prefix="page-", ignore_cleanup_errors=True) as directory:
        process = subprocess.Popen(
            [path, *OPTIONS, f"--user-data-dir={directory}", "--window-size=1280,900"],
            preexec_fn=descriptors,  # noqa: PLW1509 - two dup2, and nothing else knows descriptors 3 and 4
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser[0])
        os.close(from_browser[1])
        try:
            yield Page(to_browser[1], from_browser[0])
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)
            os.close(to_browser[1])
            os.close(from_browser[0])
