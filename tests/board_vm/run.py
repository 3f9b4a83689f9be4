"""`make board-vm`: powerd on a Debian 12 that boots, against the kernel's own drivers.

    python tests/board_vm/run.py build/board-vm [ACT ...]

Needs `build.sh`'s image in that directory. Without acts, all of them; the report goes to docs/results/board-vm.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

from vm import PORT, REPOSITORY, URL, Board, Failed, make_payload

from powerd_analytics import read_run
from powerd_analytics.signals.signal import load_signal
from powerd_core.errors import PowerdError
from powerd_core.model import BAD
from powerd_daemon.peer import ask

RATE_HZ = 100
SERVER = f"""[server]
listen = "tcp://0.0.0.0:{PORT}"
insecure = true
spool = "/var/lib/powerd/spool"
"""
SPOOLED = f"""{SERVER}[[source]]
kind = "sim"
rate_hz = {RATE_HZ}
"""
GUEST = "/home/lab/powerd/tests/board_vm/guest"
PYTHON = "/opt/powerd/bin/python"
PATTERNS = 1000
MINUTES = float(os.environ.get("MINUTES", "10"))
REGISTER_PERIODS = 48.5
"""SCL periods in which a register is read."""
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
    end_s = time.monotonic() + 300
    while True:
        try:
            answer = ask(URL, "stats", 2000)
            if answer.body["streams"] and answer.body["streams"][0]["newest"] is not None:
                return {"epoch": answer.epoch, **answer.body}
        except PowerdError:
            if time.monotonic() > end_s:
                raise
        time.sleep(0.05)


class Watcher(threading.Thread):
    """Asks powerd again and again how far it is, until it is gone: ``last`` is what it said last."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.last = newest()
        self.start()

    def run(self) -> None:
        with suppress(PowerdError):
            while (answer := ask(URL, "stats", 1000)).epoch == self.last["epoch"]:
                self.last = {"epoch": answer.epoch, **answer.body}


def lost_s(before: dict[str, Any]) -> float:
    """Seconds of readings that the powerd of ``before`` had, and that its spool has not. It must have an heir."""
    end_s = time.monotonic() + 120
    body: dict[str, Any] = {"ready": False}
    while not body["ready"]:
        with suppress(PowerdError):
            body = ask(URL, "epochs").body
        if time.monotonic() > end_s:
            raise Failed("the spool's earlier lives are not read")
    (life,) = [life for life in body["epochs"] if life["epoch"] == before["epoch"]]
    kept = life["streams"][0]["next"]
    if kept < before["spool"]["streams"][0]["safe"]:
        raise Failed(
            f"the spool has {kept} numbers, and had told that {before['spool']['streams'][0]['safe']} are safe"
        )
    return max(0, before["streams"][0]["newest"] + 1 - kept) / RATE_HZ


def configure(board: Board, text: str) -> None:
    board.sh(f"cat >/etc/powerd/powerd.toml <<'END'\n{text.strip()}\nEND")
    board.sh("systemctl restart --no-block powerd")


@contextmanager
def recording(out: Path, path: Path) -> Any:
    """`joules record` on this machine, which goes on through whatever happens to the other."""
    go_on, log = out / "recording", out / "record.log"
    go_on.touch()
    path.unlink(missing_ok=True)
    command = [Path(sys.executable).with_name("joules"), "record", "--overwrite", "--url", URL, "--output", path]
    with log.open("w") as file:
        wait = ["--", "sh", "-c", f"while [ -e {go_on} ]; do sleep 0.2; done"]
        process = subprocess.Popen([*map(str, command), *wait], stdout=file, stderr=subprocess.STDOUT)
        time.sleep(5)
        try:
            yield
        finally:
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
    """The systemd unit: kills, a stopped process, a reboot."""
    configure(board, SPOOLED)
    newest()
    exposure = board.sh("systemd-analyze security powerd --no-pager | tail -1", limit_s=300)
    level = float(exposure.split("powerd.service: ")[1].split()[0])
    report.found("`systemd-analyze security`", f"{level} (below 2 asked)", good=level < 2)
    run_file = board.out / "run.h5"
    with recording(board.out, run_file):
        losses = []
        for _ in range(KILLS):
            watcher = Watcher()
            board.sh("sleep 1; systemctl kill -s KILL --kill-whom=main powerd", quiet=True)
            watcher.join()
            while newest()["epoch"] == watcher.last["epoch"]:
                time.sleep(0.1)
            losses.append(lost_s(watcher.last))
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

    board.sh("journalctl -u powerd --no-pager -o cat -n 25")
    tell_run(run_file, report)


