"""Runs that no figure can be made of, given to the commands that take one run: one line, status 2, nothing written."""

from pathlib import Path

import numpy as np
import pytest
from make_run import MS, LineSpec, PhaseSpec, S, make_run

from powerd_analytics.cli.app import main

NONE = np.zeros(0, np.int64)
PHASES = [
    PhaseSpec("training", 100 * MS, 900 * MS, {"model": "m", "batch_size": 8}),
    *(PhaseSpec("forward", at * MS, (at + 40) * MS, {}, 0) for at in range(100, 900, 100)),
]


def constant(t: np.ndarray) -> np.ndarray:
    return np.full(len(t), 100.0)


def unusable(path: Path, what: str) -> Path:
    late = [PhaseSpec(p.name, p.begin_ns + 10 * S, p.end_ns + 10 * S, p.attributes, p.parent) for p in PHASES]
    lines = {
        "empty": [],
        "no readings": [LineSpec("gpu0.a", t_ns=NONE, codes={"power_mw": NONE})],
        "one reading": [LineSpec("gpu0.a", constant, t_ns=np.array([500 * MS]))],
        "other clock": [LineSpec("gpu0.a", constant, t_ns=np.arange(100 * S, 101 * S, 2 * MS))],
    }.get(what, [LineSpec("gpu0.a", constant)])
    return make_run(path, lines, {"no phases": [], "outside": late}.get(what, PHASES))


@pytest.mark.parametrize("what", ["empty", "no phases", "no readings", "one reading", "other clock", "outside"])
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


@pytest.mark.parametrize("kind", [[], ["--kind", "power"], ["--kind", "phases"], ["--kind", "layers"]])
def test_an_empty_run_gives_no_picture(tmp_path, capsys, kind):
    path = unusable(tmp_path / "run.h5", "empty")
    with pytest.raises(SystemExit) as stopped:
        main(["plot", str(path), "-o", str(tmp_path / "out.png"), *kind])
    assert stopped.value.code == 2
    assert capsys.readouterr().err.startswith("joules: ")
    assert list(tmp_path.iterdir()) == [path]
