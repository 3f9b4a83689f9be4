"""`powerd plan`: the arithmetic against the data sheets' and against the simulated bus; refusals by plan and run."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace
from math import hypot, sqrt
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerd_daemon.cli import main
from powerd_daemon.diagnostics import FAIL, OK, WARN, check_plans
from powerd_daemon.plan import Bus, BusPlan, ask_adapter, plan_bus, plan_file, plan_text, read_bus, refuse
from powerd_daemon.sources.base import Start
from powerd_daemon.sources.ina.bus import FUNC_I2C, FUNC_WORDS
from powerd_daemon.sources.ina.sensor_accuracy import Sensor, make_bank
from powerd_daemon.sources.ina.source import RailsOptions
from powerd_daemon.sources.sim.bus import VirtualClock
from powerd_daemon.sources.sim.source import SimOptions, SimSource

ROOT = Path(__file__).parents[2]
EIGHT = [{"name": f"l{i}", "address": 0x40 + i} for i in range(8)]


def planned(*, combined: bool | None = None, **options: object) -> BusPlan:
    bus = read_bus({"kind": "ina", "bus": 1, "sensors": EIGHT} | options, "f")
    assert bus is not None
    return plan_bus(replace(bus, combined=combined))


def test_eight_ina219_at_400_khz() -> None:
    plan = planned()
    combined, single = plan.modes
    # 16 reads of 47 periods and a stop, once or each time, with half a period of idle bus behind it.
    assert (combined.periods, single.periods) == (16 * 47 + 1.5, 16 * 48.5)
    assert (combined.transactions, single.transactions) == (1, 16)
    assert int(combined.limit_hz) == 530
    assert int(single.limit_hz) == 515
    assert plan.problems == ()
    assert plan.achievable_hz == single.limit_hz
    assert planned(combined=True).achievable_hz == combined.limit_hz
    assert plan.budgets[0].settings.coverage == pytest.approx(1060 / 1208)


def test_the_error_budget_of_a_line() -> None:
    (b,) = planned(sensors=[{"name": "a", "address": 0x40, "grade": "B", "shunt_range": "160mV"}]).budgets
    assert (b.line, b.limits.current_gain, b.limits.bus_gain, b.sensor.shunt_tolerance) == ("gpu0.a", 0.005, 0.01, 0.01)
    assert b.offset_a == pytest.approx(75e-6 / 0.05)
    assert (b.clip_a, b.clip_w) == pytest.approx((3.2, 38.4))
    u_gain = hypot(0.005, 0.01, 0.01, 0.008 / 12) / sqrt(3)
    assert b.u_w(30.0) == pytest.approx(hypot(u_gain * 30, 75e-6 / 0.05 / sqrt(3) * 12, 0.0002 * 12 / sqrt(12)))


@pytest.mark.parametrize("adapter", ["combined", "single"])
@pytest.mark.parametrize("bus_every", [1, 4])
def test_the_wire_limit_is_what_the_simulated_bus_takes(adapter: str, bus_every: int) -> None:
    given = {"kind": "sim", "adapter": adapter, "bus_every": bus_every, "rate_hz": 300.0}
    bus = read_bus(given, "f")
    assert bus is not None
    mode = plan_bus(bus).modes[adapter == "single"]
    clock = VirtualClock()
    options = SimOptions(adapter=adapter, bus_every=bus_every, rate_hz=300.0)  # type: ignore[arg-type]
    source = SimSource(options, Start("s", 1, 0, clock))
    source.open()
    assert source.bus is not None
    begin_ns, before, scans = clock.now_ns(), 0.0, 8 * bus_every
    for k in range(3 * bus_every + scans):
        if k == 3 * bus_every:
            before = source.bus.periods
        clock.sleep_until(begin_ns + k * source.period_ns)
        source.poll()
    taken = (source.bus.periods - before) / scans
    # Without the idle half periods behind each stop, and with at most a few read-backs of configurations.
    assert mode.periods - 0.5 * mode.transactions <= taken <= mode.periods * 1.15


@pytest.mark.parametrize(
    ("options", "figure"),
    [
        ({"rate_hz": 531.0}, "allow 530.9 scans"),
        ({"sensors": [EIGHT[0] | {"shunt_adc": "avg4"}]}, "399 Hz"),
        ({"sensors": [EIGHT[0] | {"nominal_v": 48.0}]}, "26 V"),
    ],
)
def test_more_than_bus_or_chips_can_do_is_refused(options: dict[str, object], figure: str) -> None:
    (problem,) = planned(combined=True, **options).problems
    assert figure in problem


@given(st.integers(1, 8), st.floats(1e4, 4e5), st.integers(1, 20))
def test_single_reads_never_beat_combined_ones(count: int, scl_hz: float, bus_every: int) -> None:
    bank = make_bank([Sensor(f"s{i}", 0x40 + i) for i in range(count)])
    combined, single = plan_bus(
        Bus("s", "f", 1, RailsOptions(scl_hz=scl_hz, rate_hz=1.0, bus_every=bus_every), bank)
    ).modes
    assert combined.limit_hz >= single.limit_hz


def test_the_plan_in_the_results_is_what_the_command_prints(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    shown = (ROOT / "docs/results/plan.txt").read_text(encoding="utf-8")
    command, _, printed = shown.removeprefix("$ powerd ").partition("\n")
    assert main(command.split()) == 0
    # Which adapter is taken depends on the machine: it may have a bus of this number.
    assert [row.partition("<-")[0] for row in capsys.readouterr().out.splitlines()] == [
        row.partition("<-")[0] for row in printed.splitlines()
    ]


def test_the_commands_print_and_refuse(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, fast = tmp_path / "good.toml", tmp_path / "fast.toml"
    good.write_text('[[source]]\nkind = "sim"\n')
    fast.write_text('[[source]]\nkind = "sim"\nrate_hz = 500\nshunt_adc = "avg16"\n')
    assert main(["plan", str(good)]) == 0
    assert "gpu0, 8 lines" in capsys.readouterr().out
    for loads, name in ((["gpu1=5"], "'gpu1'"), (["gpu0=5", "--load", "gpu0.pcie_12v=9"], "--load")):
        assert main(["plan", str(good), "--load", *loads]) == 2
        assert name in capsys.readouterr().err
    for command in (["plan"], ["run", "--config"]):
        assert main([*command, str(fast)]) == 2
        out, err = capsys.readouterr()
        assert ("refused: rate_hz = 500" in out) == (command == ["plan"])
        assert "which allows 105 Hz" in err
        assert err.count("\n") == 1
    assert main(["check", str(fast), "--file-only"]) == 1
    assert "which allows 105 Hz" in capsys.readouterr().out.replace("\n      ", " ")
    found = [next(check_plans(file, plan_file(file))) for file in (fast, good)]
    assert [(f.verdict, "105 Hz" in f.what) for f in found] == [(FAIL, True), (OK, False)]


CARD = '[[source]]\nkind = "ina"\nbus = 99\nrate_hz = 100\nsensors = [{sensors}]\n'


def card(path: Path, shunt_ohm: float, count: int = 8, **more: object) -> str:
    """A configuration of lines with these shunts."""
    rows = ({"name": f"l{i}", "address": 0x40 + i, "shunt_ohm": shunt_ohm, **more} for i in range(count))
    tables = (", ".join(f"{k} = {json.dumps(v)}" for k, v in row.items()) for row in rows)
    path.write_text(CARD.format(sensors=", ".join(f"{{ {table} }}" for table in tables)))
    return str(path)


@pytest.mark.parametrize(
    ("shunt_ohm", "load_w", "status", "is_warned"),
    [(0.05, 300, 0, False), (0.1, 150, 0, False), (0.1, 155, 0, True), (0.1, 300, 0, True), (0.1, 320, 2, False)],
)
def test_a_load_above_the_clip_is_a_fault_and_near_it_a_warning(
    shunt_ohm: float, load_w: float, status: int, is_warned: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Eight lines of 12 V that clip at 38.4 W with 0.1 ohm."""
    assert main(["plan", card(tmp_path / "card.toml", shunt_ohm), "--load", f"gpu0={load_w}"]) == status
    out, err = capsys.readouterr()
    assert ("leaves little room below 38.4 W" in out) == is_warned
    assert ("fault: gpu0.l0: 40.0 W is above 38.4 W, where it clips" in out) == (status == 2)
    assert (
        "gpu0.l0: 40.0 W is above 38.4 W, where it clips: use a smaller shunt, of at most 0.048 ohm (and 7 more lines)"
        in err
    ) == (status == 2)
    # An uncertainty is stated where the readings are good, alone.
    (row,) = (row for row in out.splitlines() if row.strip().startswith("gpu0, 8 lines"))
    assert ("no uncertainty holds" in row) == (status == 2)