def power(board: Board, report: Report) -> None:
    """Power cuts: the machine is killed."""
    configure(board, SPOOLED)
    run_file, losses = board.out / "power.h5", []
    with recording(board.out, run_file):
        for _ in range(POWER_CUTS):
            watcher = Watcher()
            time.sleep(3)
            board.cut_power()
            watcher.join()
            board.switch_on()
            newest()
            losses.append(lost_s(watcher.last))
            report.tell(f"power cut: {losses[-1]:.2f} s of readings lost")
    board.sh("journalctl --no-pager -k -o cat | grep -i -E 'recover|orphan' | head -3", check=False)
    report.found(
        f"power cut, {POWER_CUTS} times",
        f"at most {max(losses):.2f} s of readings not in the spool (1 s promised)",
        good=max(losses) <= PROMISED_S + SOON_S,
    )
    tell_run(run_file, report)


def tell_run(run_file: Path, report: Report) -> None:
    """What the recording that went on meanwhile says of its losses."""
    command = [Path(sys.executable).with_name("joules"), "info", run_file.name]
    said = subprocess.run(command, cwd=run_file.parent, capture_output=True, text=True, check=False)
    report.tell(f"$ joules info {run_file.name}\n{said.stdout}{said.stderr}")


def background(board: Board, name: str, command: str) -> None:
    """Run something of `guest` until the machine ends; what it says goes to /tmp/NAME.log."""
    log = f"/tmp/{name}.log"
    board.sh(f"cd {GUEST}; setsid sh -c 'sleep infinity | {PYTHON} {command}' >{log} 2>&1 & sleep 2; cat {log}")


def bus_of(board: Board, name: str) -> int:
    """The number of the I2C adapter with this name."""
    return int(board.until(f"grep -l '{name}' /sys/bus/i2c/devices/i2c-*/name").split("i2c-")[1].split("/")[0])


