import itertools
from decimal import Decimal

import pytest
from command import joules, refused
from hypothesis import given
from hypothesis import strategies as st
from published_tables import CASTRO, ENERGIES, ITERATIONS, OPERATIONS, TIMES, rows, write

from powerd_analytics.published.mix import Mix, parse_mix
from powerd_analytics.published.phasefiles import Key, PhaseFigures, PhaseTable
from powerd_analytics.published.totals import COLUMNS, training_totals
from powerd_core.errors import ConfigError

KEYS = ("device", "gpus", "model", "phase", "batch")
MIX = ("--mix", "pascal=2,maxwell=2")


def keyed(*paths):
    return {tuple(r[k] for k in KEYS): r for path in paths for r in rows(path)}


def joined(*names):
    """Tables 3, 4, 5, 7 and 8 as one long table with these columns of figures."""
    times, energies = keyed(*TIMES), keyed(*ENERGIES)
    iterations = {(r["model"], r["batch"]): r["iterations"] for r in rows(ITERATIONS)}
    made = []
    for key, time in times.items():
        figures = {**time, **energies[key], "iterations": iterations[time["model"], time["batch"]]}
        made.append({name: figures[name] for name in (*KEYS, *names)})
    return made


def is_rounded(value, printed):
    """Within half a unit of the printed value's last digit."""
    unit = Decimal(1).scaleb(Decimal(printed).as_tuple().exponent)
    return abs(Decimal(value) - Decimal(printed)) <= unit / 2


def matches_table_6(out):
    found = {(r["device"], r["model"], r["gpus"], r["batch"]): r for r in rows(out)}
    published = rows(CASTRO / "table6_pascal_totals.csv")
    for row in published:
        got = found[row["device"], row["model"], row["gpus"], row["batch"]]
        if not row["time_ks"]:
            assert [got[c] for c in ("time_s", "energy_j", "edp_js", "gflops_per_w")] == [""] * 4
            continue
        time, energy = Decimal(got["time_s"]) / 1000, Decimal(got["energy_j"]) / 10**6
        assert is_rounded(time, row["time_ks"]), row
        assert is_rounded(energy, row["energy_mj"]), row
        assert is_rounded(Decimal(got["edp_js"]) / 10**9, row["edp"]), row
    return len(published)


def test_table_6_on_every_row_from_the_files_as_they_are(capsys):
    code, out, err = joules(capsys, "totals", *TIMES, *ENERGIES, *MIX, "--operations", OPERATIONS)
    assert code == 0
    assert matches_table_6(out) == 36
    assert tuple(out.splitlines()[0].split(",")) == COLUMNS
    assert COLUMNS == ("device", "model", "gpus", "batch", "time_s", "energy_j", "edp_js", "gflops_per_w")
    assert "pascal, ResNetIm, 1 GPU, batch 256: no time, as forward and backward have none" in err


def test_table_6_from_one_joined_table_and_from_one_of_times_and_one_of_energies(tmp_path, capsys):
    one = write(tmp_path / "one.csv", joined("s_per_training", "j_per_training"))
    every = write(tmp_path / "every.csv", joined("iterations", "s_per_batch", "j_per_batch", "s_per_training",
                                                 "j_per_training"))  # fmt: skip
    times = write(tmp_path / "t.csv", joined("iterations", "s_per_batch", "s_per_training"))
    energies = write(tmp_path / "e.csv", joined("j_per_training", "iterations", "j_per_batch"))
    outs = [
        joules(capsys, "totals", *files, *MIX)[1] for files in ([one], [every], [times, energies], [energies, times])
    ]
    assert len(set(outs)) == 1
    assert matches_table_6(outs[0]) == 36


def test_columns_and_rows_in_any_order_and_others_ignored(tmp_path, capsys):
    records = joined("s_per_training", "j_per_training")
    a = write(tmp_path / "a.csv", records)
    b = write(tmp_path / "b.csv", [{"note": "x", **dict(reversed(r.items()))} for r in records])
    assert joules(capsys, "totals", a)[1] == joules(capsys, "totals", b)[1]
    c = write(tmp_path / "c.csv", records[::-1])
    assert sorted(joules(capsys, "totals", a)[1].splitlines()) == sorted(joules(capsys, "totals", c)[1].splitlines())