def test_the_shunt_that_a_warning_names_is_not_warned_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", card(tmp_path / "card.toml", 0.048), "--load", "gpu0=320"]) == 0
    assert "little room" not in capsys.readouterr().out


def test_a_simulated_card_that_clips_fails_its_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its load is known; `powerd run` does not refuse to simulate it."""
    file = tmp_path / "sim.toml"
    for peak_w, status in ((250, 0), (800, 1)):
        file.write_text(f'[[source]]\nkind = "sim"\npeak_w = {peak_w}\n')
        assert main(["check", str(file), "--file-only"]) == status
        assert ("where it clips" in capsys.readouterr().out) == (status == 1)
    refuse(file)


@pytest.mark.parametrize("kind", ["ina", "sim", "node"])
def test_a_shunt_in_milliohms_is_asked_about(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "shunt.toml"
    for shunt_ohm in (50, 1.0):
        of = f'{{ name = "a", address = 0x40, shunt_ohm = {shunt_ohm:g} }}'
        where = {"ina": "bus = 99\nrate_hz = 100", "sim": "", "node": 'port = "/dev/ttyACM0"'}[kind]
        file.write_text(f'[[source]]\nkind = "{kind}"\n{where}\nsensors = [{of}]\n')
        is_asked = shunt_ohm > 1
        status = main(["check", str(file), "--file-only"])
        out = " ".join(capsys.readouterr().out.split())
        assert ("shunt_ohm = 50 is much for a shunt: did you mean 0.05?" in out) == is_asked
        assert ("is good" in out) != is_asked
        assert status == 1 or not is_asked
        main(["plan", str(file), "--load", "gpu0=0.01"] if kind != "node" else ["plan", str(file)])
        assert ("question: gpu0.a: shunt_ohm = 50" in capsys.readouterr().out) == (is_asked and kind != "node")


def test_powerd_that_starts_with_such_a_shunt_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    card(tmp_path / "card.toml", 50, count=1)
    refuse(tmp_path / "card.toml")
    assert "did you mean 0.05?" in caplog.text


@pytest.mark.parametrize(("address", "hint"), [(40, "0x40"), (45, "0x45"), (64, ""), (50, ""), (-40, "")])
def test_an_address_that_was_meant_in_hexadecimal(
    address: int, hint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """INA219 are at 0x40 to 0x4f, which are 64 to 79."""
    file = card(tmp_path / "card.toml", 0.05, count=1, address=address)
    assert main(["check", file, "--file-only"]) == (0 if address == 64 else 2)
    err = capsys.readouterr().err
    assert err.count("\n") == (address != 64)
    assert (f"did you mean {hint}?" in err) if hint else ("did you mean" not in err)


class Adapter:
    """What an adapter says of itself."""

    def __init__(self, functions: int) -> None:
        self.functions = functions


@pytest.mark.parametrize(
    ("functions", "chip", "problems", "periods"),
    [
        (FUNC_I2C, "INA219", 0, 48.5 + 48.5 + 29.5),
        (FUNC_WORDS, "INA219", 0, 3 * 48.5),
        (FUNC_WORDS, "INA228", 1, 3 * 57.5),
    ],
)
def test_an_adapter_that_is_here_is_asked(functions: int, chip: str, problems: int, periods: float) -> None:
    sensors = [{"name": "a", "address": 0x40, "chip": chip}]
    bus = read_bus({"kind": "ina", "bus": 1, "bus_every": 2, "rate_hz": 10, "sensors": sensors}, "here")
    assert bus is not None
    asked = ask_adapter(plan_bus(bus), lambda _number: nullcontext(Adapter(functions)))
    assert len(asked.problems) == problems
    assert asked.bus.combined is (None if functions == FUNC_I2C else False)
    # A scan with the bus voltage and one without, for which only SMBus sends the pointer again.
    assert asked.modes[1].periods == pytest.approx(periods / 2)
    assert ("knows SMBus only" in plan_text(asked, {})) == (functions != FUNC_I2C)


def test_an_adapter_that_is_not_here_is_assumed_as_before() -> None:
    bus = read_bus({"kind": "ina", "bus": 99, "sensors": [{"name": "a", "address": 0x40}]}, "here")
    assert bus is not None
    assert ask_adapter(plan_bus(bus)) == plan_bus(bus)


def test_a_rate_of_thousands_is_a_whole_number(tmp_path: Path) -> None:
    file = tmp_path / "fast.toml"
    file.write_text(
        '[[source]]\nkind = "ina"\nbus = 1\nrate_hz = 50\nsensors = '
        '[{ name = "a", address = 0x40, chip = "INA226", shunt_adc = "140us", bus_adc = "140us" }]\n'
    )
    assert "achievable 3247 Hz" in plan_text(plan_file(file)[0], {})


@pytest.mark.parametrize(("rate_hz", "verdict"), [(500, OK), (520, WARN)])
def test_check_and_plan_name_one_rate(
    rate_hz: int, verdict: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Eight chips at 400 kHz: single reads carry 515 scans a second, combined ones 530.
    file = tmp_path / "card.toml"
    sensors = ", ".join(f'{{ name = "{s["name"]}", address = {s["address"]} }}' for s in EIGHT)
    file.write_text(f'[[source]]\nkind = "ina"\nbus = 99\nrate_hz = {rate_hz}\nsensors = [{sensors}]\n')
    planned_status = main(["plan", str(file)])
    out, err = capsys.readouterr()
    (said,) = [row.strip() for row in out.splitlines() if "achievable" in row]
    assert said.startswith(f"achievable 515 Hz, asked {rate_hz} Hz")
    # Where combined reads would do, `plan` names its option, and `check` warns: `powerd run` does not refuse that.
    assert planned_status == (0 if verdict == OK else 2)
    assert ("--adapter combined" in err) == (verdict == WARN)
    assert main(["check", str(file), "--file-only"]) == 0
    checked = " ".join(capsys.readouterr().out.split())
    assert f"{verdict} plan: ina: {said}" in checked
    assert (f"the arithmetic: powerd plan {file}" in checked) == (verdict == WARN)
