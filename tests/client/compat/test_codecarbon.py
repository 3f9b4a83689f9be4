"""CodeCarbon's names: trackers and tasks as windows of a recording, and the files that its readers expect."""

import csv
import math
import time
from functools import partial

import pandas as pd
import pytest

from powerd_client.compat import windows as windows_module
from powerd_client.compat.codecarbon import (
    EmissionsTracker,
    OfflineEmissionsTracker,
    OutputMethod,
    TaskEmissionsTracker,
    track_emissions,
    track_task_emissions,
)
from powerd_core.errors import ConfigError
from support.joined import join_recording

GPU0_W, GPU1_W, PACKAGE_W, DRAM_W = 100.0, 250.0, 40.0, 8.0
FRANCE = 44.18
COLUMNS = [
    "timestamp",
    "project_name",
    "run_id",
    "experiment_id",
    "duration",
    "emissions",
    "emissions_rate",
    "cpu_power",
    "gpu_power",
    "ram_power",
    "cpu_energy",
    "gpu_energy",
    "ram_energy",
    "energy_consumed",
    "water_consumed",
    "country_name",
    "country_iso_code",
    "region",
    "cloud_provider",
    "cloud_region",
    "os",
    "python_version",
    "codecarbon_version",
    "cpu_count",
    "cpu_model",
    "gpu_count",
    "gpu_model",
    "longitude",
    "latitude",
    "ram_total_size",
    "tracking_mode",
    "cpu_utilization_percent",
    "gpu_utilization_percent",
    "ram_utilization_percent",
    "ram_used_gb",
    "on_cloud",
    "pue",
    "wue",
]
"""Those of codecarbon 3.3.2, in its order."""


@pytest.fixture
def joined(tmp_path, monkeypatch):
    """Begins a recording around this process, in a folder of its own."""
    monkeypatch.setattr(windows_module, "_here", None)
    monkeypatch.setattr("powerd_client.energies.live_energy.analytics", lambda: None)  # the plain integral: no scipy
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    yield partial(join_recording, tmp_path, monkeypatch)
    if windows_module._here is not None:
        windows_module._here.meter.close()


@pytest.fixture
def machine(joined):
    gpus = {"gpu0": lambda _: GPU0_W, "gpu1": lambda _: GPU1_W}
    return joined(gpus, {"cpu0.package_0": lambda _: PACKAGE_W, "cpu0.dram_0": lambda _: DRAM_W})


def rows(path="emissions.csv"):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def run(tracker, seconds=0.05):
    tracker.start()
    time.sleep(seconds)
    return tracker.stop()


def test_a_row_has_codecarbons_columns_and_the_joules_of_each_part(machine, capfd):
    tracker = EmissionsTracker(project_name="p", country_iso_code="FRA")
    emissions = run(tracker)
    (row,) = rows()
    assert list(row) == COLUMNS
    seconds = float(row["duration"])
    assert seconds >= 0.05
    for part, watts in (("gpu", GPU0_W + GPU1_W), ("cpu", PACKAGE_W), ("ram", DRAM_W)):
        assert float(row[f"{part}_energy"]) == pytest.approx(watts * seconds / 3.6e6, rel=0.02)
        assert float(row[f"{part}_power"]) == pytest.approx(watts, rel=0.02)
    kwh = sum(float(row[f"{part}_energy"]) for part in ("gpu", "cpu", "ram"))
    assert float(row["energy_consumed"]) == pytest.approx(kwh)
    assert emissions == tracker.final_emissions == float(row["emissions"]) == pytest.approx(kwh * FRANCE / 1000)
    assert (row["project_name"], row["country_name"], row["country_iso_code"]) == ("p", "France", "FRA")
    assert (row["gpu_count"], row["gpu_model"]) == ("2", "1 x Card of gpu0, 1 x Card of gpu1 SIMULATED")
    assert row["cpu_utilization_percent"] == row["longitude"] == ""
    energies = {e.device: e for e in tracker.final_emissions_data.energies}
    assert energies["gpu0"].u95_j == pytest.approx(1.96 * 0.01 * GPU0_W * seconds, rel=0.02)
    told = capfd.readouterr().err
    assert "44.18 g/kWh (France 2024: Ember" in told
    assert "gpu0" in told
    assert "J SIMULATED" in told


def test_rows_are_appended_and_read_by_pandas(machine):
    for project in ("a", "b"):
        run(OfflineEmissionsTracker(project_name=project, country_iso_code="DEU"), 0.01)
    frame = pd.read_csv("emissions.csv")
    assert list(frame.project_name) == ["a", "b"]
    assert list(frame.columns) == COLUMNS
    assert (frame.energy_consumed > 0).all()
    assert frame.run_id.nunique() == 2


