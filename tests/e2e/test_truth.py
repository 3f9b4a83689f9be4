"""Recorded runs give the figures that release 0.1.0 gave: joules, seconds, watts and their uncertainties.

What is pinned must be there again; new rows and columns beside it are no concern of these tests.
"""

import json
import math
from pathlib import Path

import pytest

from powerd_analytics import cli, table

DATA = Path(__file__).parents[1] / "data" / "truth"
CASES = {
    "sim.tables": ["tables", "sim.h5"],
    "h200.tables": ["tables", "h200.h5"],
    "ranks.tables": ["tables", "ranks.h5"],
    "gaps.tables": ["tables", "gaps.h5"],
    "h200.uncertainty": ["uncertainty", "h200.h5"],
    "ranks.uncertainty": ["uncertainty", "ranks.h5"],
    "gaps.uncertainty": ["uncertainty", "gaps.h5"],
    "sim-gaps.compare": ["compare", "sim.h5", "gaps.h5"],
}
RELATIVE = 1e-9
OF_THE_WHOLE = 1e-12
"""What two large energies leave of one another is round-off below this share of them."""
NAMES = ("table", "kind", "run", "model", "batch_size", "group", "phase", "path", "phase_path", "device", "provenance")
NAMES += ("rank", "ranks", "devices", "figure", "part")
FREE_TEXT = ("note", "notes", "words")


def name_of(row):
    """What tells a row from the others of its list."""
    return ", ".join(f"{key}={json.dumps(row[key])}" for key in NAMES if row.get(key) not in (None, {}))


def is_rows(value):
    return isinstance(value, list) and bool(value) and all(isinstance(item, dict) for item in value)


def slack_of(key, row):
    """By how much a figure may be off beside its own ``RELATIVE``."""
    if not key.startswith(("residual", "rest")):
        return 0.0
    wholes = (row.get(name) for name in ("energy_j", "devices_j"))
    return OF_THE_WHOLE * max((abs(joules) for joules in wholes if is_figure(joules)), default=0.0)


def differences(old, new, where, slack=0.0):
    """A line for each place where ``new`` lacks or changes what ``old`` has."""
    if is_rows(old):
        if not isinstance(new, list):
            return [f"{where}: was rows, is {new!r}"]
        rows = {name_of(row): row for row in new}
        assert len({name_of(row) for row in old}) == len(old), f"{where}: pinned rows of one name"
        found = []
        for row in old:
            place = f"{where}: [{name_of(row)}]"
            same = rows.get(name_of(row))
            found += [f"{place} is gone"] if same is None else differences(row, same, place)
        return found
    if isinstance(old, dict):
        if not isinstance(new, dict):
            return [f"{where}: was {old!r}, is {new!r}"]
        found = [f"{where} {key}: is gone, was {old[key]!r}" for key in old if key not in new]
        for key in old.keys() & new.keys():
            if key not in FREE_TEXT:
                found += differences(old[key], new[key], f"{where} {key}", slack_of(key, old))
            elif bool(old[key]) != bool(new[key]):
                found.append(f"{where} {key}: was {old[key]!r}, is {new[key]!r}")
        return found
    if old is None and is_figure(new) and where.endswith("u95_j") and ('="rank"' in where or '="job"' in where):
        return []  # rows of ranks and jobs had no interval in 0.1.0
    if is_figure(old) and is_figure(new) and float in (type(old), type(new)):
        if math.isclose(old, new, rel_tol=RELATIVE, abs_tol=slack) or (math.isnan(old) and math.isnan(new)):
            return []
    elif type(old) is type(new) and old == new:
        return []
    return [f"{where}: was {old!r}, is {new!r}"]


def is_figure(value):
    return isinstance(value, int | float) and not isinstance(value, bool)


@pytest.fixture(scope="module")
def folds():
    """Results of the regression, which two commands on one file ask for: it takes nearly all of their time."""
    return {}


@pytest.mark.parametrize(("name", "arguments"), CASES.items(), ids=CASES)
def test_a_recorded_run_gives_the_same_figures(name, arguments, folds, monkeypatch, capsys):
    def folded_once(signals, phases):
        key = (tuple((s.line.name, len(s)) for s in signals), phases.begin_ns.tobytes(), phases.kind.tobytes())
        if key not in folds:
            folds[key] = fold(signals, phases)
        return folds[key]

    fold = table.fold
    monkeypatch.setattr(table, "fold", folded_once)
    monkeypatch.chdir(DATA)
    with pytest.raises(SystemExit) as stopped:
        cli.main([*arguments, "--format", "json"])
    out, err = capsys.readouterr()
    assert stopped.value.code == 0, err
    pinned = json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))
    found = differences(pinned, json.loads(out), name)
    assert not found, f"{len(found)} differences:\n" + "\n".join(found[:40])


@pytest.mark.parametrize("share", [2e-9, 1e-6])
def test_one_figure_that_is_off_is_named(share):
    pinned = json.loads((DATA / "h200.tables.json").read_text(encoding="utf-8"))
    changed = json.loads(json.dumps(pinned))
    row = next(r for r in changed if r["path"] == "training/iteration/forward" and r["batch_size"] == 128)
    old, row["u95_j"] = row["u95_j"], row["u95_j"] * (1 + share)
    row["new"] = 1
    (line,) = differences(pinned, changed, "h200.tables")
    assert 'phase="forward"' in line
    assert line.endswith(f" u95_j: was {old!r}, is {row['u95_j']!r}")
    assert not differences(pinned, pinned, "h200.tables")
    del row["u95_j"]
    (line,) = differences(pinned, changed, "h200.tables")
    assert "u95_j: is gone" in line
