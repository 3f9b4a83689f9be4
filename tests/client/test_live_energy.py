"""What a user is told of joules: at the close of a recording, while it goes on, in a notebook and in a tracker."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from powerd_analytics.energy.devices import load_parts
from powerd_analytics.runs.run import read_run
from powerd_client import Energy, EnergyLog, Meter, load_ipython_extension, log_totals, open_run
from powerd_client.energies.live_energy import LiveRun
from powerd_client.record.recording import record_command
from powerd_client.runs.runfile import read_objects
from powerd_core.wire import Message, encode
from support.small_run import OFFSET_NS, description, frames, head, make_journal, make_run_file
from support.steady import steady_daemon, wait_for
from support.tape import TapedMeter

WATTS = 3.0
"""Two lines of 1.5 W."""
LONG_S = 60.0


@pytest.fixture
def daemon():
    with steady_daemon() as made:
        yield made


@pytest.fixture
def told(tmp_path, monkeypatch, capfd):
    """The lines of the results that were printed, of recordings in a directory of their own."""
    monkeypatch.delenv("POWERD_QUIET", raising=False)
    monkeypatch.chdir(tmp_path)
    for patience in ("_RESULT_S", "_WAITS_S"):
        monkeypatch.setattr(f"powerd_client.record.recording.{patience}", LONG_S)

    def lines():
        return capfd.readouterr().err.splitlines()

    return lines


def test_a_command_that_marks_nothing_is_one_phase_and_tells_the_result(daemon, told):
    command = [sys.executable, "-c", ""]
    assert record_command(command, url=daemon.url, out=Path("run.h5"), overwrite=False, quiet=False) == 0
    lines = told()
    assert len(lines) <= 3
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("run.h5: gpu0 SIMULATED ")
    with open_run("run.h5") as file:
        assert [kind["name"] for kind in read_objects(file["phases/kinds"])] == ["run"]
        assert file["phases/end_ns"][0] - file["phases/begin_ns"][0] > 0
        assert file.attrs["t_start_ns"] < file["phases/begin_ns"][0]


def close_to(energy, joules):
    return energy.is_resolvable and abs(energy.energy_j - joules) <= max(energy.u95_j, 0.02 * joules)


def test_energies_while_the_program_runs(daemon, tmp_path):
    with Meter(daemon.url, tmp_path / "run.h5") as meter:
        with meter.phase("step") as first:
            time.sleep(0.2)
        with meter.phase("step") as second:
            time.sleep(0.4)
            wait_for(lambda: second.energy().is_resolvable)  # what has arrived of it
            assert second.energy().is_so_far
        early, late = first.energy(wait_s=LONG_S), second.energy(wait_s=LONG_S)
        for energy in (early, late):
            assert not energy.is_so_far
            assert (energy.count, energy.device, energy.provenance) == (1, "gpu0", "simulated")
            assert close_to(energy, WATTS * energy.seconds)
            assert "SIMULATED (gpu0)" in str(energy)
        assert late.seconds > early.seconds + 0.1
        mean = meter.energy("step", wait_s=LONG_S)
        assert mean.count == 2
        assert mean.seconds == pytest.approx((early.seconds + late.seconds) / 2)
        assert [energy.phase for energy in meter.energies()] == ["step"]
        unknown = meter.energy("stepp")
        assert not unknown.is_resolvable
        assert unknown.note in str(unknown)
        assert "gpu7" in meter.energy("step", "gpu7").note
    assert meter.energy("step").count == 2
    assert "closed" in first.energy().note


def test_where_nothing_is_recorded_an_energy_says_so():
    with TapedMeter() as meter, meter.phase("step") as phase:
        pass
    for energy in (phase.energy(), meter.energy("step"), *meter.energies()):
        assert energy.note == "nothing is recorded"
    assert phase.energy().phase == "step"


def test_a_function_is_measured_under_its_name_or_another():
    with TapedMeter() as meter:

        @meter.measure
        def step(x):
            return x + 1

        @meter.measure("epoch", batch_size=8)
        def train():
            return step(1)

        @meter.measure(batch_size=4)
        def evaluate():
            return train()

        assert evaluate() == 2
    assert meter.tree() == "evaluate:4[epoch:8[step]]"


class Shell:
    """Stands for IPython's."""

    def __init__(self):
        self.magics, self.cells = {}, []

    def register_magic_function(self, function, magic_kind, magic_name):
        self.magics[magic_kind, magic_name] = function

    def run_cell(self, cell):
        self.cells.append(cell)
        time.sleep(0.05)


def test_a_cell_is_recorded_by_itself_or_is_a_phase_of_the_meter_that_records(daemon, told):
    shell = Shell()
    load_ipython_extension(shell)
    joules = shell.magics["cell", "joules"]
    joules("", "a")
    with Meter(daemon.url, "run.h5", quiet=True) as meter:
        joules("evaluation", "b")
        assert meter.energy("evaluation", wait_s=LONG_S).count == 1
    alone, phase = told()
    assert shell.cells == ["a", "b"]
    assert alone.startswith("cell: ")
    assert phase.startswith("evaluation: ")
    assert [path.name for path in Path().glob("*.h5")] == ["run.h5"]


def test_readings_of_the_time_before_are_not_yet_those_of_the_phase(tmp_path):
    """They were on their way as the recording began; what was read was called damaged then."""
    begin = encode(Message("start", {"t_start_ns": OFFSET_NS + 10**9}))
    pieces = [head()[0], begin, description(), *frames(blocks=5)]
    live = LiveRun(make_journal(tmp_path / "run.h5", pieces), tmp_path / "run.h5", 0)
    (energy,) = live.ask("forward", None)
    assert (energy.is_resolvable, energy.is_so_far) == (False, True)
    assert "have not arrived" in energy.note


