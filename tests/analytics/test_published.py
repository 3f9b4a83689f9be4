import itertools
from decimal import Decimal

import pytest
from command import joules, refused
from hypothesis import given, settings
from hypothesis import strategies as st
from published_tables import CAPS, CASTRO, ENERGIES, OPERATIONS, TIMES, rows, write

from powerd_analytics import metrics
from powerd_analytics.published import COLUMNS, read_phases, read_table, training_totals
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
    assert t.columns == ("device", "energy_j")
    assert list(t.texts("device")) == ["a", "b"]
    assert t.numbers("energy_j") == [1.5, 2.0]


def test_parquet_reads_the_same_and_counts_rows(tmp_path):
    pandas = pytest.importorskip("pandas")
    pandas.DataFrame({"device": ["a", "b"], "gpus": [1, 2], "energy_j": [1.5, None]}).to_parquet(tmp_path / "t.pq")
    t = read_table(tmp_path / "t.pq")
    assert t.numbers("energy_j") == [1.5, None]
    assert t.numbers("gpus", whole=True) == [1.0, 2.0]
    (tmp_path / "cut.pq").write_bytes((tmp_path / "t.pq").read_bytes()[:200])
    with pytest.raises(AnalysisError, match="cut.pq"):
        read_table(tmp_path / "cut.pq")


@settings(max_examples=40)
@given(data=st.binary(max_size=200))
def test_any_bytes_give_a_table_or_one_line(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "any.csv"
    for mark in (b"", b"a,b\n", b"\xff\xfe", b"PAR1"):
        path.write_bytes(mark + data)
        assert "\n" not in said_of(path)


def said_of(path):
    try:
        t = read_table(path)
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
    code, out, err = joules(capsys, "totals", *TIMES, *ENERGIES, *MIX, "--operations", OPERATIONS)
    assert code == 0
    assert matches_table_6(out) == 36
    assert tuple(out.splitlines()[0].split(",")) == COLUMNS
    assert COLUMNS == ("device", "model", "gpus", "batch", "time_s", "energy_j", "edp_js", "gflops_per_w")
    assert "pascal, ResNetIm, 1 GPU, batch 256: no time of forward and backward" in err


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
        code, out, err = joules(capsys, "totals", write(tmp_path / "t.csv", records))
        assert code == 0
        assert [r["energy_j"] for r in rows(out)] == ["", "960.0"]
        assert rows(out)[0]["edp_js"] == ""
        assert said in err


def test_who_is_done_with_one_phase_waits_in_the_next(tmp_path, capsys):
    """Phases of two kinds end together but once an iteration: a sum of each phase's slowest would count waits twice."""
    times = (("g", "forward", 1), ("g", "backward", 3), ("h", "forward", 2), ("h", "backward", 2))
    both = [{"device": d, "gpus": 2, "model": "m", "batch": 8, "phase": p, "s_per_training": s, "j_per_training": 1}
            for d, p, s in times]  # fmt: skip
    code, out, err = joules(capsys, "totals", write(tmp_path / "t.csv", both), "--mix", "g=1,h=1")
    assert (code, err) == (0, "")
    assert [r["time_s"] for r in rows(out)] == ["4.0", "4.0"]
    code, out, err = joules(capsys, "totals", write(tmp_path / "u.csv", both[:2]), "--mix", "g=2")
    assert (code, [r["energy_j"] for r in rows(out)]) == (0, ["4.0"])
    assert "no device 'h'" in refused(capsys, "totals", tmp_path / "u.csv", "--mix", "g=1,h=1")
    both[3]["j_per_training"] = ""
    code, out, err = joules(capsys, "totals", write(tmp_path / "v.csv", both), "--mix", "g=1,h=1")
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
        assert a[4] == b[4]
        assert a[5] == pytest.approx(b[5])


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
    code, out, _ = joules(capsys, "pick", CAPS, "--reference", "target=default", "--metric", *options, "--by", "model")
    picked = [(r["model"], r["power_cap_w"], r["energy_kj"]) for r in rows(out)]
    expected = [minimum(model, name) for model in MODELS]
    assert (code, picked) == (0, [(r["model"], r["power_cap_w"], r["energy_kj"]) for r in expected])


def test_cost_takes_the_highest_cap_or_what_is_said(capsys):
    command = ("pick", CAPS, "--reference", "target=default", "--metric", "cost", "--by", "model", "--eta")
    _, out, err = joules(capsys, *command, 0.5)
    assert "maximum power 260 W is the highest power_cap_w" in err
    assert [r["model"] for r in rows(out)] == MODELS
    for eta, target in ((1, "min E"), (0, "default")):
        _, out, err = joules(capsys, *command, eta, "--max-power", 295)
        assert "maximum" not in err
        assert [r["power_cap_w"] for r in rows(out)] == [minimum(m, target)["power_cap_w"] for m in MODELS]
    assert float(rows(out)[0]["cost_j"]) == pytest.approx(295 * 28.2)
    eds = ("pick", CAPS, "--reference", "target=default", "--metric", "eds", "--where", "model=Resnet50")
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
    _, out, err = joules(capsys, "pick", table, "--reference", "cap=200.0", "--metric", "edp")
    assert rows(out)[0]["edp_js"] == "2000.0"
    assert "t.csv, row 3: no energy or no time: not among the choices" in err
    _, out, _ = joules(capsys, "pick", table, "--reference", "target=default", "--metric", "e")
    assert (rows(out)[0]["cap"], rows(out)[0]["energy_j"]) == ("100", "1000.0")


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
        assert joules(capsys, "totals", *first, first[0])[0] == 0
    assert place in refused(capsys, "totals", *first, write(tmp_path / "t.csv", records), "-o", out)
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
    assert place in refused(capsys, "pick", write(tmp_path / "t.csv", TABLE), *options, *metric, "-o", out)
    assert not out.exists()