def test_per_batch_times_iterations_is_table_6_but_for_the_rounding_of_a_batch(tmp_path, capsys):
    per_batch = write(tmp_path / "b.csv", joined("s_per_batch", "j_per_batch", "iterations"))
    without = write(tmp_path / "w.csv", joined("s_per_batch", "j_per_batch"))
    code, out, _ = joules(capsys, "totals", per_batch, *MIX)
    assert code == 0
    assert joules(capsys, "totals", without, ITERATIONS, *MIX)[1] == out
    given = joules(capsys, "totals", *TIMES, *ENERGIES, *MIX)[1]
    for a, b in zip(rows(out), rows(given), strict=True):
        assert bool(a["energy_j"]) == bool(b["energy_j"])
        if a["energy_j"]:
            assert float(a["time_s"]) == pytest.approx(float(b["time_s"]), abs=1.01)
            assert float(a["energy_j"]) == pytest.approx(float(b["energy_j"]), rel=2e-4)


def test_gflops_per_w_of_forward_and_backward_over_all_gpus(capsys):
    out = joules(capsys, "totals", *TIMES, *ENERGIES, *MIX, "--operations", OPERATIONS)[1]
    found = {(r["device"], r["model"], r["gpus"], r["batch"]): r["gflops_per_w"] for r in rows(out)}
    energies = keyed(*ENERGIES)
    operations = {r["model"]: float(r["ops_m"]) * 1e6 for r in rows(OPERATIONS)}
    seen = 0
    for (device, model, gpus, batch), value in found.items():
        kinds = [("pascal", 2), ("maxwell", 2)] if gpus == "4" else [(device, int(gpus))]
        j = [
            (n, energies[k, gpus, model, phase, batch]["j_per_batch"])
            for (k, n), phase in itertools.product(kinds, ("forward", "backward"))
        ]
        if not all(text for _, text in j):
            assert value == ""
            continue
        expected = 2 * operations[model] * int(batch) / sum(n * float(text) for n, text in j) / 1e9
        assert float(value) == pytest.approx(expected, rel=1e-12)
        seen += 1
    assert seen == 70


def test_without_a_mix_energy_is_the_rows_times_gpus(capsys):
    plain, mixed = (rows(joules(capsys, "totals", *TIMES, *ENERGIES, *mix)[1]) for mix in ((), MIX))
    for a, b in zip(plain, mixed, strict=True):
        assert (a == b) == (a["gpus"] != "4")
    four = next(r for r in plain if (r["device"], r["model"], r["gpus"], r["batch"]) == ("pascal", "ResNet", "4", "64"))
    pascal = [
        float(keyed(*ENERGIES)["pascal", "4", "ResNet", p, "64"]["j_per_training"]) for p in ("forward", "backward")
    ]
    assert float(four["energy_j"]) == pytest.approx(4 * sum(pascal))


LONG = [
    {"device": "g", "gpus": 1, "model": "m", "phase": p, "batch": b, "s_per_training": 2 * b, "j_per_training": 30 * b}
    for b in (8, 16)
    for p in ("forward", "backward")
]


def changed(at, **cells):
    return [{**r, **cells} if i == at else r for i, r in enumerate(LONG)]


def test_what_lacks_a_phase_has_no_total_never_a_part(tmp_path, capsys):
    for records, said in (
        (changed(1, j_per_training=""), "g, m, 1 GPU, batch 8: no energy, as backward has none"),
        (LONG[:1] + LONG[2:], "g, m, 1 GPU, batch 8: no time, as backward has none"),
    ):
        code, out, err = joules(capsys, "totals", write(tmp_path / "t.csv", records))
        assert code == 0
        assert [r["energy_j"] for r in rows(out)] == ["", "960.0"]
        assert rows(out)[0]["edp_js"] == ""
        assert said in err


def test_a_zero_counts_but_is_said(tmp_path, capsys):
    code, out, err = joules(capsys, "totals", write(tmp_path / "t.csv", changed(0, j_per_training=0)))
    assert (code, rows(out)[0]["energy_j"]) == (0, "240.0")
    assert "line 2, column j_per_training: 0 counts as 0" in err