def test_energies_between_two_moments_are_the_integral_of_what_has_come(tmp_path):
    """They choose caps: the same joules as those of the file, and none before the last readings are there."""
    out = tmp_path / "run.h5"
    live = LiveRun(make_journal(out, [*head(), description(), *frames(blocks=30)], marks=False), out, 0)
    begin_ns, middle_ns, end_ns = (OFFSET_NS + n * 10**6 for n in (100, 500, 1100))
    whole, first, second = (
        live.between(*edges, 0.0, ["gpu0"])[0]
        for edges in ((begin_ns, end_ns), (begin_ns, middle_ns), (middle_ns, end_ns))
    )
    (part,) = load_parts(read_run(make_run_file(tmp_path / "file.h5")), "gpu0")
    joules = sum(float(signal.integral().between(begin_ns, end_ns)) for signal in part.signals)
    assert whole.energy_j == pytest.approx(joules) == pytest.approx(first.energy_j + second.energy_j)
    assert (whole.provenance, whole.device, whole.is_lower_bound) == ("simulated", "gpu0", False)
    (late,) = live.between(begin_ns, OFFSET_NS + 3 * 10**9, 0.0)
    assert (late.energy_j, late.is_so_far) == (None, True)
    assert live.between(begin_ns, end_ns, 0.0, ["gpu1"])[0].energy_j is None


def test_a_tracker_gets_joules_every_few_iterations():
    logged, lengths = [], []
    energy = Energy("forward", 4.0, 0.5, 2.0, 10, "gpu0", "measured")

    def energies_of(last_s):
        lengths.append(last_s)
        return [energy, Energy("update", note="too short")]

    meter = SimpleNamespace(energies=energies_of)

    def log(figures, step):
        logged.append((dict(figures), step))

    class Writer:
        def add_scalar(self, name, value, step):
            log({name: value}, step)

    expected = {"forward_j": 4.0, "forward_u95_j": 0.5, "forward_w": 2.0}
    expected = {f"energy/gpu0.measured/{name}": value for name, value in expected.items()}
    ml = SimpleNamespace(log_metrics=log)
    for to in (log, SimpleNamespace(log=log), ml, Writer()):
        logged.clear()
        tracker = EnergyLog(meter, to, every=3)
        for _ in range(3):
            assert not logged
            tracker()
        tracker.close()
        assert {name: value for figures, _ in logged for name, value in figures.items()} == expected
        assert {iteration for _, iteration in logged} == {3}
    assert len(lengths) == 4


class Trackers:
    """What reached each of the kinds of trackers, by what these document."""

    def __init__(self):
        self.figures = {"W&B": {}, "W&B API": {}, "MLflow": {}, "TensorBoard": {}, "function": {}}
        self.iterations = set()

    def targets(self):
        summary = SimpleNamespace(update=self.figures["W&B"].update)
        of_api = SimpleNamespace(update=self.figures["W&B API"].update)
        return {
            "W&B": SimpleNamespace(log=None, summary=summary),
            "W&B API": SimpleNamespace(summary=of_api),
            "MLflow": SimpleNamespace(log_metrics=lambda metrics, step: self.log("MLflow", metrics, step)),
            "TensorBoard": SimpleNamespace(add_scalar=lambda tag, x, step: self.log("TensorBoard", {tag: x}, step)),
            "function": lambda figures, iteration: self.log("function", figures, iteration),
        }

    def log(self, to, figures, iteration):
        assert to != "MLflow" or not set("".join(figures)) & set("=,")
        self.figures[to].update(figures)
        self.iterations.add((to, iteration))


def test_a_tracker_gets_the_totals_of_a_run_that_is_closed(daemon, told):
    with Meter(daemon.url, out="run.h5", quiet=True) as meter:
        for _ in range(3):
            with meter.phase("step", batch_size=8, model="m"):
                time.sleep(0.05)
    trackers = Trackers()
    for name, to in trackers.targets().items():
        figures = log_totals("run.h5", to)
        assert list(figures.values()) == list(trackers.figures[name].values())
        assert name == "MLflow" or figures == trackers.figures[name]
    assert trackers.iterations == {("MLflow", None), ("TensorBoard", 0), ("function", None)}
    group = "powerd/gpu0.simulated/batch_size=8,model=m"
    assert figures["powerd/gpu0.simulated/power_w"] == pytest.approx(WATTS, rel=0.05)
    assert figures[f"{group}/energy_j"] == pytest.approx(3 * figures[f"{group}/step/j_per_batch"], rel=1e-6)
    assert "powerd/gpu0.simulated/batch_size_8_model_m/step/j_per_batch" in trackers.figures["MLflow"]
    assert log_totals("run.h5", lambda *_: None, device="gpu0") == figures
    assert told() == []


def test_totals_that_cannot_be_logged_are_told_and_stop_nothing(daemon, told, tmp_path):
    def offline(figures, iteration):
        raise ConnectionError("offline")

    assert log_totals(tmp_path / "none.h5", print) == {}
    assert "the totals of" in told()[-1]
    with Meter(daemon.url, out="run.h5", quiet=True):
        pass
    assert log_totals("run.h5", offline) == {}
    assert told()[-1].endswith("the totals of run.h5 are not logged: ConnectionError: offline")
