import csv
import io
import itertools
from decimal import Decimal

import numpy as np
import pandas
import pytest
from command import joules, refused
from hypothesis import given, settings
from hypothesis import strategies as st
from published_tables import CAPS, CASTRO, ENERGIES, OPERATIONS, TIMES, rows, write

from powerd_analytics.energy import metrics
from powerd_analytics.frame.figure import figure_of
from powerd_analytics.frame.figures import COLUMNS, frame_from, rows_of, worked_out
from powerd_analytics.frame.published import TOTALS, published_frame, read_phases, read_table, training_totals
from powerd_core.errors import AnalysisError, PowerdError


def table(tmp_path, data, name="t.csv"):
    path = tmp_path / name
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return read_table(path)


PLAIN = "device,energy_j\na,1.5\nb,2\n"


@pytest.mark.parametrize(
    "data",
    [
        PLAIN,
        "\ufeff" + PLAIN,
        PLAIN.replace("\n", "\r\n"),
        PLAIN.encode("utf-16"),
        '"device","energy_j"\n"a","1.5"\n"b","2"\n',
        PLAIN.replace(",", ";"),
        PLAIN.replace(",", "\t"),
        " device , energy_j \n a, 1.5 \n\n,\nb,2",
    ],
    ids=["plain", "mark", "crlf", "utf-16", "quotes", "semicolons", "tabs", "blanks"],
)
def test_every_dialect_reads_the_same(tmp_path, data):
    t = table(tmp_path, data)
    assert t.columns == ["device", "energy_j"]
    assert t.texts("device") == ["a", "b"]
    assert t.numbers("energy_j").tolist() == [1.5, 2.0]


def test_parquet_reads_the_same_and_counts_rows(tmp_path):
    frame = pandas.DataFrame({"device": ["a", "b"], "gpus": [1, 2], "energy_j": [1.5, None]})
    frame.to_parquet(tmp_path / "t.pq")
    t = read_table(tmp_path / "t.pq")
    assert t.numbers("energy_j") == pytest.approx([1.5, np.nan], nan_ok=True)
    assert t.cells["gpus"].tolist() == ["1", "2"]
    frame.set_index("device").to_parquet(tmp_path / "index.pq")
    assert read_table(tmp_path / "index.pq").texts("device") == ["a", "b"]
    (tmp_path / "cut.pq").write_bytes((tmp_path / "t.pq").read_bytes()[:200])
    with pytest.raises(AnalysisError, match="cut.pq"):
        read_table(tmp_path / "cut.pq")


