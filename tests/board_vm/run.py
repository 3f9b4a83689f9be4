"""`make board-vm`: powerd on a Debian 12 that boots, against the kernel's own drivers.

    [ARCH=arm64] python tests/board_vm/run.py DIRECTORY [ACT ...]

Needs `build.sh`'s image in that directory. Two machines run side by side, each with acts of its own. An act that fails
is reported, and the next one follows. Without acts, all of them; the report goes to docs/results/board-vm (of arm64 the
transcript alone).
"""

from __future__ import annotations

import csv
import io
import os
import re
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vm import ARCH, REPOSITORY, Board, Failed, make_payload

from powerd_analytics import read_run
from powerd_analytics.runs.signals import load_signal
from powerd_core.errors import PowerdError
from powerd_core.model import BAD
from powerd_core.text import printable
from powerd_daemon.peer import ask

RATE_HZ = 100
GUEST = "/home/lab/powerd/tests/board_vm/guest"
PYTHON = "/opt/powerd/bin/python"
PATTERNS = 1000
MINUTES = float(os.environ.get("MINUTES", "10"))
KILLS, POWER_CUTS = 20, 5
PROMISED_S = 1.0
"""Of readings at most are lost by a power cut (`spool_sync_s`)."""
SOON_S = 0.2
"""What readings take to the disk, and the look before a fault to the fault itself."""


class Report:
    """The transcript of one machine, and one row of the report for each thing that was looked at."""

    def __init__(self, path: Path) -> None:
        self.rows: list[tuple[str, str, int]] = []
        self.missed = 0
        self.path = path
        self._file = path.open("w")

    def tell(self, text: str) -> None:
        """What names a folder of this machine, such as a traceback, names it from the repository on."""
        text = text.replace(f"{REPOSITORY}/", "").replace(f"{Path.home()}/", "~/")
        print(text, flush=True)
        print(text, file=self._file, flush=True)

    def close(self) -> None:
        self._file.close()

    def found(self, what: str, result: str, *, good: bool = True) -> None:
        self.missed += not good
        self.rows.append((what, result, int(not good)))
        self.tell(f"\n=== {what}: {result}{'' if good else ' MISSED'}\n")


def url(port: int) -> str:
    return f"tcp://127.0.0.1:{port}"


def server(board: Board) -> str:
    """The table of powerd's configuration with which it can be reached from here, and spools."""
    return f'[server]\nlisten = "tcp://0.0.0.0:{board.port}"\ninsecure = true\nspool = "/var/lib/powerd/spool"\n\n'


def simulated(board: Board) -> str:
    return f'{server(board)}[[source]]\nkind = "sim"\nrate_hz = {RATE_HZ}'


def wait_for(what: str, condition: Callable[[], object], limit_s: float = 300) -> None:
    """Raises `Failed` when it is not so within ``limit_s``."""
    end_s = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end_s:
            raise Failed(f"{what}: not within {limit_s:g} s")
        time.sleep(0.1)


def newest(port: int) -> dict[str, Any]:
    """What a powerd in a machine says of itself, once it answers and has readings."""
    body: dict[str, Any] = {}

    def has_readings() -> bool:
        with suppress(PowerdError):
            answer = ask(url(port), "stats", 2000)
            body.update({"epoch": answer.epoch, **answer.body})
        return bool(body) and bool(body["streams"]) and body["streams"][0]["newest"] >= 0

    wait_for("powerd answers", has_readings)
    return body


