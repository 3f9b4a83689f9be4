"""Tokens beside samples: joules a token, tokens a joule and a second, by the attribute `tokens_per_sample`."""

import csv
import io

import pytest
from command import joules
from make_campaign import one_run, with_attributes
from make_run import LineSpec, make_run, training

from powerd_analytics.frame.figures import rows_of, run_frame


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
