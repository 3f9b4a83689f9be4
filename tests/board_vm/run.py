"""`make board-vm`: powerd on a Debian 12 that boots, against the kernel's own drivers.

    python tests/board_vm/run.py build/board-vm [ACT ...]

Needs `build.sh`'s image in that directory. Without acts, all of them; the report goes to docs/results/board-vm.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vm import PORT, URL, Board, Failed, make_payload

from powerd_core.errors import PowerdError
from powerd_daemon.peer import ask

RATE_HZ = 100
SPOOLED = f"""
[server]
listen = "tcp://0.0.0.0:{PORT}"
insecure = true
spool = "/var/lib/powerd/spool"
[[source]]
kind = "sim"
rate_hz = {RATE_HZ}
"""
KILLS, POWER_CUTS = 20, 5
PROMISED_S = 1.0
"""Of readings at most are lost by a power cut (`spool_sync_s`)."""
SOON_S = 0.2
"""What readings take to the disk, and the look before a fault to the fault itself."""


class Report:
    """The transcript, and one row of the report for each thing that was looked at."""

    def __init__(self, out: Path) -> None:
        self.rows: list[str] = []
        self._file = (out / "transcript.txt").open("w")

    def tell(self, text: str) -> None:
        print(text, flush=True)
        print(text, file=self._file, flush=True)

    def found(self, what: str, result: str, *, good: bool = True) -> None:
        self.rows.append(f"| {what} | {result}{'' if good else ' **(missed)**'} |")
        self.tell(f"\n=== {what}: {result}{'' if good else ' MISSED'}\n")


def newest() -> dict[str, Any]:
    """What powerd in the machine says of itself, once it answers."""
    end_s = time.monotonic() + 120
    while True:
        try:
            answer = ask(URL, "stats", 2000)
            if answer.body["streams"] and answer.body["streams"][0]["newest"] is not None:
                return {"epoch": answer.epoch, **answer.body}
        except PowerdError:
            if time.monotonic() > end_s:
                raise
        time.sleep(0.05)


def lost_s(before: dict[str, Any]) -> float:
    """Seconds of readings that the powerd of ``before`` had, and that its spool has not. It must have an heir."""
    end_s = time.monotonic() + 60
    while not (body := ask(URL, "epochs").body)["ready"]:
        if time.monotonic() > end_s:
            raise Failed("the spool's earlier lives are not read")
        time.sleep(0.1)
    (life,) = [life for life in body["epochs"] if life["epoch"] == before["epoch"]]
    kept = life["streams"][0]["next"]
    if kept < before["spool"]["streams"][0]["safe"]:
        raise Failed(
            f"the spool has {kept} numbers, and had told that {before['spool']['streams'][0]['safe']} are safe"
        )
    return max(0, before["streams"][0]["newest"] + 1 - kept) / RATE_HZ


def configure(board: Board, text: str) -> None:
    board.sh(f"cat >/etc/powerd/powerd.toml <<'END'\n{text.strip()}\nEND")
    board.sh("systemctl restart powerd")


@contextmanager
def recording(out: Path, path: Path) -> Any:
    """`joules record` on this machine, which goes on through whatever happens to the other."""
    go_on, log = out / "recording", out / "record.log"
    go_on.touch()
    path.unlink(missing_ok=True)
    command = [Path(sys.executable).with_name("joules"), "record", "--url", URL, "--output", path]
    with log.open("w") as file:
        wait = ["--", "sh", "-c", f"while [ -e {go_on} ]; do sleep 0.2; done"]
        process = subprocess.Popen([*map(str, command), *wait], stdout=file, stderr=subprocess.STDOUT)
        time.sleep(5)
        yield
        go_on.unlink()
        if process.wait(120) not in (0, 1):
            raise Failed(log.read_text())


def install(board: Board, report: Report) -> None:
    board.sh("cp -r /mnt/payload/powerd /home/lab/powerd && chown -R lab: /home/lab/powerd")
    begun_s = time.monotonic()
    board.sh("sudo powerd/deploy/install-board.sh --wheels /mnt/payload/wheels", user="lab", limit_s=600)
    board.sh("systemctl is-active powerd", check=False)
    report.found("`install-board.sh --wheels`, without a network", f"{time.monotonic() - begun_s:.0f} s, the unit runs")


def unit(board: Board, report: Report) -> None:
    """The systemd unit: kills, a stopped process, a reboot, power cuts."""
    configure(board, SPOOLED)
    newest()
    exposure = board.sh("systemd-analyze security powerd --no-pager | tail -1", limit_s=300)
    level = float(exposure.split("powerd.service: ")[1].split()[0])
    report.found("`systemd-analyze security`", f"{level} (below 2 asked)", good=level < 2)
    run_file = board.out / "run.h5"
    with recording(board.out, run_file):
        losses = []
        for _ in range(KILLS):
            before = newest()
            board.sh("systemctl kill -s KILL --kill-whom=main powerd", quiet=True)
            while newest()["epoch"] == before["epoch"]:
                time.sleep(0.1)
            losses.append(lost_s(before))
            time.sleep(1.5)
        board.sh("systemctl show powerd -p NRestarts")
        report.found(
            f"`kill -9`, {KILLS} times", f"each time back; at most {max(losses):.2f} s of readings not in the spool",
            good=max(losses) <= PROMISED_S + SOON_S,
        )  # fmt: skip

        before, begun_s = newest(), time.monotonic()
        board.sh("systemctl kill -s STOP --kill-whom=main powerd")
        while newest()["epoch"] == before["epoch"]:
            time.sleep(0.1)
        gone_s = time.monotonic() - begun_s
        said = board.sh("journalctl -u powerd --no-pager -o cat --since -60s | grep -i watchdog")
        report.found("a stopped process", f"the watchdog ended it, and a new one answered after {gone_s:.0f} s")
        assert said

        before = newest()
        took_s = board.reboot()
        newest()
        loss_s = lost_s(before)
        report.found(
            "reboot with a spool", f"{took_s:.0f} s; {loss_s:.2f} s of readings not in the spool", good=loss_s <= SOON_S
        )

        losses = []
        for _ in range(POWER_CUTS):
            time.sleep(3)
            before = newest()
            board.cut_power()
            board.switch_on()
            newest()
            losses.append(lost_s(before))
            report.tell(f"power cut: {losses[-1]:.2f} s of readings lost")
        board.sh("journalctl --no-pager -k -o cat | grep -i -E 'recover|orphan' | head -3", check=False)
        report.found(
            f"power cut, {POWER_CUTS} times",
            f"at most {max(losses):.2f} s of readings not in the spool (1 s promised)",
            good=max(losses) <= PROMISED_S + SOON_S,
        )  # fmt: skip
    board.sh("journalctl -u powerd --no-pager -o short-monotonic -n 25")
    info = subprocess.run(
        [Path(sys.executable).with_name("joules"), "info", run_file], capture_output=True, text=True, check=False
    )
    report.tell(info.stdout + info.stderr)


ACTS: dict[str, Callable[[Board, Report], None]] = {"install": install, "unit": unit}


def main() -> None:
    out, chosen = Path(sys.argv[1]).absolute(), sys.argv[2:] or list(ACTS)
    report, begun_s = Report(out), time.monotonic()
    make_payload(out)
    board = Board(out, report.tell)
    if "install" in chosen:
        shutil.copy(out / "disk.img", out / "board.img")
    try:
        report.found("boot to a shell, under TCG", f"{board.switch_on():.0f} s")
        for name in chosen:
            act_s = time.monotonic()
            ACTS[name](board, report)
            report.tell(f"--- {name}: {time.monotonic() - act_s:.0f} s, load {os.getloadavg()[0]:.1f}")
    finally:
        board.cut_power()
    print("\n".join(report.rows), f"\n{time.monotonic() - begun_s:.0f} s")


if __name__ == "__main__":
    main()