def smbus(board: Board, report: Report) -> None:
    """An adapter that knows SMBus only (i2c-stub), and the kernel's driver against ours."""
    board.sh("systemctl stop powerd; modprobe i2c-dev; modprobe i2c-stub chip_addr=0x40,0x41,0x45")
    bus = bus_of(board, "SMBus stub")
    refused = board.sh(f"powerd scan {bus}", user="lab", check=False)
    report.found(
        "`powerd scan` by a user who is in no group", "refused, with the remedy", good="usermod -aG i2c" in refused
    )
    board.sh("usermod -aG i2c lab; ls -l /dev/i2c-*")
    background(board, "stub", f"stub.py {bus} INA219@0x40=2500,0x5dc2 INA226@0x41=4000,9600")
    found = board.sh(f"powerd scan {bus}", user="lab")
    report.found(
        "`powerd scan` on i2c-stub, in group i2c", "INA219 and INA226",
        good=all(f"{chip}" in found for chip in ("INA219", "INA226", "12.000 V")),
    )  # fmt: skip
    sensors = 'sensors = [{ name = "a", address = 0x40 }, { name = "b", address = 0x41, chip = "INA226" }]'
    source = f'kind = "ina"\nname = "i2c"\nbus = {bus}\nrate_hz = 20\n{sensors}'
    board.sh(f"cat >/etc/powerd/powerd.toml <<'END'\n{SERVER}[[source]]\n{source}\nEND")
    for command, part in (("plan", "knows SMBus only"), ("check", "knows SMBus only")):
        said = board.sh(f"powerd {command} /etc/powerd/powerd.toml", user="lab", check=False)
        report.found(
            f"`powerd {command}`", "says that the adapter knows SMBus only", good=part in " ".join(said.split())
        )
    board.sh("systemctl restart --no-block powerd")
    newest()
    run_file = board.out / "smbus.h5"
    with recording(board.out, run_file):
        time.sleep(20)
    text, good = check_run(run_file, {"gpu0.a": 6.0, "gpu0.b": 2.4}, 0.001)
    report.found("`powerd run` on i2c-stub", text, good=good)
    board.sh("systemctl stop powerd; modprobe -a industrialio ina2xx-adc")
    said = board.sh(f"cd {GUEST} && {PYTHON} patterns.py {bus} 0x45 {PATTERNS}", limit_s=900, check=False)
    good = all(f"{kind}: {PATTERNS} patterns, 0 differ" in said for kind in ("INA219", "INA226"))
    report.found(
        f"kernel's ina2xx-adc and source `ina`, {PATTERNS} patterns each of INA219 and INA226",
        "the same volts and amperes, to the last code", good=good,
    )  # fmt: skip


def check_run(run_file: Path, expected_w: dict[str, float], tolerance: float) -> tuple[str, bool]:
    """What a run has of these lines: mean power, how many readings are bad, and scans that nobody accounts for."""
    run, texts, good = read_run(run_file), [], True
    for name, watts in expected_w.items():
        line, readings = run.line(name), run.readings(name)
        mean_w, bad = float(load_signal(run, name).power()[1].mean()), int(((readings.flags & int(BAD)) != 0).sum())
        told = [gap for gap in run.gaps if name in gap.lines]
        holes = [
            (begin_ns, end_ns)
            for begin_ns, end_ns in pairwise(readings.t_ns.tolist())
            if end_ns - begin_ns > 2 * line.period_ns
            and not any(g.begin_ns < end_ns and g.end_ns > begin_ns for g in told)
        ]
        texts.append(
            f"{name} {mean_w:.3f} W ({watts:g}), {bad} of {len(readings.flags)} flagged, {len(told)} gaps told"
        )
        good &= abs(mean_w / watts - 1) <= tolerance and not holes and len(readings.flags) > 0
        texts[-1] += f", {len(holes)} holes that are not"
    return "; ".join(texts), good


def adapter(board: Board, report: Report) -> None:
    """An adapter with I2C transfers: hid-mcp2221, whose chip and sensors are simulated behind uhid."""
    board.sh("systemctl stop powerd; modprobe -a i2c-dev uhid hid-mcp2221")
    background(board, "mcp2221", "mcp2221.py")
    bus = bus_of(board, "MCP2221")
    sensors = "".join(f'\n[[source.sensors]]\nname = "l{i}"\naddress = {0x40 + i:#x}' for i in range(8))

    def conf(scl_hz: float, rate_hz: float) -> str:
        pace = f"scl_hz = {scl_hz:.0f}\nrate_hz = {rate_hz:g}"
        return f'{SERVER}[[source]]\nkind = "ina"\nname = "usb"\nbus = {bus}\n{pace}\n{sensors}'

    board.sh(f"powerd scan {bus}")
    board.sh(f"cat >/etc/powerd/powerd.toml <<'END'\n{conf(400_000, 100)}\nEND")
    said = " ".join(board.sh("powerd check /etc/powerd/powerd.toml", check=False).split())
    scl_hz = float(re.findall(r"set scl_hz = (\d+)", said)[0])
    report.found(
        "`powerd check` on hid-mcp2221",
        f"a read takes {REGISTER_PERIODS / scl_hz * 1e3:.1f} ms: set scl_hz = {scl_hz:.0f}",
    )
    # Sixteen reads a scan, and a quarter more for the read-backs and for what else this machine does.
    rate_hz = round(scl_hz / (16 * REGISTER_PERIODS) / 1.25, 1)
    configure(board, conf(scl_hz, rate_hz))
    newest()
    run_file = board.out / "adapter.h5"
    with recording(board.out, run_file):
        time.sleep(60 * MINUTES)
    board.sh(f"powerd stats tcp://127.0.0.1:{PORT}", check=False)
    text, good = check_run(run_file, {f"gpu0.l{i}": 6.0 * (i + 1) for i in (0, 7)}, 0.001)
    report.found(f"hid-mcp2221, eight INA219 at {rate_hz:g} Hz for {MINUTES:g} min", text, good=good)
    board.sh("systemctl stop powerd")


