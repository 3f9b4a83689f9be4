"""`joules optimise simulate` and `suggest` as they are typed."""

import csv
import json
from pathlib import Path

import pytest

from analytics.support.command import joules, refused
from powerd_analytics.optimise import advice
from powerd_analytics.optimise.advice import front
from powerd_analytics.optimise.traces import read_zeus
from powerd_analytics.plots import draw_front

TRACES = Path(__file__).parents[2] / "data/zeus/traces"
REFERENCE = json.loads((TRACES / "reference_v100.json").read_text())
V100 = ("--traces", TRACES, "--gpu", "v100")


def test_simulate_gives_the_reference_as_json(capsys):
    options = ("--policy", "zeus", "--eta", "0.5", "--seed", "1", "--format", "json")
    code, out, err = joules(capsys, "optimise", "simulate", *V100, *options)
    assert (code, err) == (0, "")
    rows = json.loads(out)
    assert [row["job"] for row in rows] == [row["job"] for row in REFERENCE]
    for row, wanted in zip(rows, REFERENCE, strict=True):
        assert (row["recurrences"], row["runs"]) == (wanted["nrec"], wanted["runs"])
        assert [row["last5_batch_size"], row["last5_power_cap_w"]] == wanted["l5cfg"]
        found = [row[name] for name in ("energy_j", "time_s", "last5_energy_j", "last5_time_s")]
        assert found == pytest.approx([wanted[name] for name in ("sumE", "sumT", "l5E", "l5T")], rel=1e-9)


def test_the_table_fits_a_terminal(capsys):
    for command in (["simulate", "--policy", "ours", "--seed", 1, "--seed", 2], ["suggest"]):
        code, out, _ = joules(capsys, "optimise", *command, *V100)
        assert code == 0
        assert max(len(line.rstrip()) for line in out.splitlines()) <= 80
        assert "movielens-1m" in out


def test_suggest_says_savings_front_and_what_slower_brings(capsys, tmp_path):
    picture = tmp_path / "savings.png"
    code, out, _ = joules(capsys, "optimise", "suggest", *V100, "--format", "json", "--plot", picture)
    assert code == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    rows = {row["job"]: row for row in json.loads(out)}
    assert rows["librispeech"]["savings_pct"] == pytest.approx(
        {"power_cap": 16.2, "batch_size": 18.0, "both": 42.8}, abs=0.05
    )
    for row in rows.values():
        times, energies = ([point[name] for point in row["pareto"]] for name in ("time_s", "energy_j"))
        assert times == sorted(times)
        assert energies == sorted(energies, reverse=True)
        assert all(point["u95_energy_j"] > 0 for point in row["pareto"])
        allowed = [point["energy_j"] for point in row["slower"]]
        assert allowed == sorted(allowed, reverse=True)
        assert allowed[0] <= row["default"]["energy_j"]
        best = {"batch_size": row["best"]["batch_size"], "power_cap_w": row["best"]["power_cap_w"]}
        assert row["as_good"][0] == best


def test_a_picture_of_all_settings_and_of_the_front(capsys, tmp_path):
    picture = tmp_path / "front.svg"
    options = (*V100, "--job", "squad", "--format", "json", "--plot", picture, "--kind", "front")
    code, out, _ = joules(capsys, "optimise", "suggest", *options)
    assert code == 0
    (row,) = json.loads(out)
    assert all(f"<!-- {p['batch_size']}, {p['power_cap_w']:g} W -->" in picture.read_text() for p in row["pareto"])
    assert "needs a picture" in refused(capsys, "optimise", "suggest", *V100, "--kind", "front")


def test_the_front_is_drawn_with_its_intervals_and_zoomed():
    trace = next(trace for trace in read_zeus(TRACES, "v100") if trace.job.name == "squad")
    figure = draw_front([trace], "v100", "measured")
    whole, near = figure.axes
    points = [line for line in whole.lines if line.get_color() == "#999999"]
    assert sum(len(line.get_xdata()) for line in points) == len(trace.settings)
    (default,) = (line for line in whole.lines if line.get_label() == "default settings")
    before = trace.expected(trace.job.default)
    assert (list(default.get_xdata()), list(default.get_ydata())) == ([before.time_s], [before.energy_j])
    best = front(trace)
    for ax in (whole, near):
        line, _, bars = ax.containers[0]
        assert list(zip(line.get_xdata(), line.get_ydata(), strict=True)) == [(a.time_s, a.energy_j) for a in best]
        across, along = ([s[1] - s[0] for s in bar.get_segments()] for bar in bars)
        assert [x for x, _ in across] == pytest.approx([2 * a.u95_share * a.time_s for a in best])
        assert [y for _, y in along] == pytest.approx([2 * a.u95_share * a.energy_j for a in best])
    low_s, high_s = near.get_xlim()
    assert all(low_s < a.time_s * (1 - a.u95_share) and a.time_s * (1 + a.u95_share) < high_s for a in best)
    assert high_s - low_s < 0.7 * (whole.get_xlim()[1] - whole.get_xlim()[0])
    assert {text.get_text() for text in near.texts} == {
        f"{a.settings.batch_size}, {a.settings.power_cap_w:g} W" for a in best
    }