class Watcher(threading.Thread):
    """Asks powerd again and again how far it is, until it has an heir: ``last`` is what it said last."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.port, self.last = port, newest(port)
        self.start()

    def run(self) -> None:
        while True:
            with suppress(PowerdError):  # it is slow, or gone
                answer = ask(url(self.port), "stats", 1000)
                if answer.epoch != self.last["epoch"]:
                    return
                self.last = {"epoch": answer.epoch, **answer.body}


@dataclass(frozen=True)
class Loss:
    """What a powerd had and its spool has not, in seconds of readings, and what it had said would be lost."""

    seconds: float
    told_s: float

    @property
    def is_excused(self) -> bool:
        """Whether it is no more than what is promised, or than what powerd had told on a disk that is slower."""
        return self.seconds <= max(PROMISED_S, self.told_s) + SOON_S


def worst(losses: list[Loss]) -> str:
    """The greatest loss, for the report."""
    late = [loss for loss in losses if loss.told_s > PROMISED_S]
    slow = f" (told of a slow disk: up to {max(loss.told_s for loss in late):.1f} s, {len(late)} times)" if late else ""
    return f"at most {max(loss.seconds for loss in losses):.2f} s of readings not in the spool{slow}"


def loss_of(port: int, before: dict[str, Any]) -> Loss:
    """What was lost of the powerd of ``before``. It must have an heir.

    A life of which nothing is in the spool is not listed there: it ended before anything of it was written.
    """
    body: dict[str, Any] = {}

    def is_read() -> bool:
        with suppress(PowerdError):
            body.update(ask(url(port), "epochs").body)
        return body.get("ready", False)

    wait_for("the spool's earlier lives are read", is_read)
    kept = sum(life["streams"][0]["next"] for life in body["epochs"] if life["epoch"] == before["epoch"])
    safe, newest_number = before["spool"]["streams"][0]["safe"], before["streams"][0]["newest"]
    if kept < safe:
        raise Failed(f"the spool has {kept} numbers, and had told that {safe} are safe")
    # A number is a frame, which holds as many scans as came in a block.
    scans_each = before["streams"][0]["scans"] / (newest_number + 1)
    return Loss(max(0, newest_number + 1 - kept) * scans_each / RATE_HZ, before["spool"]["behind_s"])


def configure(board: Board, text: str) -> None:
    board.sh(f"cat >/etc/powerd/powerd.toml <<'END'\n{text.strip()}\nEND")
    board.sh("systemctl restart powerd")  # waits until it is ready: the one before must not answer for it


@contextmanager
def recording(path: Path, port: int) -> Any:
    """`joules record` on this machine, which goes on through whatever happens to the other."""
    go_on, log = path.with_suffix(".going-on"), path.with_suffix(".log")
    go_on.touch()
    path.unlink(missing_ok=True)
    command = [Path(sys.executable).with_name("joules"), "record", "--overwrite", "--url", url(port), "--output", path]
    with log.open("w") as file:
        # The run keeps its command: without a folder of this machine.
        wait = ["--", "sh", "-c", f"while [ -e {go_on.name} ]; do sleep 0.2; done"]
        process = subprocess.Popen([*map(str, command), *wait], cwd=path.parent, stdout=file, stderr=subprocess.STDOUT)

        def asks() -> object:
            if process.poll() is not None:
                raise Failed(log.read_text())
            return newest(port)["clients"]

        wait_for("the recorder asks for readings", asks)
        try:
            yield
        finally:
            go_on.unlink()
    try:
        status = process.wait(600)
    finally:
        process.kill()
    if status not in (0, 1):
        raise Failed(log.read_text())


def install(board: Board, report: Report) -> None:
    board.sh("cp -r /mnt/payload/powerd /home/lab/powerd && chown -R lab: /home/lab/powerd")
    begun_s = time.monotonic()
    board.sh("sudo powerd/deploy/install-board.sh --wheels /mnt/payload/wheels", user="lab", limit_s=600)
    board.sh("systemctl is-active powerd")
    what = f"{board.name}: `install-board.sh --wheels`, without a network"
    report.found(what, f"{time.monotonic() - begun_s:.0f} s, the unit runs")


def unit(board: Board, report: Report) -> None:
    """The systemd unit: kills, a stopped process, a reboot."""
    configure(board, simulated(board))
    newest(board.port)
    exposure = board.sh("systemd-analyze security powerd --no-pager | tail -1")
    level = float(exposure.split("powerd.service: ")[1].split()[0])
    report.found("`systemd-analyze security`", f"{level} (below 2 asked)", good=level < 2)
    run_file = board.out / "run.h5"

    def wait_for_heir(before: dict[str, Any]) -> None:
        wait_for("a new powerd", lambda: newest(board.port)["epoch"] != before["epoch"])

    with recording(run_file, board.port):
        losses = []
        for _ in range(KILLS):
            watcher = Watcher(board.port)
            board.sh("sleep 1; systemctl kill -s KILL --kill-whom=main powerd", quiet=True)
            wait_for_heir(watcher.last)
            watcher.join()
            losses.append(loss_of(board.port, watcher.last))
        board.sh("systemctl show powerd -p NRestarts")
        report.found(
            f"`kill -9`, {KILLS} times", f"each time back; {worst(losses)}",
            good=all(loss.is_excused for loss in losses),
        )  # fmt: skip

        before, begun_s = newest(board.port), time.monotonic()
        board.sh("systemctl kill -s STOP --kill-whom=main powerd")
        wait_for_heir(before)
        gone_s = time.monotonic() - begun_s
        said = board.sh("journalctl -u powerd --no-pager -o cat -n 200 | grep -i watchdog")
        report.found(
            "a stopped process", f"the watchdog ended it, and a new one answered after {gone_s:.0f} s", good=bool(said)
        )

        before = newest(board.port)
        took_s = board.reboot()
        newest(board.port)
        loss = loss_of(board.port, before)
        report.found("reboot with a spool", f"{took_s:.0f} s; {worst([loss])}", good=loss.seconds <= SOON_S)

    board.sh("journalctl -u powerd --no-pager -o cat -n 25")
    tell_run(run_file, report)


def power(board: Board, report: Report) -> None:
    """Power cuts: the machine is killed."""
    configure(board, simulated(board))
    newest(board.port)
    run_file, losses = board.out / "power.h5", []
    with recording(run_file, board.port):
        for _ in range(POWER_CUTS):
            watcher = Watcher(board.port)
            time.sleep(3)
            board.cut_power()
            board.switch_on()
            newest(board.port)
            watcher.join()
            losses.append(loss_of(board.port, watcher.last))
            report.tell(f"power cut: {worst(losses[-1:])}")
    board.sh("journalctl --no-pager -k -o cat | grep -i -E 'recover|orphan' | head -3", check=False)
    report.found(
        f"power cut, {POWER_CUTS} times",
        f"{worst(losses)} ({PROMISED_S:g} s promised)",
        good=all(loss.is_excused for loss in losses),
    )
    tell_run(run_file, report)


def tell_run(run_file: Path, report: Report) -> None:
    """What the recording that went on meanwhile says of its losses."""
    command = [Path(sys.executable).with_name("joules"), "info", run_file.name]
    said = subprocess.run(command, cwd=run_file.parent, capture_output=True, text=True, check=False)
    report.tell(f"$ joules info {run_file.name}\n{said.stdout}{said.stderr}")


BEGIN_S = 120
"""So long may a program in the machine take until it is ready."""


def in_background(name: str, command: str, ready: str) -> str:
    """Runs something of `guest` until the machine ends; what it says goes to /tmp/NAME.log. Waits for the word by which
    it says that it is ready."""
    log = f"/tmp/{name}.log"
    wait = f"for i in $(seq {BEGIN_S * 2}); do grep -q {ready} {log} && break; sleep 0.5; done"
    return f"cd {GUEST}; : >{log}; setsid {PYTHON} {command} >{log} 2>&1 & {wait}; cat {log}; grep -q {ready} {log}"


def bus_of(board: Board, name: str) -> int:
    """The number of the I2C adapter with this name."""
    return int(board.until(f"grep -l '{name}' /sys/bus/i2c/devices/i2c-*/name").split("i2c-")[1].split("/")[0])


def play_stub(board: Board) -> int:
    """i2c-stub with an INA219 of 6 W and an INA226 of 2.4 W. Returns its bus."""
    board.sh("modprobe i2c-dev; modprobe i2c-stub chip_addr=0x40,0x41,0x45")
    bus = bus_of(board, "SMBus stub")
    board.sh(in_background("stub", f"stub.py {bus} INA219@0x40=2500,0x5dc2 INA226@0x41=4000,9600", "ready"))
    return bus


def smbus(board: Board, report: Report) -> None:
    """An adapter that knows SMBus only (i2c-stub), and the kernel's driver against ours."""
    board.sh("systemctl stop powerd")
    bus = play_stub(board)
    refused = board.sh(f"powerd scan {bus}", user="lab", check=False)
    report.found(
        "`powerd scan` by a user who is in no group", "refused, with the remedy", good="usermod -aG i2c" in refused
    )
    board.sh("usermod -aG i2c lab; ls -l /dev/i2c-*")
    found = board.sh(f"powerd scan {bus}", user="lab")
    report.found(
        "`powerd scan` on i2c-stub, in group i2c", "INA219 and INA226",
        good=all(f"{chip}" in found for chip in ("INA219", "INA226", "12.000 V")),
    )  # fmt: skip
    sensors = 'sensors = [{ name = "a", address = 0x40 }, { name = "b", address = 0x41, chip = "INA226" }]'
    source = f'kind = "ina"\nname = "i2c"\nbus = {bus}\nrate_hz = 20\n{sensors}'
    configure(board, f"{server(board)}[[source]]\n{source}")
    newest(board.port)
    run_file = board.out / "smbus.h5"
    with recording(run_file, board.port):
        time.sleep(20)
    board.sh("systemctl stop powerd")
    for command in ("plan", "check"):
        said = board.sh(f"powerd {command} /etc/powerd/powerd.toml", user="lab", check=False)
        good = "knows SMBus only" in " ".join(said.split())
        report.found(f"`powerd {command}` on i2c-stub", "says that the adapter knows SMBus only", good=good)
    text, good = check_run(run_file, {"gpu0.a": 6.0, "gpu0.b": 2.4}, 0.001)
    report.found("`powerd run` on i2c-stub", text, good=good)
    board.sh("modprobe -a industrialio ina2xx-adc")
    said = board.sh(f"cd {GUEST} && {PYTHON} patterns.py {bus} 0x45 {PATTERNS}", limit_s=900, check=False)
    good = all(f"{kind}: {PATTERNS} patterns, 0 differ" in said for kind in ("INA219", "INA226"))
    report.found(
        f"kernel's ina2xx-adc and source `ina`, {PATTERNS} patterns each of INA219 and INA226",
        "the same volts and amperes, to the last code", good=good,
    )  # fmt: skip