@settings(max_examples=40)
@given(data=st.binary(max_size=200))
def test_any_bytes_give_a_table_or_one_line(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "any.csv"
    for mark in (b"", b"a,b\n", b"energy_j,iterations,phase\n1,2,\n", b"\xff\xfe", b"PAR1"):
        path.write_bytes(mark + data)
        assert "\n" not in said_of(path)


def said_of(path):
    try:
        t = read_table(path)
        published_frame(t)
        for column in t.columns:
            t.numbers(column)
    except PowerdError as error:
        return str(error)
    return ""


# -- totals of whole trainings

KEYS = ("device", "gpus", "model", "phase", "batch")
MIX = ("--mix", "pascal=2,maxwell=2")


def keyed(*paths):
    return {tuple(r[k] for k in KEYS): r for path in paths for r in rows(path)}


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
    code, out, err = joules(capsys, "published", "totals", *TIMES, *ENERGIES, *MIX, "--operations", OPERATIONS)
    assert code == 0
    assert matches_table_6(out) == 36
    assert tuple(out.splitlines()[0].split(",")) == TOTALS
    assert TOTALS[:7] == ("device", "model", "gpus", "batch", "iterations", "time_s", "energy_j")
    assert "pascal, ResNetIm, 1 GPU, batch 256: no time of forward and backward" in err


def test_gflops_per_w_of_forward_and_backward_over_all_gpus(capsys):
    out = joules(capsys, "published", "totals", *TIMES, *ENERGIES, *MIX, "--operations", OPERATIONS)[1]
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


LONG = [
    {"device": "g", "gpus": 1, "model": "m", "phase": p, "batch": b, "s_per_training": 2 * b, "j_per_training": 30 * b}
    for b in (8, 16)
    for p in ("forward", "backward")
]


def changed(at, **cells):
    return [{**r, **cells} if i == at else r for i, r in enumerate(LONG)]


def test_what_lacks_a_phase_has_no_total_never_a_part(tmp_path, capsys):
    for records, said in (
        (changed(1, j_per_training=""), "g, m, 1 GPU, batch 8: no energy of backward"),
        (LONG[:1] + LONG[2:], "g, m, 1 GPU, batch 8: no time of backward"),
    ):
        code, out, err = joules(capsys, "published", "totals", write(tmp_path / "t.csv", records))
        assert code == 0
        assert [r["energy_j"] for r in rows(out)] == ["", "960.0"]
        assert rows(out)[0]["edp_js"] == ""
        assert said in err


def test_who_is_done_with_one_phase_waits_in_the_next(tmp_path, capsys):
    """Phases of two kinds end together but once an iteration: a sum of each phase's slowest would count waits twice."""
    times = (("g", "forward", 1), ("g", "backward", 3), ("h", "forward", 2), ("h", "backward", 2))
    both = [{"device": d, "gpus": 2, "model": "m", "batch": 8, "phase": p, "s_per_training": s, "j_per_training": 1}
            for d, p, s in times]  # fmt: skip
    code, out, err = joules(capsys, "published", "totals", write(tmp_path / "t.csv", both), "--mix", "g=1,h=1")
    assert (code, err) == (0, "")
    assert [r["time_s"] for r in rows(out)] == ["4.0", "4.0"]
    code, out, err = joules(capsys, "published", "totals", write(tmp_path / "u.csv", both[:2]), "--mix", "g=2")
    assert (code, [r["energy_j"] for r in rows(out)]) == (0, ["4.0"])
    assert "no device 'h'" in refused(capsys, "published", "totals", tmp_path / "u.csv", "--mix", "g=1,h=1")
    both[3]["j_per_training"] = ""
    code, out, err = joules(capsys, "published", "totals", write(tmp_path / "v.csv", both), "--mix", "g=1,h=1")
    assert [r["energy_j"] for r in rows(out)] == ["", ""]
    assert "g, m, 2 GPUs, batch 8: no energy of backward on h" in err


@settings(max_examples=20)
@given(
    st.lists(st.tuples(st.floats(0.001, 1e6), st.floats(0.001, 1e6)), min_size=1, max_size=5),
    st.dictionaries(st.sampled_from("abc"), st.integers(1, 4), min_size=1),
)
def test_a_mix_of_equal_kinds_is_no_mix(tmp_path_factory, figures, counts):
    gpus = sum(counts.values())
    path = tmp_path_factory.getbasetemp() / "mix.csv"
    table = read_phases([write(path, [
        {"device": kind, "model": "m", "gpus": gpus, "batch": 8, "phase": i, "s_per_training": s, "j_per_training": j}
        for kind in counts for i, (s, j) in enumerate(figures)
    ])])  # fmt: skip
    (mixed, _), (plain, _) = (training_totals(table, mixes=m) for m in ({gpus: counts}, {}))
    for a, b in zip(mixed.to_numpy(), plain.to_numpy(), strict=True):
        assert a[5] == b[5]
        assert a[6] == pytest.approx(b[6])


# -- the best of several configurations

MODELS = list(dict.fromkeys(r["model"] for r in rows(CAPS)))
MINIMA = [
    ("min E", "e"),
    ("min EDP", "edp"),
    ("min EDS(k=2.0)", "eds", "--k", "2.0"),
    ("min EDS(k=1.5)", "eds", "--k", 1.5),
]


def minimum(model, target):
    return next(r for r in rows(CAPS) if (r["model"], r["target"]) == (model, target))


@pytest.mark.parametrize("target", MINIMA, ids=lambda t: t[0])
def test_every_minimum_of_the_paper(capsys, target):
    name, *options = target
    code, out, _ = joules(
        capsys, "published", "pick", CAPS, "--reference", "target=default", "--metric", *options, "--by", "model"
    )
    picked = [(r["model"], r["power_cap_w"], r["energy_kj"]) for r in rows(out)]
    expected = [minimum(model, name) for model in MODELS]
    assert (code, picked) == (0, [(r["model"], r["power_cap_w"], r["energy_kj"]) for r in expected])


def test_cost_takes_the_highest_cap_or_what_is_said(capsys):
    command = ("published", "pick", CAPS, "--reference", "target=default", "--metric", "cost", "--by", "model", "--eta")
    _, out, err = joules(capsys, *command, 0.5)
    assert "maximum power 260 W is the highest power_cap_w" in err
    assert [r["model"] for r in rows(out)] == MODELS
    for eta, target in ((1, "min E"), (0, "default")):
        _, out, err = joules(capsys, *command, eta, "--max-power", 295)
        assert "maximum" not in err
        assert [r["power_cap_w"] for r in rows(out)] == [minimum(m, target)["power_cap_w"] for m in MODELS]
    assert float(rows(out)[0]["cost_j"]) == pytest.approx(295 * 28.2)
    eds = ("published", "pick", CAPS, "--reference", "target=default", "--metric", "eds", "--where", "model=Resnet50")
    (row,) = rows(joules(capsys, *eds)[1])
    assert float(row["eds"]) == pytest.approx(metrics.eds(19.683, 141.2, 27.068, 125.4, 2.0))
    assert float(row["energy_saving_pct"]) == pytest.approx(100 * (1 - 19.683 / 27.068))
    assert float(row["performance_loss_pct"]) == pytest.approx(100 * (141.2 / 125.4 - 1))
    assert float(row["saving_minus_loss_pct"]) == pytest.approx(27.2831 - 12.5997, abs=1e-3)


TABLE = [
    {"cap": "100", "target": "low", "energy_kj": 1, "time_ms": 3000},
    {"cap": "200", "target": "default", "energy_kj": 2, "time_ms": 1000},
    {"cap": "150", "target": "mid", "energy_kj": "", "time_ms": 2000},
]


def test_units_of_the_columns_and_rows_that_were_not_run(tmp_path, capsys):
    table = write(tmp_path / "t.csv", TABLE)
    _, out, err = joules(capsys, "published", "pick", table, "--reference", "cap=200.0", "--metric", "edp")
    assert rows(out)[0]["edp_js"] == "2000.0"
    assert "t.csv, row 3: no energy or no time: not among the choices" in err
    _, out, _ = joules(capsys, "published", "pick", table, "--reference", "target=default", "--metric", "e")
    assert (rows(out)[0]["cap"], rows(out)[0]["energy_j"]) == ("100", "1000.0")


# One and a half minutes of training each, in which one got further than the other.
FIXED_TIME = [
    {"run": "a", "iterations": 39, "batch": 64, "energy_j": 9_000, "time_s": 90},
    {"run": "b", "iterations": 40, "batch": 64, "energy_j": 9_100, "time_s": 90},
]


def without(name, records=FIXED_TIME):
    return [{k: v for k, v in r.items() if k != name} for r in records]


def picked(tmp_path, capsys, records, metric, *options):
    command = (
        "published",
        "pick",
        write(tmp_path / "t.csv", records),
        "--reference",
        "run=a",
        "--metric",
        metric,
        *options,
    )
    code, out, err = joules(capsys, *command)
    assert code == 0
    return rows(out)[0], err


@pytest.mark.parametrize(
    ("metric", "column", "value"),
    [
        ("e", "j_per_sample", 9_100 / 2560),
        ("edp", "edp_per_sample_js", 9_100 * 90 / 2560**2),
        ("eds", "eds", 0.5 * (9_100 / 2560) / (9_000 / 2496) + 0.5 * 2496 / 2560),
        ("cost", "cost_per_sample_j", (0.5 * 9_100 + 0.5 * 300 * 90) / 2560),
    ],
)
def test_unequal_work_is_compared_by_the_sample(tmp_path, capsys, metric, column, value):
    """By the whole, 39 iterations would be the better choice: they took fewer joules, as they did less."""
    row, err = picked(tmp_path, capsys, FIXED_TIME, metric, "--max-power", 300, "--price-per-kwh", 0.36)
    assert row["run"] == "b"
    assert float(row[column]) == pytest.approx(value)
    assert float(row["performance_loss_pct"]) == pytest.approx(100 * (2496 / 2560 - 1))
    assert float(row["energy_saving_pct"]) == pytest.approx(100 * (1 - (9_100 / 2560) / (9_000 / 2496)))
    assert float(row["cost"]) == pytest.approx(9_100 / 3.6e6 * 0.36)
    assert "t.csv: the rows did unequal work (39 to 40 iterations): energy and time are compared by the sample" in err


def test_samples_of_their_own_say_the_work_too(tmp_path, capsys):
    stated = [{**r, "samples": n} for r, n in zip(without("batch"), (2496, 2560), strict=True)]
    assert picked(tmp_path, capsys, stated, "e")[0]["run"] == "b"
    assert picked(tmp_path, capsys, without("iterations", stated), "e")[0]["run"] == "b"


@pytest.mark.parametrize(
    "records",
    [
        without("iterations"),
        [{**r, "iterations": 40} for r in FIXED_TIME],
        # Ten epochs of 2560 samples: the last batch of 95 is smaller.
        [{**FIXED_TIME[0], "iterations": 270, "batch": 95}, {**FIXED_TIME[1], "iterations": 400}],
    ],
    ids=["not said", "the same", "whole epochs"],
)
def test_equal_work_is_compared_by_the_whole(tmp_path, capsys, records):
    row, err = picked(tmp_path, capsys, records, "e")
    assert (row["run"], row["energy_j"], err) == ("a", "9000.0", "")


@pytest.mark.parametrize(
    ("records", "place"),
    [
        (without("batch"), "t.csv, row 1: the rows did unequal work (39 to 40 iterations)"),
        ([FIXED_TIME[0], {**FIXED_TIME[1], "batch": ""}], "t.csv, row 2: the rows did unequal work"),
        ([FIXED_TIME[0], {**FIXED_TIME[1], "iterations": ""}], "t.csv, row 2: the rows did unequal work"),
        ([FIXED_TIME[0], {**FIXED_TIME[1], "iterations": 0}], "t.csv, row 2: the rows did unequal work"),
    ],
)
def test_unequal_work_without_samples_is_refused(tmp_path, capsys, records, place):
    command = ("published", "pick", write(tmp_path / "t.csv", records), "--reference", "run=a", "--metric", "edp")
    assert place in refused(capsys, *command)


def test_totals_of_unequal_work_are_told_apart_by_pick(tmp_path, capsys):
    figures = [("g", 39, 1.0, 90.0), ("h", 40, 1.0, 89.0)]
    phases = [
        {"device": d, "gpus": 1, "model": "m", "phase": "iteration", "batch": 8, "iterations": n,
         "s_per_batch": s, "j_per_batch": j} for d, n, s, j in figures
    ]  # fmt: skip
    out = tmp_path / "totals.csv"
    assert joules(capsys, "published", "totals", write(tmp_path / "p.csv", phases), "-o", out)[0] == 0
    assert [r["iterations"] for r in rows(out)] == ["39", "40"]
    code, text, err = joules(capsys, "published", "pick", out, "--reference", "device=g", "--metric", "e")
    assert (code, rows(text)[0]["device"]) == (0, "h")
    assert "39 to 40 iterations" in err


# -- as the frame of figures


def frame_of(tmp_path, records):
    return published_frame(read_table(write(tmp_path / "t.csv", records)))


def test_a_published_table_is_a_frame_of_figures(tmp_path):
    frame = frame_of(tmp_path, [
        {"model": "m", "batch": 64, "gpu": "V100", "power_limit_w": 250, "clock_mhz": 1380, "phase": "", "lr": "0.1",
         "iterations": 10, "energy_kj": 3, "time_ms": 20_000, "u95_j": 60, "u95_s": 0.4, "j_per_batch": "",
         "s_per_batch": "", "provenance": "measured"},
        {"model": "m", "batch": 64, "gpu": "V100", "power_limit_w": 250, "clock_mhz": "", "phase": "forward", "lr": "",
         "iterations": 10, "energy_kj": "", "time_ms": "", "u95_j": 2, "u95_s": "", "j_per_batch": 100,
         "s_per_batch": 0.5, "provenance": "measured"},
    ])  # fmt: skip
    assert frame.dtypes.loc[list(COLUMNS)].equals(frame_from([]).dtypes)
    total, phase = rows_of(frame)
    assert (total["kind"], phase["kind"], total["phase"], phase["phase"]) == ("total", "phase", None, "forward")
    assert (total["device_name"], total["power_cap_w"], total["clock_hz"], total["batch_size"]) == (
        "V100", 250.0, 1.38e9, 64,
    )  # fmt: skip
    assert (total["energy_j"], total["time_s"], total["j_per_batch"], total["s_per_batch"]) == (3000, 20, 300, 2)
    assert (total["edp_js"], total["power_w"], total["j_per_sample"]) == (60_000, 150, 300 / 64)
    assert (phase["j_per_batch"], phase["edp_js"], phase["power_w"]) == (100, 50, 200)
    assert (total["attribute_lr"], phase["attribute_lr"]) == (0.1, None)
    # U95 stays what the table says of each figure, and is so much of what follows from it.
    for row, name, u95 in (
        (total, "energy_j", 60), (total, "j_per_batch", 6), (phase, "j_per_batch", 2), (total, "time_s", 0.4),
        (total, "s_per_batch", 0.04), (total, "power_w", 3), (phase, "j_per_sample", 2 / 64),
    ):  # fmt: skip
        assert figure_of(row, name).u95 == pytest.approx(u95)


def test_a_row_of_one_batch_is_a_total_of_one_batch(tmp_path):
    (row,) = rows_of(frame_of(tmp_path, [{"batch": 8, "j_per_batch": 4, "s_per_batch": 2, "u95_j": 1}]))
    assert (row["kind"], row["iterations"], row["energy_j"], row["j_per_sample"]) == ("total", 1, 4, 0.5)
    assert row["u95_j"] == pytest.approx(1)


def test_a_phase_without_iterations_is_as_long_as_it_was_in_all(tmp_path):
    (row,) = rows_of(frame_of(tmp_path, [{"phase": "forward", "batch": 8, "energy_j": 400, "time_s": 2, "u95_s": 1}]))
    assert (row["kind"], row["iterations"], row["j_per_batch"], row["power_w"]) == ("phase", None, 400, 200)
    assert row["j_per_sample"] is None  # of how many samples is not said
    assert figure_of(row, "s_per_batch").u95 == pytest.approx(1)
    (total,) = rows_of(frame_of(tmp_path, [{"energy_j": 400, "time_s": 2, "u95_s": 1}]))
    assert (total["kind"], total["s_per_batch"]) == ("total", None)
    assert figure_of(total, "time_s").u95 == pytest.approx(1)


@settings(max_examples=10)
@given(
    kind=st.sampled_from(["phase", "total", "run"]),
    figures=st.tuples(*[st.floats(0.001, 1e6)] * 2),
    u=st.tuples(*[st.floats(0.001, 1e3)] * 2),
    n=st.integers(1, 1000),
    runs=st.none() | st.integers(2, 20),
)
def test_a_frame_of_ours_comes_back_from_its_csv(tmp_path_factory, kind, figures, u, n, runs):
    each = dict(zip(("j_per_batch", "s_per_batch"), figures, strict=True))
    whole = {"energy_j": figures[0] * n, "time_s": figures[1] * n, "s_per_batch": figures[1]}
    frame = worked_out(frame_from([{
        "kind": kind, "model": "m", "batch_size": 8, "iterations": n, "device": "gpu0", "provenance": "simulated",
        "phase": "forward" if kind == "phase" else None, "phase_path": "step/forward" if kind == "phase" else None,
        "u_statistical_j": u[0], "u_systematic_j": u[1], "rectangle_j": u[1] / 2,
        "degrees_of_freedom": runs and runs - 1, "is_lower_bound": False, "attribute_lr": 0.1, "attribute_tag": "x",
        **(each if kind == "phase" else whole),
    }]))  # fmt: skip
    path = tmp_path_factory.getbasetemp() / "frame.csv"
    frame.to_csv(path, index=False)
    again = published_frame(read_table(path))
    for name in frame.columns:
        if name not in ("eds", "samples_per_s"):  # of the whole table
            pandas.testing.assert_series_equal(again[name], frame[name], rtol=1e-12)


@pytest.mark.parametrize(
    ("column", "cell"),
    [("batch", "big"), ("gpus", "1.5"), ("iterations", "-1"), ("energy_j", "much"), ("power_cap_w", "250 W"),
     ("j_per_batch", "1,5"), ("u95_j", "?"), ("iterations", "1e300")],
)  # fmt: skip
def test_cells_that_no_frame_can_hold(tmp_path, column, cell):
    with pytest.raises(AnalysisError, match=rf"t\.csv, row 2, column {column}"):
        frame_of(tmp_path, [{"energy_j": 1, "time_s": 1, column: 1}, {"energy_j": 1, "time_s": 1, column: cell}])


# -- what is refused


@pytest.mark.parametrize(
    "data",
    ["", "\ufeff\r\n\r\n", "device,energy_j\n", "a,a\n1,2\n", "a,b\n1,2\n1\n", "a,b\n1,2,3\n", 'a,b\n1,2\n"1,2\n',
     b"a,b\n1,\xff\n", "a,\x1b[2J\n1,2\n"],
)  # fmt: skip
def test_what_is_no_table(tmp_path, data):
    with pytest.raises(AnalysisError, match=r"t\.csv"):
        table(tmp_path, data)


@pytest.mark.parametrize(
    ("cell", "rules"),
    [("fast", {}), ("nan", {}), ("-inf", {}), ("1e999", {}), ("-3", {}), ('"1,5"', {}), ("1_0", {}),
     ("0", {"positive": True}), ("1.5", {"whole": True})],
)  # fmt: skip
def test_cells_that_are_no_numbers(tmp_path, cell, rules):
    with pytest.raises(AnalysisError, match=r"t\.csv, row 2, column energy_j"):
        table(tmp_path, f"a,energy_j\nx,1\ny,{cell}\n").numbers("energy_j", **rules)


@pytest.mark.parametrize(
    ("records", "place"),
    [
        ([{k: v for k, v in r.items() if k != "model"} for r in LONG], "'model'"),
        ([{k: v for k, v in r.items() if k != "j_per_training"} for r in LONG], "j_per_training"),
        ([{**r, "s_per_training": "", "j_per_training": ""} for r in LONG], "no configuration has a total"),
        (changed(2, s_per_training="quick"), "row 3, column s_per_training"),
        (changed(2, j_per_training=-1), "row 3, column j_per_training"),
        (changed(2, gpus=0), "row 3, column gpus"),
        (changed(2, batch=1.5), "row 3, column batch"),
        (changed(2, model=""), "row 3, column model"),
        (changed(2, phase="a\x1b[2J"), "row 3, column phase"),
        ([*LONG, {**LONG[0], "j_per_training": 7}], "row 5: a second row of"),
        (None, "t.csv, row 4, column s_per_training: 33 here, 32 in another file"),
    ],
)
def test_tables_of_phases_that_are_none(tmp_path, capsys, records, place):
    out, first = tmp_path / "out.csv", []
    if records is None:
        first, records = [write(tmp_path / "first.csv", LONG)], changed(3, s_per_training=33)
        assert joules(capsys, "published", "totals", *first, first[0])[0] == 0
    assert place in refused(capsys, "published", "totals", *first, write(tmp_path / "t.csv", records), "-o", out)
    assert not out.exists()


@pytest.mark.parametrize(
    ("options", "place"),
    [
        (("--reference", "cap=250"), "cap=250"),
        (("--reference", "Cap=200"), "no column 'Cap'"),
        (("--reference", "cap"), "--reference cap"),
        (("--reference", "target=mid"), "row 3: the reference target=mid"),
        (("--reference", "cap=200", "--where", "cap=7"), "no row has cap=7"),
        (("--reference", "cap=200", "--by", "model"), "no column 'model'"),
        (("--reference", "cap=200", "--by", "cap"), "cap=200"),
        (("--reference", "cap=200", "--metric", "eds", "--k", "0.5"), "--k 0.5"),
        (("--reference", "cap=200", "--metric", "cost", "--eta", "2"), "--eta 2"),
        (("--reference", "cap=200", "--metric", "cost"), "--max-power"),
        (("--reference", "cap=200", "--metric", "cost", "--max-power", "nan"), "--max-power nan"),
        (("--reference", "cap=200", "--metric", "speed"), "speed"),
    ],
)
def test_what_cannot_be_picked(tmp_path, capsys, options, place):
    out = tmp_path / "out.csv"
    metric = () if "--metric" in options else ("--metric", "e")
    assert place in refused(capsys, "published", "pick", write(tmp_path / "t.csv", TABLE), *options, *metric, "-o", out)
    assert not out.exists()


TIMES_OF = "device,gpus,model,phase,batch,s_per_batch,j_per_batch,iterations\npascal,1,{0},forward,64,0.029,5,9\n"
HOSTILE = "gpu,cap,energy_j,time_s,=cmd|'/C calc'!A0\n"
HOSTILE += "=cmd|'/C calc'!A1,260,100,10,\x1b]0;owned\x07\n@SUM(A1),140,80,12,-1.5\n"


@pytest.mark.parametrize("command", ["pick", "totals"])
def test_what_is_printed_of_a_foreign_table_is_obeyed_by_nobody(tmp_path, capsys, command):
    path = tmp_path / "t.csv"
    if command == "pick":
        path.write_text(HOSTILE)
        arguments = (
            "published",
            "pick",
            path,
            "--reference",
            "cap=260",
            "--metric",
            "e",
            "--by",
            "gpu",
            "--where",
            "cap=260",
        )
    else:
        path.write_text(TIMES_OF.format("=cmd|'/C calc'!A1"))
        arguments = ("published", "totals", path)
    code, out, err = joules(capsys, *arguments, *(["--format", "csv"] if command == "pick" else []))
    assert code == 0, err
    assert "cmd" in out, "the name is there"
    assert "\x1b" not in out
    cells = [cell for row in csv.reader(io.StringIO(out)) for cell in row]
    assert not [cell for cell in cells if cell.startswith(("=", "@"))]
