"""Runs that no figure can be made of, given to the commands that take one run: one line, status 2, nothing written."""

from pathlib import Path

import numpy as np
import pytest
from make_run import MS, LineSpec, PhaseSpec, S, constant, make_run

from powerd_analytics.cli.app import main

NONE = np.zeros(0, np.int64)
PHASES = [
    PhaseSpec("training", 100 * MS, 900 * MS, {"model": "m", "batch_size": 8}),
    *(PhaseSpec("forward", at * MS, (at + 40) * MS, {}, 0) for at in range(100, 900, 100)),
]


def unusable(path: Path, what: str) -> Path:
    still = [PhaseSpec(p.name, p.begin_ns, p.end_ns if p.parent < 0 else p.begin_ns, {}, p.parent) for p in PHASES]
    late = [PhaseSpec(p.name, p.begin_ns + 10 * S, p.end_ns + 10 * S, p.attributes, p.parent) for p in PHASES]
    lines = {
        "empty": [],
        "no readings": [LineSpec("gpu0.a", t_ns=NONE, codes={"power_mw": NONE})],
        "one reading": [LineSpec("gpu0.a", constant, t_ns=np.array([500 * MS]))],
        "other clock": [LineSpec("gpu0.a", constant, t_ns=np.arange(100 * S, 101 * S, 2 * MS))],
    }.get(what, [LineSpec("gpu0.a", constant)])
    return make_run(path, lines, {"no phases": [], "outside": late, "no time": still}.get(what, PHASES))


@pytest.mark.parametrize(
    "what", ["empty", "no phases", "no readings", "one reading", "other clock", "outside", "no time"]
)
@pytest.mark.parametrize("command", ["tables", "uncertainty", "report"])
def test_one_line_and_nothing_written(tmp_path, capsys, what, command):
    path = unusable(tmp_path / "run.h5", what)
    with pytest.raises(SystemExit) as stopped:
        main([command, str(path), "-o", str(tmp_path / "out.html")])
    out, err = capsys.readouterr()
    assert stopped.value.code == 2
    assert out == ""
    assert err.startswith(f"joules: {path}: ")
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == [path]


KINDS = ("", "power", "phases", "pareto", "caps", "matrix", "layers", "treemap", "quality")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("what", ["empty", "no readings", "one reading", "other clock"])
def test_a_run_without_readings_gives_no_picture_of_any_kind(tmp_path, capsys, kind, what):
    path = unusable(tmp_path / "run.h5", what)
    with pytest.raises(SystemExit) as stopped:
        main(["plot", str(path), "-o", str(tmp_path / "out.png"), *(["--kind", kind] if kind else [])])
    assert stopped.value.code == 2
    err = capsys.readouterr().err
    assert err.startswith(f"joules: {path}: ")
    assert "this run is empty" in err if what == "empty" else "fewer than two good readings while it ran" in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("command", ["tables", "uncertainty", "report", "compare", "plot"])
def test_a_figure_among_the_attributes_that_is_none_is_refused_by_every_command(tmp_path, capsys, command):
    path, other, out = tmp_path / "run.h5", tmp_path / "other.h5", tmp_path / "out"
    lines = [LineSpec("gpu0.a", constant)]
    make_run(path, lines, [PhaseSpec(p.name, p.begin_ns, p.end_ns, {"batch_size": "lots"}) for p in PHASES])
    make_run(other, lines, PHASES)
    options = {"report": [path, "-o", f"{out}.html"], "compare": [path, other, "-o", f"{out}.md"],
               "plot": [path, "-o", f"{out}.png"]}.get(command, [path, "-o", f"{out}.csv"])  # fmt: skip
    with pytest.raises(SystemExit) as stopped:
        main([command, *map(str, options)])
    said, err = capsys.readouterr()
    assert (stopped.value.code, said) == (2, "")
    assert f"joules: {path}: phase row 1 ('training'), attribute batch_size: 'lots' is no number" in err
    assert err.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == [other, path]


def test_a_campaign_lists_the_file_and_the_attribute(tmp_path, capsys):
    folder = tmp_path / "runs"
    folder.mkdir()
    path = folder / "run.h5"
    make_run(path, [LineSpec("gpu0.a", constant)], [PhaseSpec("forward", 0, S, {"epochs": float("nan")})])
    with pytest.raises(SystemExit) as stopped:
        main(["index", str(folder), "--jobs", "1"])
    assert stopped.value.code == 1
    assert f"{path}: phase row 1 ('forward'), attribute epochs: nan is no finite number" in capsys.readouterr().err
    assert list(folder.iterdir()) == [path]


def test_an_uncertainty_without_parts_gives_no_picture(tmp_path, capsys):
    path = unusable(tmp_path / "run.h5", "")
    with pytest.raises(SystemExit) as stopped:
        main(["uncertainty", str(path), "--phase", "forward", "--plot", str(tmp_path / "out.png")])
    out, err = capsys.readouterr()
    assert (stopped.value.code, out) == (2, "")
    assert err == f"joules: {path}: nothing to draw: its lines state no error, and its readings show none\n"
    assert list(tmp_path.iterdir()) == [path]