WITHIN = 5
"""Scans after a late one, of which one at least is on time, or it is told that some are missing."""


def check_run(run_file: Path, expected_w: dict[str, float], tolerance: float) -> tuple[str, bool]:
    """What a run has of these lines: mean power, how many readings are bad, and scans that nobody accounts for."""
    run, texts, good = read_run(run_file), [], True
    for name, watts in expected_w.items():
        line, readings = run.line(name), run.readings(name)
        mean_w, is_bad = float(load_signal(run, name).power()[1].mean()), (readings.flags & int(BAD)) != 0
        told, times = [gap for gap in run.gaps if name in gap.lines], readings.t_ns.tolist()
        # A scan that came late is not missing: one of those behind it is on time again.
        holes = [
            at_ns
            for i, at_ns in enumerate(times[:-WITHIN])
            if all(times[i + k] - at_ns > (k + 0.75) * line.period_ns for k in range(1, WITHIN + 1))
            and not (is_bad[i] or is_bad[i + 1])
            and not any(g.begin_ns < times[i + WITHIN] and g.end_ns > at_ns for g in told)
        ]
        texts.append(
            f"{name} {mean_w:.3f} W ({watts:g}), {is_bad.sum()} of {len(times)} flagged, {len(told)} gaps told"
        )
        good &= abs(mean_w / watts - 1) <= tolerance and not holes and len(times) > 0
        texts[-1] += f", {len(holes)} holes that are not"
    return "; ".join(texts), good


