"""`powerd configure` and `powerd calibrate --url`: what comes from afar, what it may not touch, and the way back."""

from __future__ import annotations

import errno
import io
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from daemon_harness import PATIENCE_S

from powerd_core.errors import ConfigError, PeerError, PeerTimeout, PowerdError, SensorError
from powerd_core.wire import Message, decode
from powerd_daemon.asking import Board
from powerd_daemon.calibration_file import load_calibration
from powerd_daemon.cli import main, with_options
from powerd_daemon.clock import SystemClock
from powerd_daemon.config import parse_config
from powerd_daemon.control import Change, Control
from powerd_daemon.log import Log
from powerd_daemon.registry import kinds
from powerd_daemon.remote_config import FILE_OPTIONS, check_remote
from powerd_daemon.sdnotify import Notifier
from powerd_daemon.serving import serve_until

SIM = '[[source]]\nkind = "sim"\nname = "card"\nwaveform = "constant"\nrate_hz = 100.0\n'


class Served:
    """`powerd run --config` in a thread."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.said = io.StringIO()
        self.error: Exception | None = None
        self._stop = threading.Event()
        clock = SystemClock()
        log = Log(self.said, clock)
        self.control = Control(file, lambda config: config, clock, log)
        self._arguments = (self._stop.is_set, self.control.config(), self.control, clock, log, Notifier({}))
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            serve_until(*self._arguments)
        except Exception as error:
            self.error = error

    def stop(self) -> None:
        self._stop.set()
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive()
        if self.error is not None:
            raise self.error


@contextmanager
def served(file: Path) -> Iterator[Served]:
    made = Served(file)
    made.thread.start()
    try:
        yield made
    finally:
        made.stop()


def wait(is_so: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "powerd.toml"
    path.write_text(f'[server]\nlisten = "ipc://{tmp_path}/s"\nboard = "bench"\n{SIM}')
    return path


def next_life(board: Board, before: Message) -> Message:
    """The description of the powerd that follows; a question to one that ends may be lost."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        with suppress(PeerTimeout):
            if (after := board.ask("describe", timeout_ms=300)).epoch != before.epoch:
                return after
    raise AssertionError("it did not start again")


def url(file: Path) -> str:
    return f"ipc://{file.parent}/s"


