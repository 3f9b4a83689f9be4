"""The report page at full size: how long it takes to write and to load, how large it is, how fast it redraws.

Each run has one line with a jittering clock and 0.5 W of noise on steps between 110 and 260 W, and three levels of
phases. A frame is one redraw of a trace of 1280 pixels in a headless Chromium: zoomed step by step from all of the run
to 1 ms and panned on each level.

Targets: a page of at most 25 MB, 95 % of frames within 16.7 ms (60 a second), no error and no request of the page. Exit
status 1 when one is missed. Without a Chromium (on the path, or in $CHROMIUM) the page is written and not looked at.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from typing import Any

import numpy as np
from common import HERE, machine, options, progress

from powerd_analytics.report import write_report

sys.path.insert(0, str(HERE.parent / "tests" / "analytics" / "support"))

RATE_HZ = 1000
FRAME_MS, LARGEST_MB = 16.7, 25
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
    "--hide-scrollbars", "--remote-debugging-pipe", "--window-size=1280,900",
)  # fmt: skip


def find_browser() -> str | None:
    """The path of a Chromium; $CHROMIUM goes first."""
    names = (os.environ.get("CHROMIUM", ""), *NAMES)
    return next((path for name in names if name and (path := shutil.which(name))), None)


class Page:
    """One page over the DevTools pipe. ``said`` are errors and warnings of its console, ``requests`` the addresses it
    asked for."""

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
        session = {"sessionId": self._session} if self._session else {}
        data = json.dumps({"id": self._number, "method": method, "params": parameters, **session}).encode() + b"\0"
        while data:
            data = data[os.write(self._out, data) :]
        deadline = time.monotonic() + timeout_s
        while (answer := self._next(deadline)).get("id") != self._number:
            self._event(answer.get("method"), answer.get("params", {}))
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
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

    def _next(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            if not select.select([self._in], [], [], max(deadline - time.monotonic(), 0))[0]:
                raise TimeoutError("the browser does not answer")
            self._buffer += (data := os.read(self._in, 1 << 20))
            if not data:
                raise RuntimeError("the browser has ended")
        text, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(text))

    def _event(self, method: str | None, p: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.requests.append(p["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.said.append(str(p["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and p["type"] in ("error", "warning", "assert"):
            self.said.append(str(p["args"]))
        elif method == "Log.entryAdded" and p["entry"]["level"] in ("error", "warning"):
            self.said.append(p["entry"]["text"])


@contextmanager
def browser_page(path: str) -> Iterator[Page]:
    """A page in a browser of its own, which ends with it."""
    (browser_in, to_browser), (from_browser, browser_out) = os.pipe(), os.pipe()
    # The pipe's protocol: commands come in on 3, answers go out on 4.
    pipes = f'exec 8<&{browser_in} 9>&{browser_out}; exec 3<&8 4>&9; exec "$@"'
    with tempfile.TemporaryDirectory(prefix="page-", ignore_cleanup_errors=True) as directory:
        command = ["bash", "-c", pipes, "browser", path, *OPTIONS, f"--user-data-dir={directory}"]
        process = subprocess.Popen(
            command, pass_fds=(browser_in, browser_out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            yield Page(to_browser, from_browser)
        finally:
            process.kill()
            process.wait()
            for descriptor in (browser_in, to_browser, from_browser, browser_out):
                os.close(descriptor)


REDRAWS = """(async () => {
  const t = joulesReport.traces[0], whole = t.spec.length_us, count = COUNT, times = [];
  for (let i = 0; i < count; i++) {
    const span = whole * Math.pow(1e3 / whole, i / (count - 1)), middle = whole * (0.3 + 0.4 * ((i * 0.618) % 1));
    if (ZOOMED) t.setView(middle - span / 2, middle + span / 2); else t.home();
    t.cursor = middle;
    const began = performance.now();
    t.draw();
    t.context.getImageData(0, 0, 1, 1);
    times.push(performance.now() - began);
    if (i % 20 === 0) await new Promise(done => setTimeout(done));
  }
  return times;
})()"""


def make(path: Path, n: int) -> Path:
    """A run of ``n`` readings at `RATE_HZ` with a phase tree of 90 ms iterations."""
    from make_run import LineSpec, PhaseSpec, make_run

    rng, period = np.random.default_rng(1), 10**9 // RATE_HZ
    t = np.arange(n, dtype=np.int64) * period + rng.normal(0, 5000, n).astype(np.int64).clip(-period // 3, period // 3)
    watts = np.array([180.0, 260.0, 110.0])[(t // 30_000_000) % 3] + rng.normal(0, 0.5, n)
    end, step = int(t[-1]) + period, 90_000_000
    phases = [PhaseSpec("training", 0, end // step * step, {"model": "bench", "batch_size": 64})]
    for begin in range(0, min(end // step, 60_000) * step, step):
        outer = len(phases)
        phases.append(PhaseSpec("iteration", begin, begin + step, {}, 0))
        for k, name in enumerate(("forward", "backward", "update")):
            phases.append(PhaseSpec(name, begin + k * step // 3, begin + (k + 1) * step // 3, {}, outer))
    codes = {"power_mw": np.rint(watts * 1000).astype(np.int64)}
    return make_run(path, [LineSpec("gpu0.a", t_ns=t, codes=codes, period_ns=period)], phases, end_ns=end)


def look(page: Page, report: Path, frames: int) -> bool:
    """Open the page and redraw it; whether it meets the targets."""
    begin = time.perf_counter()
    page.open(report, timeout_s=240)
    is_met = not page.said and len(page.requests) == 1
    print(f"  loaded and drawn in {time.perf_counter() - begin:.1f} s; errors: {page.said}, requests: {page.requests}")
    page.run("joulesReport.traces[0].canvas.scrollIntoView()")
    for name, count, zoomed in (("zooming and panning", frames, "true"), ("whole run", max(frames // 3, 5), "false")):
        script = REDRAWS.replace("COUNT", str(count)).replace("ZOOMED", zoomed)
        median_ms, p95_ms, largest_ms = np.percentile(page.run(script, 240), [50, 95, 100])
        print(f"  redraw, {name:20} {median_ms:8.2f} ms median {p95_ms:8.2f} ms 95th {largest_ms:8.2f} ms largest")
        is_met &= bool(p95_ms <= FRAME_MS)
    return is_met


def main() -> int:
    args = options(__doc__, readings=[5_000_000, 10_000_000], frames=300)
    chromium, is_met = find_browser(), True
    print(machine())
    for n in args.readings:
        with tempfile.TemporaryDirectory(prefix="bench-report-") as directory:
            progress(f"{n} readings: making the run")
            run, report = make(Path(directory) / "run.h5", n), Path(directory) / "report.html"
            begin = time.perf_counter()
            write_report([run], report, progress=lambda share, text: progress(f"{share:.0%} {text}"))
            took, size_mb = time.perf_counter() - begin, report.stat().st_size / 1e6
            peak_mib = getrusage(RUSAGE_SELF).ru_maxrss / 1024
            print(f"{n:,} readings: {size_mb:.1f} MB, written in {took:.1f} s, peak {peak_mib:.0f} MiB")
            is_met &= size_mb <= LARGEST_MB
            if chromium is None:
                print("  no Chromium: not looked at")
                continue
            with browser_page(chromium) as page:
                is_met &= look(page, report, args.frames)
    print(f"targets: {'met' if is_met else 'MISSED'}")
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