@contextmanager
def adapter(board: Board, report: Report) -> Any:
    """An adapter with I2C transfers: hid-mcp2221, whose chip and sensors are simulated behind uhid. A second powerd
    reads it while other acts go on."""
    board.sh("modprobe -a i2c-dev uhid hid-mcp2221")
    board.sh(in_background("mcp2221", "mcp2221.py", "ready"))
    bus = bus_of(board, "MCP2221")
    sensors = "".join(f'\n[[source.sensors]]\nname = "l{i}"\naddress = {0x40 + i:#x}' for i in range(8))

    def configured(pace: str) -> None:
        table = f'[[source]]\nkind = "ina"\nname = "usb"\nbus = {bus}\n{pace}\n{sensors}'
        listen = f'[server]\nlisten = "tcp://0.0.0.0:{board.second_port}"\ninsecure = true\n\n'
        board.sh(f"cat >/etc/powerd/usb.toml <<'END'\n{listen}{table}\nEND")

    board.sh(f"powerd scan {bus}")
    configured("rate_hz = 100")
    said = " ".join(board.sh("powerd check /etc/powerd/usb.toml", check=False).split())
    (takes,) = re.findall(r"reading a register takes (\S+ to \S+ ms)", said)
    (read_us,) = map(float, re.findall(r"set read_us = (\d+)", said))
    report.found(
        "`powerd check` on hid-mcp2221",
        f"a read takes {takes}: set read_us = {read_us:g}",
    )
    rate_hz = int(1e7 / (16 * read_us)) / 10
    configured(f"read_us = {read_us:g}\nrate_hz = {rate_hz:g}")
    board.sh("powerd check /etc/powerd/usb.toml | grep -A1 'bus speed'", check=False)
    groups = "-p SupplementaryGroups=i2c -p WorkingDirectory=/tmp"
    board.sh(f"systemd-run -q --unit=usb --uid=powerd {groups} powerd run --config /etc/powerd/usb.toml")
    newest(board.second_port)
    run_file, end_s = board.out / "adapter.h5", time.monotonic() + 60 * MINUTES
    try:
        with recording(run_file, board.second_port):
            yield
            time.sleep(max(0, end_s - time.monotonic()))
    finally:
        board.sh(f"powerd stats {url(board.second_port)}; journalctl -u usb --no-pager -o cat -n 5", check=False)
    text, good = check_run(run_file, {f"gpu0.l{i}": 6.0 * (i + 1) for i in (0, 7)}, 0.001)
    report.found(f"hid-mcp2221, eight INA219 at {rate_hz:g} Hz for {MINUTES:g} min", text, good=good)
    board.sh("systemctl stop usb")