def node(board: Board, report: Report) -> None:
    """The firmware behind USB CDC-ACM, unplugged and plugged."""
    board.sh("systemctl stop powerd; modprobe dummy_hcd")
    board.sh("modprobe g_serial idVendor=0x2e8a idProduct=0x0005 iSerialNumber=E66001")
    again = (
        f"cd {GUEST}; while :; do sleep infinity | {PYTHON} node.py /dev/ttyGS0 2 >>/tmp/node.log 2>&1; sleep 1; done"
    )
    board.sh(f"setsid sh -c '{again}' >/dev/null 2>&1 & sleep 2")
    board.until("test -e /dev/powerd-node-E66001")
    board.sh("ls -l /dev/ttyACM0 /dev/powerd-node-E66001")
    sensors = (
        'sensors = [{ name = "a", controller = 0, address = 0x40 }, { name = "b", controller = 1, address = 0x40 }]'
    )
    source = (
        f'[[source]]\nkind = "node"\nport = "/dev/powerd-node-E66001"\nrate_hz = 50\nclock_limit_us = 20000\n{sensors}'
    )
    configure(board, SERVER + source)
    newest()
    run_file = board.out / "node.h5"
    with recording(board.out, run_file):
        time.sleep(10)
        for _ in range(2):
            board.sh("echo disconnect >/sys/class/udc/dummy_udc.0/soft_connect; sleep 3; ls /dev/ttyACM0", check=False)
            before = newest()["streams"][0]["newest"]
            board.sh("echo connect >/sys/class/udc/dummy_udc.0/soft_connect")
            end_s = time.monotonic() + 90
            while newest()["streams"][0]["newest"] < before + 100:
                if time.monotonic() > end_s:
                    raise Failed("the node does not come back")
                time.sleep(0.5)
    board.sh("journalctl -u powerd --no-pager -o cat -n 12; tail -3 /tmp/node.log")
    gaps = [gap.cause for gap in read_run(run_file).gaps]
    text, good = check_run(
        run_file, {"gpu0.a": 1000 * 1e-5 / 0.05 * 12.0, "gpu0.b": 2000 * 1e-5 / 0.05 * 12.004}, 0.001
    )
    report.found("node on USB CDC-ACM, unplugged and plugged twice", text, good=good and bool(gaps))
    board.sh("systemctl stop powerd")