@pytest.mark.parametrize("command", ["simulate", "suggest", "run"])
def test_help_has_no_line_that_the_terminal_breaks(capsys, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "80")
    folded = joules(capsys, "optimise", command, "--help")[1].partition("╭")[0]
    monkeypatch.setenv("COLUMNS", "200")
    assert folded == joules(capsys, "optimise", command, "--help")[1].partition("╭")[0]


@pytest.mark.parametrize(("share", "text"), [(-0.0003, "0.0 %"), (0.0, "0.0 %"), (-0.2, "-20.0 %"), (0.012, "+1.2 %")])
def test_no_share_is_minus_nothing(share, text):
    assert advice._percent(share) == text


def test_a_table_of_ones_own_runs_is_a_trace(capsys, tmp_path):
    table = tmp_path / "runs.csv"
    with table.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["job", "batch_size", "power_cap_w", "epochs", "energy_j", "time_s", "reached"])
        for size, cap, epochs, energy, time in [(64, 250, 10, 900, 9), (64, 150, 11, 700, 12), (128, 150, 9, 500, 8)]:
            writer.writerow(["mine", size, cap, epochs, energy, time, "true"])
        writer.writerow(["mine", 256, 150, 30, 2000, 20, "false"])
    code, out, _ = joules(capsys, "optimise", "suggest", "--traces", table, "--format", "json")
    assert code == 0
    (row,) = json.loads(out)
    assert (row["default"]["batch_size"], row["best"]["batch_size"]) == (64, 128)
    assert joules(capsys, "optimise", "simulate", "--traces", table, "--recurrences", 12)[0] == 0


@pytest.mark.parametrize(
    ("name", "cell", "message"),
    [
        ("reached", "", "row 2: reached is '', neither true nor false"),
        ("power_cap_w", "", "row 2: power_cap_w is '': it must be a number above 0: of a training without a cap"),
        ("power_cap_w", "max", "row 2: power_cap_w is 'max': it must be"),
        ("energy_j", "nan", "row 2: energy_j is 'nan'"),
        ("time_s", "-3", "row 2: time_s is '-3'"),
        ("epochs", "0", "row 2: epochs is '0'"),
    ],
)
def test_a_training_that_crashed_is_no_saving(capsys, tmp_path, name, cell, message):
    """One that did not reach its target counts nothing; a cell that does not say it is one line with its row."""
    names = ["job", "batch_size", "power_cap_w", "epochs", "energy_j", "time_s", "reached"]
    good = dict(zip(names, ["cnn", "32", "250", "10", "10000", "100", "true"], strict=True))
    crashed = good | {"batch_size": "256", "epochs": "1", "energy_j": "40", "time_s": "1", "reached": "false"}
    for last in (crashed, crashed | {name: cell}):
        with (tmp_path / "runs.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, names)
            writer.writeheader()
            writer.writerows([good, last])
        words = ("optimise", "suggest", "--traces", tmp_path / "runs.csv", "--format", "json")
        if last is crashed:
            assert json.loads(joules(capsys, *words)[1])[0]["best"]["batch_size"] == 32
        else:
            assert message in refused(capsys, *words)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--traces", TRACES), "name one with --gpu"),
        ((*V100, "--policy", "zues"), "did you mean 'zeus'"),
        ((*V100, "--eta", "2"), "must lie between 0 and 1"),
        ((*V100, "--job", "squat"), "did you mean 'squad'"),
        ((*V100, "--recurrences", "0"), "must be 1 or more"),
        (("--traces", TRACES, "--gpu", "h200"), "there are: p100, v100"),
        (("--traces", TRACES / "nothing.csv"), "nothing.csv"),
        (("--traces", TRACES / "summary_train.csv"), "there are no columns job"),
    ],
)
def test_what_cannot_be_done_is_one_line(capsys, options, message):
    assert message in refused(capsys, "optimise", "simulate", *options)


def test_suggest_takes_the_folder_of_a_sweep_of_caps_and_an_index(capsys, tmp_path):
    folder = tmp_path / "caps"
    sweep = ("--on", "sim:rtx6000", "--from", 140, "--to", 260, "--step", 40, "--repeats", 3, "--into", folder)
    assert joules(capsys, "campaign", "caps", *sweep)[0] == 0
    (row,) = json.loads(joules(capsys, "optimise", "suggest", "--traces", folder, "--format", "json")[1])
    assert row["default"]["power_cap_w"] == 260
    assert {a["power_cap_w"] for a in row["pareto"]} <= {140, 180, 220, 260}
    by_pct = {a["slower_pct"]: a for a in row["slower"]}
    assert by_pct[5]["power_cap_w"] < 260
    assert by_pct[5]["time_s"] <= 1.05 * row["default"]["time_s"]
    assert by_pct[5]["u95_energy_j"] > 0
    text = joules(capsys, "optimise", "suggest", "--traces", folder)[1]
    assert text.startswith("What is saved by those who may be slower")
    (folder / "campaign.jsonl").write_text("")
    assert "no run with joules" in joules(capsys, "optimise", "suggest", "--traces", folder)[2]