def unplug(board: Board, path: str, pull: str, plug: str) -> None:
    """Pull a device out, see its file go, plug it again, and see new readings."""
    board.sh(pull)
    board.until(f"test ! -e {path}")
    before = newest(board.port)
    board.sh(plug)

    def goes_on() -> bool:
        now = newest(board.port)
        scans = now["streams"][0]["scans"]
        return scans > 10 + (before["streams"][0]["scans"] if now["epoch"] == before["epoch"] else 0)

    wait_for("it comes back", goes_on)


def by_driver(board: Board, vendor: str) -> tuple[str, str]:
    """Commands that take a USB device from the kernel's driver, and give it back."""
    found = board.sh(f"grep -l {vendor} /sys/bus/usb/devices/*/idVendor", quiet=True)
    device = Path(found.split()[0]).parent.name
    return tuple(f"echo {device} >/sys/bus/usb/drivers/usb/{act}" for act in ("unbind", "bind"))


def node(board: Board, report: Report) -> None:
    """The firmware behind USB CDC-ACM, unplugged and plugged."""
    board.sh("systemctl stop powerd; modprobe dummy_hcd")
    plug = "modprobe g_serial idVendor=0x2e8a idProduct=0x0005 iSerialNumber=E66001"
    board.sh(plug)
    # It ends when it is unplugged, and its standard input has to stay open.
    again = f"while :; do {PYTHON} node.py /dev/ttyGS0 2; sleep 1; done"
    board.sh(f"mkfifo /tmp/open; cd {GUEST}; setsid sh -c '{again}' <>/tmp/open >/tmp/node.log 2>&1 & sleep 2")
    port = "/dev/powerd-node-E66001"
    board.until(f"test -e {port}")
    board.sh(f"ls -l /dev/ttyACM0 {port}")
    sensors = "".join(
        f'\n[[source.sensors]]\nname = "{name}"\ncontroller = {i}\naddress = 0x40' for i, name in enumerate("ab")
    )
    table = f'[[source]]\nkind = "node"\nport = "{port}"\nrate_hz = 50\nclock_limit_us = 20000\n'
    configure(board, server(board) + table + sensors)
    newest(board.port)
    run_file = board.out / "node.h5"
    with recording(run_file, board.port):
        time.sleep(10)
        unplug(board, port, "rmmod g_serial", plug)
        unplug(board, port, *by_driver(board, "2e8a"))
        time.sleep(5)
    board.sh("journalctl -u powerd --no-pager -o cat -n 12; tail -3 /tmp/node.log")
    gaps = {gap.cause for gap in read_run(run_file).gaps}
    text, good = check_run(
        run_file, {"gpu0.a": 1000 * 1e-5 / 0.05 * 12.0, "gpu0.b": 2000 * 1e-5 / 0.05 * 12.004}, 0.001
    )
    report.found("node on USB CDC-ACM, unplugged, then taken from its driver", text, good=good and bool(gaps))
    board.sh("systemctl stop powerd")