def test_a_new_configuration_is_taken_over(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = file.read_text()
    new = file.with_name("new.toml")
    new.write_text(old.replace('"bench"', '"other"').replace("100.0", "50.0"))
    with served(file), Board(url(file)) as board:
        before = board.ask("describe", timeout_ms=20_000)
        assert main(["configure", url(file)]) == 0
        assert capsys.readouterr().out == old
        assert main(["configure", url(file), str(new)]) == 0
        assert "runs with" in capsys.readouterr().out
        after = board.ask("describe")
        assert (before.body["board"], after.body["board"]) == ("bench", "other")
        assert before.epoch != after.epoch
        assert after.body["streams"][0]["period_ns"] == 20_000_000  # type: ignore[index]
    assert file.read_text() == new.read_text()
    assert file.with_name("powerd.toml.previous").read_text() == old
    assert sorted(p.name for p in file.parent.glob("powerd.toml*")) == ["powerd.toml", "powerd.toml.previous"]


def test_a_configuration_that_does_not_start_is_taken_back(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = file.read_text()
    bad = file.with_name("bad.toml")
    bad.write_text(f'{old}[[source]]\nkind = "ina"\nbus = 4321\n[[source.sensors]]\nname = "a"\naddress = 0x40\n')
    with served(file) as powerd, Board(url(file)) as board:
        before = board.ask("describe", timeout_ms=20_000)
        assert main(["configure", url(file), str(bad)]) == 2
        error = capsys.readouterr().err
        assert "it does not start, and the previous one runs again" in error
        assert "i2c-4321" in error
        after = board.ask("describe")
        assert after.epoch != before.epoch
        assert after.body["devices"] == before.body["devices"]
        assert [p.name for p in file.parent.glob("powerd.toml*")] == ["powerd.toml"]
        assert file.read_text() == old
        assert "is taken back" in powerd.said.getvalue()
        # It can be tried again at once.
        bad.write_text(old.replace("100.0", "50.0"))
        assert main(["configure", url(file), str(bad)]) == 0
    assert sorted(p.name for p in file.parent.glob("powerd.toml*")) == ["powerd.toml", "powerd.toml.previous"]


def test_a_change_that_leaves_something_behind_does_not_end_powerd(file: Path) -> None:
    def undo() -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    said, clock = io.StringIO(), SystemClock()
    control = Control(file, lambda config: config, clock, Log(said, clock))
    control._change = Change("", lambda: None, undo)
    assert control.take_back(SensorError("no sensor"))
    assert control.config().server.board == "bench"
    assert "could not be removed: [Errno 30] Read-only file system" in said.getvalue()


def test_a_file_with_a_byte_order_mark_can_be_replaced(file: Path) -> None:
    old = file.read_text()
    file.write_text(old, encoding="utf-8-sig")
    clock = SystemClock()
    control = Control(file, lambda config: config, clock, Log(io.StringIO(), clock))
    answer = control.subjects(7)["configure"].answer
    assert decode(answer({})).body["text"] == old
    assert decode(answer({"text": old.replace("bench", "other"), "name": "new"})).body == {"accepted": True}
    control.has_started()
    assert control.config().server.board == "other"
    assert "other" in file.read_text()


def test_what_is_refused_changes_nothing(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = file.read_text()
    bad = file.with_name("bad.toml")
    bad.write_text(old.replace("rate_hz", "rate"))
    with served(file) as powerd, Board(url(file)) as board:
        before = board.ask("describe", timeout_ms=20_000)
        assert main(["configure", url(file), str(bad)]) == 2
        error = capsys.readouterr().err
        # The words of `powerd config-check`, with this side's name of the file.
        assert f"{bad}: [[source]] 1 (sim): unknown option 'rate': did you mean 'rate_hz'? (line 8)" in error
        for body in ({"text": 5, "name": "x"}, {"text": old}, {"text": "[[", "name": "x" * 9999}):
            with pytest.raises(PeerError):
                board.ask("configure", body)
        assert board.ask("describe").epoch == before.epoch
        assert not powerd.control.is_restarting
        file.write_text(old + "# edited on the board\n")
        with pytest.raises(PeerError, match="was changed on the board since powerd started with it"):
            board.ask("configure", {"text": old, "name": "x"})
    assert file.read_text() == old + "# edited on the board\n"


def test_a_file_that_cannot_be_written_is_told_at_once(file: Path) -> None:
    with served(file), Board(url(file)) as board:
        board.ask("describe", timeout_ms=20_000)
        file.with_name("powerd.toml.new").mkdir()
        with pytest.raises(PeerError, match=r"powerd.toml.new: cannot be written"):
            board.ask("configure", {"text": file.read_text(), "name": "x"})


def test_options_of_the_command_line_stay(file: Path) -> None:
    class Arguments:
        listen, ring_mib, spool, keys, insecure = "ipc:///elsewhere", 3.0, None, None, False

    made = with_options(parse_config(file.read_text(), "f"), Arguments())  # type: ignore[arg-type]
    assert (made.server.listen, made.server.ring_mib) == ("ipc:///elsewhere", 3.0)


RUNNING = """
[server]
listen = "tcp://127.0.0.1:7360"
[[source]]
kind = "replay"
path = "/var/lib/powerd/run.journal"
[[source]]
kind = "steady_source:SteadySource"
name = "steady"
"""


@pytest.mark.parametrize(
    "text",
    [
        RUNNING,
        RUNNING + "[[device]]\nname = 'd'\nfeeds = ['steady.a']\n",
        RUNNING.replace("[server]", '[server]\nboard = "b"\nring_mib = 9.0\nblock_ms = 40.0'),
        RUNNING + '[[source]]\nkind = "sim"\n',
        RUNNING + '[[source]]\nkind = "ina"\nbus = "/dev/i2c-2"\n[[source.sensors]]\nname = "a"\naddress = 0x40\n',
        RUNNING + '[[source]]\nkind = "wt310e"\nport = "/dev/usbtmc0"\nvolts = 300\namperes = 5\n',
        RUNNING
        + '[[source]]\nkind = "serial-line"\nport = "/dev/serial/by-id/usb-x_1-if00"\npattern = "W (?P<power>.+)"\n',
    ],
)
def test_what_may_come_from_afar(text: str) -> None:
    check_remote(text, "f", RUNNING)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (RUNNING.replace("127.0.0.1:7360", "*:7360"), "option 'listen' can only be changed on the board itself"),
        (RUNNING.replace("[server]", "[server]\ninsecure = true"), "option 'insecure' can only be changed"),
        (RUNNING.replace("[server]", '[server]\nkeys = "/tmp/mine"'), "option 'keys' can only be changed"),
        (RUNNING.replace("[server]", '[server]\nspool = "/etc"'), "option 'spool' can only be changed"),
        (RUNNING.replace("[server]", "[server]\nspool_mib = 9000.0"), "option 'spool_mib' can only be changed"),
        (RUNNING.replace("/var/lib/powerd/run.journal", "/etc/shadow"), r"\[\[source\]\] 1 \(replay\): option 'path'"),
        (RUNNING.replace("/var/lib/powerd/run.journal", "relative"), "'relative' can only be given on the board"),
        (RUNNING + '[[source]]\nkind = "sim"\ncalibration = "/etc/shadow"\n', "option 'calibration': '/etc/shadow'"),
        (RUNNING + '[[source]]\nkind = "rapl"\nroot = "/proc"\n', "option 'root': '/proc'"),
        (RUNNING + '[[source]]\nkind = "node"\nport = "/dev/sda"\n', "option 'port': '/dev/sda'"),
        (RUNNING + '[[source]]\nkind = "node"\nport = "/dev/ttyS0/../sda"\n', "option 'port': '/dev/ttyS0/../sda'"),
        (RUNNING + '[[source]]\nkind = "node"\nport = "/dev/ttyS0\\n"\n', "option 'port'"),
        (RUNNING + '[[source]]\nkind = "node"\nport = "/dev/serial/by-id/.."\n', "option 'port'"),
        (RUNNING + '[[source]]\nkind = "wt310e"\nport = "socket://10.0.0.1:80"\n', "option 'port'"),
        (RUNNING + '[[source]]\nkind = "ina"\nbus = "/dev/mem"\n', "option 'bus': '/dev/mem'"),
        (RUNNING + '[[source]]\nkind = "antigravity:Anything"\n', "can only be added or changed on the board itself"),
        (RUNNING.replace('name = "steady"', 'name = "steady"\nscans = 5'), "can only be added or changed"),
        (RUNNING + '[[source]]\nkind = "sim"\nrate_hz = 1e9\n', "rate_hz"),
        ("[[", "not valid TOML"),
        ("[server]\n", "nothing to measure"),
    ],
)
def test_what_may_not_come_from_afar(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_remote(text, "f", RUNNING)


def test_no_file_is_opened_and_no_module_imported_for_what_is_refused(tmp_path: Path) -> None:
    """The check of paths comes before any look at what they name."""
    trap = tmp_path / "trap.py"
    trap.write_text("raise SystemError('imported')")
    for source in ('kind = "trap:Source"', f'kind = "sim"\ncalibration = "{tmp_path}/none"'):
        with pytest.raises(ConfigError, match="on the board itself"):
            check_remote(f"[[source]]\n{source}\n", "f", RUNNING)


def test_every_kind_says_which_options_are_files() -> None:
    assert set(FILE_OPTIONS) == set(kinds()), "a new kind of source: say which of its options name files"


class TestCalibration:
    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        """Sensors without load, with a calibration file that is still empty."""
        (tmp_path / "cal.toml").write_text("")
        path = tmp_path / "powerd.toml"
        path.write_text(
            f'[server]\nlisten = "ipc://{tmp_path}/s"\n[[source]]\nkind = "sim"\nwaveform = "constant"\nidle_w = 0.0\n'
            f'peak_w = 0.0\nseed = 5\nrate_hz = 100.0\ncalibration = "{tmp_path}/cal.toml"\n'
        )
        return path

    def command(self, file: Path, *more: str) -> list[str]:
        return ["calibrate", "--url", url(file), "--temperature-c", "23", "--seconds", "2.6", *more]

    def calibrate(self, capsys: pytest.CaptureFixture[str], *command: str) -> tuple[int, str, str]:
        """Status and what was printed. Where the machine is busy the simulated bus is late, which is honestly refused:
        then once more.
        """
        for _ in range(20):
            status = main([*command])
            said = capsys.readouterr()
            if "readings failed" not in said.err:
                break
        return status, said.out, said.err

    def test_zeroes_are_stored_and_used(self, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
        with served(file), Board(url(file)) as board:
            before = board.ask("describe", timeout_ms=20_000)
            status, said, _ = self.calibrate(capsys, *self.command(file, "--zero"))
            assert status == 0
            assert "cal.toml; in use from now on" in said
            after = next_life(board, before)
        found = load_calibration(file.with_name("cal.toml"))
        assert len(found.sensor) == 8
        assert all(s.zero is not None and s.zero.count >= 200 for s in found.sensor)
        offsets = {line["name"]: line["conversion"]["offset_a"] for line in after.body["streams"][0]["lines"]}  # type: ignore[index]
        assert offsets == {s.line: s.offset_a for s in found.sensor}

    @pytest.mark.parametrize(
        ("more", "message"),
        [
            (
                ("--reference-a", "5", "--reference-u", "0.01", "--line", "gpu0.pcie_12v"),
                "check the reference, shunt_ohm",
            ),
            (("--zero", "--line", "gpu0.none"), "'gpu0.none' is no line on a shunt"),
            (("--zero", "--seconds", "0.1"), "readings are too few"),
        ],
    )
    def test_what_is_refused_leaves_the_file(
        self, file: Path, more: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with served(file) as powerd:
            wait(lambda: "listens on" in powerd.said.getvalue())
            status, _, error = self.calibrate(capsys, *self.command(file, *more))
            assert status == 2
            assert message in error
            assert not powerd.control.is_restarting
        assert file.with_name("cal.toml").read_text() == ""

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"reference": float("1e400")}, "finite numbers"),
            ({"reference": -1.0}, "cannot be what was sent"),
            ({"quantity": "V"}, "in A or W"),
            ({"lines": []}, "has a line ''"),
            ({"lines": [{"line": "x", "count": 500, "mean_a": 0.0, "spread_a": 0.0, "bus_v": 12.0}]}, "has a line 'x'"),
            ({"lines": [{"line": "x", "count": 1, "mean_a": 0.0, "spread_a": 0.0, "bus_v": 12.0}]}, "cannot be what"),
            ({"lines": "all"}, "expected a list"),
            ({"more": 1}, "unknown key 'more'"),
        ],
    )
    def test_strange_requests(self, file: Path, change: dict[str, object], message: str) -> None:
        body = {"lines": [], "reference": 0.0, "quantity": "A", "u": 0.0, "temperature_c": 20.0} | change
        clock = SystemClock()
        control = Control(file, lambda config: config, clock, Log(io.StringIO(), clock))
        with pytest.raises(PowerdError, match=message):
            control._calibrate(body)
        assert file.with_name("cal.toml").read_text() == ""

    def test_without_a_calibration_file_it_says_so(self, file: Path) -> None:
        file.write_text(file.read_text().rpartition("calibration =")[0])
        clock = SystemClock()
        control = Control(file, lambda config: config, clock, Log(io.StringIO(), clock))
        means = {"line": "gpu0.pcie_12v", "count": 500, "mean_a": 0.0, "spread_a": 0.001, "bus_v": 12.0}
        body = {"lines": [means], "reference": 0.0, "quantity": "A", "u": 0.0, "temperature_c": 20.0}
        with pytest.raises(ConfigError, match="names no calibration file"):
            control._calibrate(body)


def test_sockets_stay_where_clients_know_them(file: Path) -> None:
    clock = SystemClock()
    file.write_text(f'[server]\nlisten = "tcp://127.0.0.1:*"\n{SIM}')
    control = Control(file, lambda config: config, clock, Log(io.StringIO(), clock))
    served_on = replace(control.config().server, listen="tcp://127.0.0.1:5000", data="tcp://127.0.0.1:5001")
    assert control.config(served_on).server.listen == "tcp://127.0.0.1:5000"