def meter(board: Board, report: Report) -> None:
    """The simulated WT310E behind the kernel's usbtmc."""
    gadget = "/sys/kernel/config/usb_gadget/meter"
    board.sh("systemctl stop powerd; pkill -f 'while :'; pkill -f node.py; sleep 1; rmmod g_serial")
    board.sh("modprobe -a dummy_hcd usb_f_fs")
    board.sh(
        f"mkdir -p {gadget}/strings/0x409 {gadget}/configs/c.1 {gadget}/functions/ffs.meter /run/meter; cd {gadget}; "
        "echo 0x0b21 >idVendor; echo 0x0025 >idProduct; echo C3SIM >strings/0x409/serialnumber; "
        "ln -sf functions/ffs.meter configs/c.1/; mount -t functionfs meter /run/meter"
    )
    background(board, "meter", f"meter.py /run/meter {gadget}/UDC dummy_udc.0")
    board.until("test -e /dev/usbtmc0")
    board.sh("ls -l /dev/usbtmc0; lsusb -d 0b21: 2>&1")
    source = '[[source]]\nkind = "wt310e"\nport = "/dev/usbtmc0"\nvolts = 300\namperes = 5\nupdate_s = 0.5'
    configure(board, SERVER + source)
    newest()
    run_file = board.out / "meter.h5"
    with recording(board.out, run_file):
        time.sleep(30)
        board.sh(f"echo '' >{gadget}/UDC; sleep 3; ls /dev/usbtmc0", check=False)
        before = newest()["streams"][0]["newest"]
        board.sh(f"echo dummy_udc.0 >{gadget}/UDC")
        end_s = time.monotonic() + 90
        while newest()["streams"][0]["newest"] < before + 10:
            if time.monotonic() > end_s:
                raise Failed("the meter does not come back")
            time.sleep(0.5)
    board.sh("journalctl -u powerd --no-pager -o cat -n 12; cat /tmp/meter.log")
    text, good = check_run(run_file, {"wall": 60.0}, 0.001)
    report.found("WT310E on USBTMC, unplugged and plugged", text, good=good)


def page(board: Board, report: Report) -> None:
    """The commands of docs/howto/board.md as they stand there, but for `joules`, which is for another machine.
    `powerd calibrate` has the simulated card, for there is no load here."""
    text = (REPOSITORY / "docs/howto/board.md").read_text().replace("\\\n", " ")
    listed = re.findall(r"^(?:    |\$ )((?:sudo|powerd) .+?)(?:  +# .*)?$", text, re.MULTILINE)
    commands = [c for c in listed if c != "sudo reboot" and not c.endswith("&")]
    board.sh("pkill -f stub.py; rmmod i2c-stub; rm /etc/powerd/powerd.toml", check=False)
    board.sh("printf '[[source]]\\nkind = \"sim\"\\n' >card.toml", user="lab")
    board.sh("powerd run --sim --listen tcp://127.0.0.1:7360 --quiet >/tmp/sim.log 2>&1 & sleep 1", user="lab")
    board.until("powerd describe tcp://127.0.0.1:7360 >/dev/null")
    said = []
    for command in commands:
        said.append(board.sh(command, user="lab", check=False, limit_s=900))
        if command == "powerd scan --format toml":
            board.sh(f"cat >>/etc/powerd/powerd.toml <<'END'\n{said[-1]}\nEND")
    planned = text.split("<!-- plan: begin -->")[1].split("<!-- plan: end -->")[0]
    rows = [row.strip() for row in planned.splitlines() if row.strip() and not row.strip().startswith("powerd plan")]
    good = any(all(row in answer for row in rows) for answer in said)
    report.found(
        f"{len(commands)} commands of docs/howto/board.md",
        "run as written, the plan prints what the page shows",
        good=good,
    )
    board.sh("pkill -f 'powerd run --sim'", check=False)


ACTS: dict[str, Callable[[Board, Report], None]] = {
    "install": install,
    "unit": unit,
    "power": power,
    "smbus": smbus,
    "adapter": adapter,
    "node": node,
    "meter": meter,
    "page": page,
}


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
    report.tell(f"{time.monotonic() - begun_s:.0f} s")
    rows = "| what | result |\n| --- | --- |\n" + "\n".join(report.rows)
    if chosen == list(ACTS):
        target = REPOSITORY / "docs/results/board-vm"
        shutil.copy(out / "transcript.txt", target)
        head, _, rest = (target / "README.md").read_text().partition("| what | result |")
        below = rest.partition("\n\n")[2]
        (target / "README.md").write_text(f"{head}{rows}\n\n{below}")
    print(rows)


if __name__ == "__main__":
    main()