def meter(board: Board, report: Report) -> None:
    """The simulated WT310E behind the kernel's usbtmc."""
    gadget = "/sys/kernel/config/usb_gadget/meter"
    board.sh("systemctl stop powerd; pkill -f 'while [:]'; pkill -f 'node[.]py'; sleep 2; rmmod g_serial", check=False)
    board.sh("modprobe -a dummy_hcd usb_f_fs")
    board.sh(
        f"mkdir -p {gadget}/strings/0x409 {gadget}/configs/c.1 {gadget}/functions/ffs.meter /run/meter; cd {gadget}; "
        "echo 0x0b21 >idVendor; echo 0x0025 >idProduct; echo C3SIM >strings/0x409/serialnumber; "
        "ln -sf functions/ffs.meter configs/c.1/; mount -t functionfs meter /run/meter"
    )
    plug = in_background("meter", f"meter.py /run/meter {gadget}/UDC dummy_udc.0", "bound")
    board.sh(plug)
    board.until("test -e /dev/usbtmc0")
    board.sh("ls -l /dev/usbtmc0; lsusb -d 0b21:", check=False)
    source = '[[source]]\nkind = "wt310e"\nport = "/dev/usbtmc0"\nvolts = 300\namperes = 5\nupdate_s = 0.5'
    configure(board, server(board) + source)
    newest(board.port)
    run_file = board.out / "meter.h5"
    with recording(run_file, board.port):
        time.sleep(20)
        unplug(board, "/dev/usbtmc0", "pkill -f 'meter[.]py'", plug)
        unplug(board, "/dev/usbtmc0", *by_driver(board, "0b21"))
        time.sleep(5)
    board.sh("journalctl -u powerd --no-pager -o cat -n 12; cat /tmp/meter.log")
    text, good = check_run(run_file, {"wall": 60.0}, 0.001)
    gaps = read_run(run_file).gaps
    report.found("WT310E on USBTMC, unplugged, then taken from its driver", text, good=good and bool(gaps))


def devices(board: Board, report: Report) -> None:
    """What is behind a device file: one after the other, while the adapter is read all the time."""
    with adapter(board, report):
        for act in (smbus, node, meter):
            attempt(board, report, act)


def page(board: Board, report: Report) -> None:
    """The commands of docs/howto/board.md and of its plan as they stand there, but for `joules`, which is for another
    machine, and the reboot, which `unit` does. i2c-stub has the sensors; `powerd calibrate` has the simulated card, for
    there is no load here."""
    planned = (REPOSITORY / "docs/results/plan.txt").read_text()
    text = f"{(REPOSITORY / 'docs/howto/board.md').read_text()}\n{planned}".replace("\\\n", " ")
    listed = re.findall(r"^(?:    |\$ )((?:sudo|powerd) .+?)(?:  +# .*)?$", text, re.MULTILINE)
    commands = [c for c in listed if c != "sudo reboot" and not c.endswith("&")]
    board.sh("rm /etc/powerd/powerd.toml; usermod -aG i2c lab; pkill -f '(mcp2221|stub)[.]py'", check=False)
    play_stub(board)
    board.sh("printf '[[source]]\\nkind = \"sim\"\\nrate_hz = 100\\n' >card.toml", user="lab")
    board.sh("powerd run --sim --listen tcp://127.0.0.1:7360 --quiet >/tmp/sim.log 2>&1 &", user="lab")
    board.until("powerd describe tcp://127.0.0.1:7360 >/dev/null")
    said, failed = [], []
    for command in commands:
        if "install-board" in command:
            board.sh("pkill -f 'powerd run --si[m]'", check=False)  # `kill %1`
        said.append(board.sh(command, user="lab", check=False))
        if board.status:
            failed.append(f"`{command}`: status {board.status}")
        if command == "powerd scan --format toml":
            board.sh(f"cat >>/etc/powerd/powerd.toml <<'END'\n{said[-1]}\nEND")
    # Which adapter a plan takes depends on the machine: here there may be a bus of this number.
    rows = [row.partition("<-")[0].strip() for row in planned.splitlines()[1:]]
    is_planned = any(all(row in answer for row in rows) for answer in said)
    report.found(
        f"{len(commands)} commands of docs/howto/board.md",
        "run as written, and the plan prints what the page shows" if is_planned and not failed else "; ".join(failed),
        good=is_planned and not failed,
    )


