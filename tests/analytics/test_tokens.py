"""Tokens beside samples: joules a token, tokens a joule and a second, by the attribute `tokens_per_sample`."""

import csv
import io

import h5py
import numpy as np
import pytest
from command import joules
from make_campaign import one_run, with_attributes
from make_run import MS, LineSpec, PhaseSpec, make_run, training

from powerd_analytics.frame.figures import rows_of, run_frame
from powerd_analytics.runs.phases import read_phases
from powerd_client.runs.build import _write_phases
from powerd_client.signals.pairing import Kinds, PhaseSpans, take_counts
from powerd_core.marks import Mark


def run(path, tokens):
    tr = with_attributes(training((64,), 12), tokens_per_sample=tokens)
    return make_run(path, [LineSpec("gpu0.a", tr.power())], tr.phases, end_ns=tr.end_ns, run_id=path.stem)


def test_a_token_takes_a_share_of_its_sample(tmp_path):
    for row in rows_of(run_frame(run(tmp_path / "a.h5", 512))):
        if row["j_per_sample"] is not None:
            assert row["j_per_token"] == pytest.approx(row["j_per_sample"] / 512)
            assert row["tokens_per_j"] == pytest.approx(512 / row["j_per_sample"])
        if row["samples_per_s"] is not None:
            assert row["tokens_per_s"] == pytest.approx(512 * row["samples_per_s"])
    assert any(row["j_per_token"] for row in rows_of(run_frame(tmp_path / "a.h5")))


def test_without_tokens_there_is_no_such_column(tmp_path, capsys):
    code, out, _ = joules(capsys, "tables", one_run(tmp_path / "a.h5"), "--table", "totals")
    assert code == 0
    assert "token" not in out


def test_lengths_of_a_sample_part_cells_and_tables_have_joules_a_token_with_u95(tmp_path, capsys):
    for name, tokens in (("a", 512), ("b", 512), ("c", 1024)):
        run(tmp_path / f"{name}.h5", tokens)
    code, out, _ = joules(
        capsys, "tables", tmp_path, "--pivot", "tokens_per_sample:batch:j-per-token", "--format", "csv"
    )
    assert code == 0
    short, long = csv.DictReader(io.StringIO(out))
    (name,) = [key for key in short if key.startswith("j_per_token") and "u95" not in key]
    assert float(short[name]) == pytest.approx(2 * float(long[name]), rel=1e-6)
    code, out, _ = joules(capsys, "tables", tmp_path, "--table", "totals", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert len(rows) == 2
    assert all(float(row["u95_j_per_token"]) >= 0 for row in rows if row["u95_j_per_token"])


def test_a_run_file_keeps_the_tokens_of_each_phase(tmp_path):
    spans, kinds = PhaseSpans(), Kinds()
    for number, tokens in enumerate((600, 4, 3, None)):
        own = {} if tokens is None else {"tokens": tokens}
        kind = kinds.number({"name": "decode", "attributes": own, "timing": "host"})
        spans.begin(Mark(kind, True, 1, 10 * number + 1), kind, -1, 0, 0)
    take_counts(spans, kinds)
    with h5py.File(tmp_path / "p.h5", "w") as file:
        _write_phases(file, spans, kinds.entries)
        phases = read_phases(file["phases"])
    assert phases.tokens.tolist() == [600, 4, 3, 0]
    assert len({kind.name for kind in phases.classes}) == len(phases.classes) == 1


def generation(path):
    """Four generations: a prefill of 100 ms at 300 W, then 10 decodes of 50 ms at 150 W."""
    phases, at, of_batch = [], 0, {"batch_size": 4}
    for prompt in (400, 600, 400, 200):
        phases.append(PhaseSpec("prefill", at, at + 100 * MS, of_batch, tokens=prompt))
        at += 100 * MS
        for step in range(10):
            phases.append(PhaseSpec("decode", at, at + 50 * MS, of_batch, tokens=4 if step < 5 else 3))
            at += 50 * MS
    begins = [p.begin_ns for p in phases]
    watts = np.array([300.0 if p.name == "prefill" else 150.0 for p in phases])
    line = LineSpec("gpu0.a", lambda t: watts[np.searchsorted(begins, t, "right") - 1], provenance="measured")
    return make_run(path, [line], phases, end_ns=at)


def test_a_token_of_prefill_and_one_of_decode_have_joules_by_phase(tmp_path, capsys):
    run = generation(tmp_path / "g.h5")
    rows = {row["phase"]: row for row in rows_of(run_frame(run)) if row["kind"] == "phase"}
    assert rows["prefill"]["tokens_per_batch"] == 400
    assert rows["prefill"]["j_per_token"] == pytest.approx(30 / 400, rel=0.02)
    assert rows["prefill"]["tokens_per_s"] == pytest.approx(4000)
    assert rows["decode"]["tokens_per_batch"] == 3.5
    assert rows["decode"]["j_per_token"] == pytest.approx(7.5 / 3.5, rel=0.02)
    assert rows["decode"]["tokens_per_j"] == pytest.approx(1 / rows["decode"]["j_per_token"])
    _, text, _ = joules(capsys, "tables", run)
    heading, *lines = (line.split() for line in text.splitlines() if "J/token" in line or "code" in line)
    assert heading[-1] == "J/token"
    assert float(lines[0][-1]) == pytest.approx(7.5 / 3.5, rel=0.02)


def test_an_iterations_tokens_are_in_the_totals(tmp_path, capsys):
    phases = [PhaseSpec("iteration", i * 100 * MS, (i + 1) * 100 * MS, {"batch_size": 8}, tokens=4000 + 200 * (i % 2))
              for i in range(20)]  # fmt: skip
    run = make_run(tmp_path / "t.h5", [LineSpec("gpu0.a", lambda t: 200.0 + 0 * t)], phases, end_ns=2000 * MS)
    (total,) = [row for row in rows_of(run_frame(run)) if row["kind"] == "total"]
    assert total["tokens_per_s"] == pytest.approx(41_000)
    assert total["j_per_token"] == pytest.approx(20 / 4100, rel=0.01)
    _, text, _ = joules(capsys, "tables", run)
    assert any(line.startswith("       total ") and line.endswith(" J/token") for line in text.splitlines())


def test_a_phase_without_tokens_among_those_with_some_tells_none(tmp_path):
    phases = [PhaseSpec("decode", i * 100 * MS, (i + 1) * 100 * MS, {"batch_size": 1}, tokens=i % 2) for i in range(20)]
    run = make_run(tmp_path / "t.h5", [LineSpec("gpu0.a", lambda t: 200.0 + 0 * t)], phases, end_ns=2000 * MS)
    assert {row["j_per_token"] for row in rows_of(run_frame(run))} == {None}