@pytest.mark.parametrize(
    ("records", "said"),
    [
        ([{k: v for k, v in r.items() if k != "model"} for r in LONG], "line 1: no column 'model'"),
        ([{k: v for k, v in r.items() if k != "j_per_training"} for r in LONG], "line 1: no column 'j_per_batch'"),
        ([{**r, "s_per_batch": 1, "s_per_training": ""} for r in LONG], "no configuration has a total"),
        (changed(2, s_per_training="quick"), "line 4, column s_per_training: 'quick' is no number"),
        (changed(2, j_per_training="nan"), "line 4, column j_per_training: 'nan' is no finite number"),
        (changed(2, j_per_training=-1), "line 4, column j_per_training: -1 is negative"),
        (changed(2, gpus="two"), "line 4, column gpus: 'two' is no number"),
        (changed(2, gpus=0), "line 4, column gpus: 0: must be above 0"),
        (changed(2, batch=1.5), "line 4, column batch: 1.5 is no whole number"),
        (changed(2, model=""), "line 4, column model: is empty"),
        (changed(2, model="a\0b"), r"line 4, column model: 'a\x00b' holds the control character U+0000"),
        (changed(2, phase="a\x1b[2J"), r"line 4, column phase: 'a\x1b[2J' holds the control character U+001B"),
        (
            [*({**r, "iterations": 3} for r in LONG[:2]), {**LONG[2], "iterations": 2.5}],
            "line 4, column iterations: 2.5 is no whole number",
        ),
        ([*LONG, LONG[0]], "line 6, column batch: a second row of device g, gpus 1, model m, phase forward, batch 8"),
        ([*LONG, {**LONG[0], "j_per_training": 7}], "line 6, column batch: a second row of"),
    ],
)
def test_bad_tables_are_refused_with_file_line_and_column(tmp_path, capsys, records, said):
    if "no configuration" in said:
        records = [{k: "" if k == "j_per_training" else v for k, v in r.items()} for r in records]
    out = tmp_path / "out.csv"
    err = refused(capsys, "totals", write(tmp_path / "t.csv", records), "-o", out)
    assert said in err
    assert "t.csv" in err or "no configuration" in err
    assert not out.exists()


def test_files_that_contradict_each_other(tmp_path, capsys):
    a = write(tmp_path / "a.csv", LONG)
    b = write(tmp_path / "b.csv", changed(3, s_per_training=33))
    err = refused(capsys, "totals", a, b)
    assert "b.csv, line 5, column s_per_training: 33 here, 32 in" in err
    assert "a.csv, line 5 for the same phase" in err
    assert joules(capsys, "totals", a, write(tmp_path / "c.csv", LONG))[0] == 0


def test_one_model_has_one_count_of_operations(tmp_path, capsys):
    table, operations = write(tmp_path / "t.csv", LONG), tmp_path / "o.csv"
    for text, said in (
        (
            "model,operations\nm,5e6\nm,6e6\n",
            "line 3, column model: 'm' stands with other operations in line 2 already",
        ),
        ("model,operations\nm,5e6\nm,5e6\n", "line 3, column model: 'm' stands in line 2 already"),
        ("model,operations\nm,0\n", "line 2, column operations: 0: must be above 0"),
        ("model,flops\nm,1\n", "line 1: no column 'operations'"),
    ):
        operations.write_text(text)
        assert said in refused(capsys, "totals", table, "--operations", operations)
    operations.write_text("model,operations\nother,5e6\n")
    code, out, err = joules(capsys, "totals", table, "--operations", operations)
    assert (code, rows(out)[0]["gflops_per_w"]) == (0, "")
    assert "m: no GFLOPS/W, as its operations are not given" in err


@pytest.mark.parametrize(
    "text", ["pascal", "pascal=", "=2", "pascal=0", "pascal=-1", "pascal=1.5", "a=1,a=2", "", "a=1,"]
)
def test_what_is_no_mix(text):
    with pytest.raises(ConfigError, match="--mix"):
        parse_mix(text)


def test_mixes_that_do_not_fit(tmp_path, capsys):
    table = write(tmp_path / "t.csv", LONG)
    assert "no device 'h' in the tables: they have g" in refused(capsys, "totals", table, "--mix", "g=1,h=1")
    assert "another mix of 2 GPUs" in refused(capsys, "totals", table, "--mix", "g=2", "--mix", "g=1,h=1")
    code, _, err = joules(capsys, "totals", table, "--mix", "g=3")
    assert code == 0
    assert "no configuration of 3 GPUs (3 g) in the tables" in err


def test_kinds_train_together_so_the_slowest_decides(tmp_path, capsys):
    both = [{**r, "device": d, "gpus": 3, "s_per_training": r["s_per_training"] + n, "j_per_training": 10 * (n + 1)}
            for d, n in (("g", 0), ("h", 1)) for r in LONG]  # fmt: skip
    both[0]["s_per_training"] = 100
    code, out, err = joules(capsys, "totals", write(tmp_path / "t.csv", both), "--mix", "g=2,h=1")
    assert code == 0
    made = {(r["device"], r["batch"]): (r["time_s"], r["energy_j"], r["edp_js"]) for r in rows(out)}
    assert made["g", "8"] == ("116.0", "80.0", "9280.0")  # energy: 2 x (10 + 10) + (20 + 20)
    assert made["g", "16"] == ("66.0", "80.0", "5280.0")  # here h is the slower
    assert {batch: made["h", batch] for batch in ("8", "16")} == {batch: made["g", batch] for batch in ("8", "16")}
    assert "m, 3 GPUs, batch 8: 116 s on g and 34 s on h; they train together: that of the slowest counts" in err
    assert err.count("they train together") == 2