def test_factors_of_the_site(machine):
    tracker = EmissionsTracker(pue=2, wue=1.5, force_carbon_intensity_g_co2e_kwh=500)
    run(tracker)
    data = tracker.final_emissions_data
    joules = sum(energy.energy_j for energy in data.energies)
    assert data.energy_consumed == pytest.approx(2 * joules / 3.6e6)
    assert data.emissions == pytest.approx(data.energy_consumed * 0.5)
    assert data.water_consumed == pytest.approx(data.energy_consumed * 1.5)
    assert (data.pue, data.wue) == (2, 1.5)


@pytest.mark.parametrize(
    ("options", "why"),
    [({}, "no country is named, and the network is not asked"), ({"country_iso_code": "XYZ"}, "'XYZ'")],
)
def test_what_emits_nobody_knows_is_unknown_and_not_0(machine, capfd, options, why):
    assert math.isnan(run(EmissionsTracker(**options)))
    assert rows()[0]["emissions"] == ""
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("powerd: ")]
    assert len(lines) == 1
    assert why in lines[0]


def test_what_nothing_reads_is_an_empty_cell_and_not_0(joined, capfd):
    joined({"gpu0": lambda _: GPU0_W})
    run(EmissionsTracker(country_iso_code="FRA"))
    (row,) = rows()
    assert row["cpu_energy"] == row["ram_power"] == ""
    assert float(row["energy_consumed"]) == float(row["gpu_energy"]) > 0
    assert "nothing reads the joules of processor, memory here" in capfd.readouterr().err


def test_tasks_have_their_own_figures_and_file(machine):
    tracker = EmissionsTracker(country_iso_code="FRA", experiment_name="study")
    for name in ("load", "infer", "infer"):
        tracker.start_task(name)
        time.sleep(0.02)
        data = tracker.stop_task()
        assert data.gpu_power == pytest.approx(GPU0_W + GPU1_W, rel=0.02)
    emissions = tracker.stop()
    assert emissions == pytest.approx(sum(task.emissions_data.emissions for task in tracker._tasks.values()))
    assert tracker.final_emissions_data.duration == pytest.approx(
        sum(task.emissions_data.duration for task in tracker._tasks.values())
    )
    of_tasks = rows(f"emissions_study_{tracker.run_id}.csv")
    assert [row["task_name"].partition("_")[0] for row in of_tasks] == ["load", "infer", "infer"]
    assert len({row["task_name"] for row in of_tasks}) == 3
    absent = {"experiment_id", "pue", "wue", "longitude", "gpu_utilization_percent"}
    assert absent.isdisjoint(of_tasks[0])
    assert len(rows()) == 1


def test_a_tracker_that_was_started_counts_what_lies_between_tasks_too(machine):
    tracker = EmissionsTracker(country_iso_code="FRA")
    tracker.start()
    with TaskEmissionsTracker("a", tracker):
        time.sleep(0.01)

    @track_task_emissions(tracker=tracker, task_name="b")
    def work(x):
        time.sleep(0.01)
        return x

    time.sleep(0.05)
    assert work(3) == 3
    tracker.stop()
    tasks = [task.emissions_data.energy_consumed for task in tracker._tasks.values()]
    assert tracker.final_emissions_data.energy_consumed > 2 * sum(tasks)


def test_flush_appends_or_updates(machine):
    for mode, expected in (("append", 3), ("update", 1)):
        tracker = EmissionsTracker(country_iso_code="FRA", output_file=f"{mode}.csv", on_csv_write=mode)
        tracker.start()
        tracker.flush()
        assert tracker.flush() > 0
        tracker.stop()
        every = rows(f"{mode}.csv")
        assert len(every) == expected
        assert float(every[-1]["duration"]) == pytest.approx(tracker.final_emissions_data.duration)
    run(tracker_again := EmissionsTracker(output_file="update.csv", on_csv_write="update", country_iso_code="FRA"))
    assert [row["run_id"] for row in rows("update.csv")] == [str(tracker.run_id), str(tracker_again.run_id)]


def test_a_file_with_other_columns_is_moved_away(machine, tmp_path, capfd):
    path = tmp_path / "emissions.csv"
    for number, name in ((1, "emissions.csv.bak"), (2, "emissions.csv_0.bak")):
        path.write_text(f"a,b\n{number},2\n")
        run(EmissionsTracker(country_iso_code="FRA"), 0.01)
        assert (tmp_path / name).read_text() == f"a,b\n{number},2\n"
        assert len(rows()) == 1
        assert f"it is {name} now" in capfd.readouterr().err
    columns = sorted(COLUMNS)
    path.write_text(",".join(columns) + "\n")
    run(EmissionsTracker(project_name="sorted", country_iso_code="FRA"), 0.01)
    assert list(rows()[0]) == columns
    assert rows()[0]["project_name"] == "sorted"