Act = Callable[[Board, Report], None]
ACTS: tuple[tuple[Act, ...], ...] = ((install, unit, power), (install, devices, page))
"""By machine, one after the other."""


UNITS = ("powerd", "usb")
JOURNAL_LINES = 200


def tell_why(board: Board, report: Report) -> None:
    """The states and the journals of the units, as long as there is a machine to ask. Never raises."""
    for unit_name in UNITS:
        try:
            board.sh(
                f"systemctl status {unit_name} --no-pager -n 0; "
                f"journalctl -u {unit_name} --no-pager -o short-precise -n {JOURNAL_LINES}",
                check=False, limit_s=120,
            )  # fmt: skip
        except Exception as error:
            report.tell(f"the journal of {unit_name} cannot be had: {type(error).__name__}: {error}")
            return


def attempt(board: Board, report: Report, act: Act) -> bool:
    """One act. What it throws is reported, and the machine is then switched off and on."""
    begun_s, name = time.monotonic(), act.__name__
    try:
        act(board, report)
    except Exception as error:
        report.tell(traceback.format_exc())
        tell_why(board, report)
        report.found(
            f"act {name}", f"{type(error).__name__}: {printable(str(error).splitlines()[-1])[:200]}", good=False
        )
        return False
    finally:
        report.tell(f"--- {name}: {time.monotonic() - begun_s:.0f} s, load {os.getloadavg()[0]:.1f}")
    return True


def run_machine(out: Path, number: int, chosen: list[str]) -> Report:
    """Boot one machine and let its acts happen."""
    acts = [act for act in ACTS[number] if not chosen or act.__name__ in chosen]
    report = Report(out / f"transcript{number}.txt")
    board = Board(out, number, report.tell)
    if install in acts or not (board.out / "board.img").exists():
        subprocess.run(["cp", "--sparse=always", out / "disk.img", board.out / "board.img"], check=True)
    try:
        if acts:
            report.found(f"{board.name}: boot to a shell, under TCG", f"{board.switch_on():.0f} s")
        for act in acts:
            if not attempt(board, report, act):
                board.cut_power()
                report.tell(f"the machine is switched off and on: {board.switch_on():.0f} s")
    except Exception:
        report.missed += 1
        report.tell(traceback.format_exc())
    finally:
        board.cut_power()
    return report


def main() -> None:
    out, chosen = Path(sys.argv[1]).absolute(), sys.argv[2:]
    begun_s = float(os.environ.get("BEGUN_S") or time.time())
    make_payload(out)
    with ThreadPoolExecutor(len(ACTS)) as pool:
        reports = list(pool.map(lambda number: run_machine(out, number, chosen), range(len(ACTS))))
    reports[-1].found(
        "everything, from nothing" if "BEGUN_S" in os.environ else "everything", f"{time.time() - begun_s:.0f} s"
    )
    rows = io.StringIO()
    csv.writer(rows, lineterminator="\n").writerows(
        [("what", "result", "missed"), *(row for report in reports for row in report.rows)]
    )
    if not chosen:
        target = REPOSITORY / "docs/results/board-vm"
        texts = [f"######## Machine {i}\n{report.path.read_text()}" for i, report in enumerate(reports, 1)]
        if ARCH == "amd64":
            (target / "transcript.txt").write_text("\n\n".join(texts))
            (target / "results.csv").write_text(rows.getvalue())
        else:
            (target / f"transcript-{ARCH}.txt").write_text("\n\n".join([*texts, rows.getvalue()]))
    print(rows.getvalue())
    for report in reports:
        report.close()
    sys.exit(any(report.missed for report in reports))


if __name__ == "__main__":
    main()