def test_who_is_done_with_one_phase_waits_in_the_next(tmp_path, capsys):
    """Phases of two kinds end together but once an iteration: a sum of each phase's slowest would count waits twice."""
    times = (("g", "forward", 1), ("g", "backward", 3), ("h", "forward", 2), ("h", "backward", 2))
    both = [{"device": d, "gpus": 2, "model": "m", "batch": 8, "phase": p, "s_per_training": s, "j_per_training": 1}
            for d, p, s in times]  # fmt: skip
    code, out, err = joules(capsys, "totals", write(tmp_path / "t.csv", both), "--mix", "g=1,h=1")
    assert (code, err) == (0, "")
    assert [r["time_s"] for r in rows(out)] == ["4.0", "4.0"]


def test_a_mix_without_the_row_of_one_kind_has_no_energy():
    row = PhaseFigures({"s_per_training": 1.0, "j_per_training": 1.0})
    table = PhaseTable({Key("g", 2, "m", "forward", 1): row, Key("h", 1, "m", "forward", 1): row}, ())
    found = training_totals(table, mixes={2: Mix((("g", 1), ("h", 1)))})
    assert [(t.configuration.device, t.energy_j) for t in found.rows] == [("g", None), ("h", 1.0)]
    assert "g, m, 2 GPUs, batch 1: no energy, as forward on h has none" in found.notes


def test_output_goes_to_a_new_file_only(tmp_path, capsys):
    table, out = write(tmp_path / "t.csv", LONG), tmp_path / "out.csv"
    assert joules(capsys, "totals", table, "-o", out) == (0, "", "")
    assert out.read_text() == joules(capsys, "totals", table)[1]
    assert "out.csv exists" in refused(capsys, "totals", table, "-o", out)
    assert "nothing to sum" in refused(capsys, "totals")


@given(
    st.lists(st.tuples(st.floats(0.001, 1e6), st.floats(0.001, 1e6)), min_size=1, max_size=5),
    st.dictionaries(st.sampled_from("abc"), st.integers(1, 4), min_size=1),
)
def test_a_mix_of_equal_kinds_is_no_mix(figures, counts):
    gpus = sum(counts.values())
    made = {
        Key(kind, gpus, "m", f"p{i}", 8): PhaseFigures({"s_per_training": s, "j_per_training": j})
        for kind in counts
        for i, (s, j) in enumerate(figures)
    }
    table = PhaseTable(made, ())
    mixed, plain = (training_totals(table, mixes=m) for m in ({gpus: Mix(tuple(counts.items()))}, {}))
    for a, b in zip(mixed.rows, plain.rows, strict=True):
        assert a.time_s == b.time_s
        assert a.energy_j == pytest.approx(b.energy_j)


def test_sums_that_overflow_are_refused(tmp_path, capsys):
    table = write(tmp_path / "t.csv", changed(0, j_per_training=1e308, s_per_training=1e308))
    assert "its figures are too large" in refused(capsys, "totals", table)


def test_a_phase_that_holds_the_others_is_said(tmp_path, capsys):
    table = write(tmp_path / "t.csv", [*LONG, {**LONG[0], "phase": "Iteration"}])
    code, _, err = joules(capsys, "totals", table)
    assert code == 0
    assert "m: iteration and forward and backward are all summed: leave out the rows of phases that hold others" in err


def test_iterations_that_are_missing_are_what_is_missing(tmp_path, capsys):
    given = ["device,gpus,model,phase,batch,iterations,s_per_batch,j_per_batch", "g,1,m,forward,8,,0.5,5"]
    given += ["g,1,m,backward,8,,1,7", "g,1,m,update,8,10,,"]
    path = tmp_path / "t.csv"
    path.write_text("\n".join(given) + "\n")
    said = refused(capsys, "totals", path)
    assert "t.csv, line 2: no configuration has a total: g, m, 1 GPU, batch 8: no time" in said
    assert said.endswith("as forward and backward have no iterations, update has none\n")


def test_figures_that_are_too_large_are_found_by_line_and_column(tmp_path, capsys):
    path = tmp_path / "t.csv"
    path.write_text("device,gpus,model,phase,batch,iterations,s_per_batch,j_per_batch\ng,1,m,forward,8,10,1e308,5\n")
    assert "t.csv, line 2, column s_per_batch: g, m, 1 GPU, batch 8: its figures" in refused(capsys, "totals", path)


def test_a_table_of_totals_alone_is_no_table_of_phases(tmp_path, capsys):
    path = tmp_path / "t.csv"
    path.write_text("model,device,gpus,batch_size,iterations,time_s,energy_j\nm,g,1,8,10,1,2\nm,g,1,16,5,1,2\n")
    assert "t.csv, line 1: no column 'phase'" in refused(capsys, "totals", path)