def test_decorator_and_context(machine):
    @track_emissions(project_name="decorated", country_iso_code="FRA", offline=True)
    def work(x):
        return x + 1

    @track_emissions
    def fail():
        raise KeyError("a")

    assert work(1) == 2
    with pytest.raises(KeyError):
        fail()
    with EmissionsTracker(project_name="context", country_iso_code="FRA") as tracker:
        time.sleep(0.01)
    assert tracker.final_emissions > 0
    assert [row["project_name"] for row in rows()] == ["decorated", "codecarbon", "context"]


def test_options_come_from_the_environment_and_files_too(machine, tmp_path, monkeypatch):
    (tmp_path / ".codecarbon.config").write_text("[codecarbon]\nproject_name = file\ncountry_iso_code = FRA\npue = 3\n")
    monkeypatch.setenv("CODECARBON_PROJECT_NAME", "variable")
    monkeypatch.setenv("CODECARBON_SAVE_TO_FILE", "false")
    tracker = EmissionsTracker(pue=1)
    assert run(tracker) > 0
    assert not (tmp_path / "emissions.csv").exists()
    assert (tracker.final_emissions_data.project_name, tracker.final_emissions_data.pue) == ("variable", 1)
    monkeypatch.setenv("CODECARBON_WUE", "much")
    with pytest.raises(ConfigError, match="wue='much' is no number"):
        EmissionsTracker()
    assert EmissionsTracker(wue=1)._conf["wue"] == 1
    (tmp_path / ".codecarbon.config").write_text("project_name = p\n")
    with pytest.raises(ConfigError, match=r"\.codecarbon\.config cannot be read: .*no section"):
        EmissionsTracker()


def test_gpus_are_chosen_by_number_and_uuid(machine, capfd):
    for ids, watts in (([1], GPU1_W), ("0,1", GPU0_W + GPU1_W), ("GPU-gpu0", GPU0_W), ([1, 5], GPU1_W)):
        tracker = EmissionsTracker(gpu_ids=ids, country_iso_code="FRA", save_to_file=False)
        run(tracker, 0.03)
        assert tracker.final_emissions_data.gpu_power == pytest.approx(watts, rel=0.02)
    assert capfd.readouterr().err.count("gpu_ids: there is no GPU 5 here") == 1


def test_calls_out_of_order_warn_and_go_on(machine, capfd):
    tracker = EmissionsTracker(country_iso_code="FRA", save_to_file=False)
    assert tracker.stop() is None
    assert tracker.flush() is None
    assert tracker.stop_task() is None
    tracker.start()
    tracker.start()
    tracker.start_task("a")
    tracker.start_task("b")
    emissions = tracker.stop()
    assert tracker.stop() == emissions > 0
    assert list(tracker._tasks) == ["a"]
    assert not tracker._tasks["a"].is_active
    told = capfd.readouterr().err
    for text in ("never started", "first need to start", "No active task", "Already started", "already under measure"):
        assert text in told


def test_options_that_cannot_be_are_refused(machine):
    with pytest.raises(TypeError, match="has no option 'projectname'.*project_name"):
        EmissionsTracker(projectname="p")
    for options, text in (
        ({"output_dir": "nowhere"}, "there is no folder nowhere"),
        ({"on_csv_write": "replace"}, "give append or update"),
        ({"output_methods": ["paper"]}, "there are csv, api"),
        ({"pue": "two"}, "pue='two' is no number"),
        ({"force_carbon_intensity_g_co2e_kwh": -1}, "give a number from 0"),
    ):
        with pytest.raises((ValueError, OSError), match=text):
            EmissionsTracker(**options)


def test_what_has_no_effect_is_said_once(machine, capfd):
    EmissionsTracker("p", 1.0, api_key="k", force_cpu_power=65, output_methods=[OutputMethod.API, "csv"])
    (line,) = capfd.readouterr().err.splitlines()
    assert line == "powerd: without effect in powerd's EmissionsTracker: api_key, force_cpu_power, api"


def test_handlers_of_the_users_get_the_figures(machine, capfd):
    class Handler:
        def __init__(self):
            self.got = []

        def out(self, total, delta):
            self.got.append(total.values["project_name"])

        def task_out(self, data, experiment_name):
            self.got += [(task.task_name, task.gpu_energy > 0, experiment_name) for task in data]

    good, bad = Handler(), object()
    tracker = EmissionsTracker(output_handlers=[bad, good], country_iso_code="FRA", log_level="error")
    tracker.start_task("a")
    tracker.stop()
    assert good.got == ["codecarbon", ("a", True, "base")]
    (line,) = capfd.readouterr().err.splitlines()
    assert "object failed: AttributeError" in line


def test_what_hardware_there_is(machine):
    hardware = EmissionsTracker(save_to_file=False).get_detected_hardware()
    assert (hardware["gpu_count"], hardware["cpu_physical_count"]) == (2, 1)
    assert hardware["ram_total_size"] > 0
