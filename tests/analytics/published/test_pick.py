import pytest
from command import joules, refused
from published_tables import CAPS, rows, write

from powerd_analytics import metrics
from powerd_analytics.published.choice import parse_condition
from powerd_core.errors import ConfigError

MODELS = list(dict.fromkeys(r["model"] for r in rows(CAPS)))
MINIMA = [
    ("min E", "e"),
    ("min EDP", "edp"),
    ("min EDS(k=2.0)", "eds", "--k", "2.0"),
    ("min EDS(k=1.5)", "eds", "--k", 1.5),
]


def in_joules(records):
    return [{"model": r["model"], "power_cap_w": r["power_cap_w"], "time_s": r["time_s"],
             "energy_j": float(r["energy_kj"]) * 1000} for r in records]  # fmt: skip


def minimum(model, target):
    return next(r for r in rows(CAPS) if (r["model"], r["target"]) == (model, target))


def test_there_are_six_models():
    assert len(MODELS) == 6


@pytest.mark.parametrize("target", MINIMA, ids=lambda t: t[0])
def test_every_minimum_of_the_paper_as_published_and_in_joules(tmp_path, capsys, target):
    name, *options = target
    by = rows(joules(capsys, "pick", CAPS, "--reference", "target=default", "--metric", *options, "--by", "model")[1])
    converted = write(tmp_path / "j.csv", in_joules(rows(CAPS)))
    for model, row in zip(MODELS, by, strict=True):
        expected = minimum(model, name)
        assert (row["model"], row["power_cap_w"], row["energy_kj"]) == (
            model, expected["power_cap_w"], expected["energy_kj"],
        )  # fmt: skip
        chosen = (
            "pick",
            converted,
            "--reference",
            "power_cap_w=260.0",
            "--metric",
            *options,
            "--where",
            f"model={model}",
        )
        (other,) = rows(joules(capsys, *chosen)[1])
        assert other["power_cap_w"] == expected["power_cap_w"]
        alone = write(tmp_path / f"{model}.csv", [r for r in rows(CAPS) if r["model"] == model])
        code, out, _ = joules(capsys, "pick", alone, "--reference", "target=default", "--metric", *options)
        assert (code, rows(out)) == (0, [row])


def test_the_row_comes_back_with_metric_saving_and_loss(capsys):
    _, out, err = joules(
        capsys, "pick", CAPS, "--reference", "target=default", "--metric", "eds", "--where", "model=Resnet50"
    )
    (row,) = rows(out)
    assert err == ""
    assert {k: row[k] for k in minimum("Resnet50", "min EDS(k=2.0)")} == minimum("Resnet50", "min EDS(k=2.0)")
    assert float(row["eds"]) == pytest.approx(metrics.eds(19.683, 141.2, 27.068, 125.4, 2.0))
    assert float(row["energy_saving_pct"]) == pytest.approx(100 * (1 - 19.683 / 27.068))
    assert float(row["performance_loss_pct"]) == pytest.approx(100 * (141.2 / 125.4 - 1))
    assert float(row["saving_minus_loss_pct"]) == pytest.approx(27.2831 - 12.5997, abs=1e-3)


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


TABLE = [
    {"cap": "100", "target": "low", "energy_kj": 1, "time_ms": 3000},
    {"cap": "200", "target": "default", "energy_kj": 2, "time_ms": 1000},
    {"cap": "150", "target": "mid", "energy_kj": "", "time_ms": 2000},
]


def test_units_of_the_columns_and_rows_that_were_not_run(tmp_path, capsys):
    table = write(tmp_path / "t.csv", TABLE)
    _, out, err = joules(capsys, "pick", table, "--reference", "cap=200.0", "--metric", "edp")
    assert rows(out)[0]["edp_js"] == "2000.0"
    assert "t.csv, line 4: no energy or no time: not among the choices" in err
    _, out, _ = joules(capsys, "pick", table, "--reference", "target=default", "--metric", "e")
    assert (rows(out)[0]["cap"], rows(out)[0]["energy_j"]) == ("100", "1000.0")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--reference", "cap=250", "--metric", "e"), "no row is the reference cap=250; cap is 100, 200, 150"),
        (("--reference", "Cap=200", "--metric", "e"), "line 1: no column 'Cap': did you mean 'cap'?"),
        (("--reference", "cap", "--metric", "e"), "--reference cap: is not COLUMN=VALUE"),
        (("--reference", "target=mid", "--metric", "e"), "line 4: the reference target=mid has no energy or no time"),
        (("--reference", "cap=200", "--metric", "e", "--where", "cap=7"), "no row has cap=7"),
        (("--reference", "cap=200", "--metric", "e", "--by", "model"), "no column 'model'"),
        (
            ("--reference", "cap=200", "--metric", "e", "--by", "cap"),
            "no row is the reference cap=200 among the rows with",
        ),
        (("--reference", "cap=200", "--metric", "eds", "--k", "0.5"), "--k 0.5: must be 1 or more"),
        (("--reference", "cap=200", "--metric", "cost", "--eta", "2"), "--eta 2: must lie between 0 and 1"),
        (("--reference", "cap=200", "--metric", "cost"), "give --max-power W"),
        (("--reference", "cap=200", "--metric", "cost", "--max-power", "nan"), "--max-power nan: must be above 0"),
        (("--reference", "cap=200", "--metric", "speed"), "speed"),
    ],
)
def test_what_cannot_be_picked(tmp_path, capsys, options, said):
    out = tmp_path / "out.csv"
    assert said in refused(capsys, "pick", write(tmp_path / "t.csv", TABLE), *options, "-o", out)
    assert not out.exists()


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        ({"energy_kj": "much"}, "line 2, column energy_kj: 'much' is no number"),
        ({"energy_kj": "inf"}, "line 2, column energy_kj: 'inf' is no finite number"),
        ({"time_ms": -1}, "line 2, column time_ms: -1 is negative"),
    ],
)
def test_bad_cells(tmp_path, capsys, cells, said):
    table = write(tmp_path / "t.csv", [{**TABLE[0], **cells}, *TABLE[1:]])
    assert said in refused(capsys, "pick", table, "--reference", "cap=200", "--metric", "e")


def both_units(**cells):
    """The table with energies in joules beside those in kilojoules, and times in seconds beside milliseconds."""
    full = [r for r in TABLE if r["energy_kj"] and r["time_ms"]]
    made = [{**r, "energy_j": float(r["energy_kj"]) * 1e3, "time_s": float(r["time_ms"]) / 1e3} for r in full]
    return [{**made[0], **cells}, *made[1:]]


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        ({"energy_j": 17}, "line 2, columns energy_j and energy_kj: energy_j is 17 and energy_kj is "),
        ({"time_s": 17}, "line 2, columns time_s and time_ms: time_s is 17 and time_ms is "),
        ({"energy_j": ""}, "line 2, columns energy_j and energy_kj: energy_j is empty and energy_kj is "),
    ],
)
def test_two_columns_of_one_quantity_must_agree(tmp_path, capsys, cells, said):
    table, out = write(tmp_path / "t.csv", both_units(**cells)), tmp_path / "made.csv"
    err = refused(capsys, "pick", table, "--reference", "cap=200", "--metric", "e", "-o", out)
    assert said in err
    assert "which of the two counts is not clear" in err
    assert not out.exists()
    picture = tmp_path / "made.png"
    assert said in refused(capsys, "plot", table, "--kind", "pareto", "-o", picture)
    assert not picture.exists()


def test_two_columns_that_are_roundings_of_one_number_agree(tmp_path, capsys):
    one = [{"cap": 100, "energy_j": 22445.3, "time_s": 132.1, "energy_kj": "22.445", "time_min": "2.20"},
           {"cap": 200, "energy_j": 27068.4, "time_s": 125.4, "energy_kj": "27.07", "time_min": "2.09"}]  # fmt: skip
    options = ("--reference", "cap=200", "--metric", "e")
    code, out, err = joules(capsys, "pick", write(tmp_path / "t.csv", one), *options)
    assert (code, err, rows(out)[0]["energy_j"]) == (0, "", "22445.3")
    one[0]["energy_kj"] = "22.446"
    assert "line 2, columns energy_j and energy_kj" in refused(capsys, "pick", write(tmp_path / "u.csv", one), *options)


def test_tables_without_energy_or_time(tmp_path, capsys):
    for column in ("energy", "time"):
        table = write(tmp_path / "t.csv", [{k: v for k, v in r.items() if column not in k} for r in TABLE])
        assert f"no column '{column}_" in refused(capsys, "pick", table, "--reference", "cap=200", "--metric", "e")


def test_several_references_are_refused_and_groups_offered(tmp_path, capsys):
    said = refused(capsys, "pick", CAPS, "--reference", "target=default", "--metric", "e")
    assert "lines 2, 7, 12, 17, 22, 27: 6 rows are the reference target=default" in said
    assert "--where COLUMN=VALUE" in said
    assert "--by COLUMN" in said
    same = write(tmp_path / "t.csv", [*TABLE, TABLE[1]])
    assert "lines 3, 5: 2 rows are the reference" in refused(
        capsys, "pick", same, "--reference", "cap=200", "--metric", "e"
    )


def test_equal_rows_are_said_and_the_first_is_taken(tmp_path, capsys):
    table = write(tmp_path / "t.csv", [*TABLE, TABLE[0]])
    code, out, err = joules(capsys, "pick", table, "--reference", "cap=200", "--metric", "e")
    assert (code, rows(out)[0]["cap"]) == (0, "100")
    assert "line 2: line 5 is as good; the first is taken" in err


def test_what_the_pick_costs(tmp_path, capsys):
    table = write(tmp_path / "t.csv", [{"cap": 1, "energy_kwh": 2.5, "time_h": 1}, {"cap": 2, "energy_kwh": 3,
                  "time_h": 1}])  # fmt: skip
    options = ("--co2-g-per-kwh", 400, "--price-per-kwh", 0.3, "--currency", "CHF")
    code, out, err = joules(capsys, "pick", table, "--reference", "cap=2", "--metric", "e", *options)
    assert (code, err) == (0, "")
    assert out.splitlines()[0].endswith("saving_minus_loss_pct,co2_g,cost_chf")
    assert (rows(out)[0]["co2_g"], rows(out)[0]["cost_chf"]) == ("1000.0", "0.75")
    said = refused(capsys, "pick", table, "--reference", "cap=2", "--metric", "e", "--currency", "CHF")
    assert "--currency is that of --price-per-kwh" in said


def test_a_table_for_people_and_a_file(tmp_path, capsys):
    table, out = write(tmp_path / "t.csv", TABLE), tmp_path / "out.csv"
    command = ("pick", table, "--reference", "cap=200", "--metric", "edp")
    shown = joules(capsys, *command, "--format", "table")[1]
    assert [line.split() for line in shown.splitlines()][:2] == [["cap", "200"], ["target", "default"]]
    assert joules(capsys, *command, "-o", out)[:2] == (0, "")
    assert out.read_text() == joules(capsys, *command)[1]
    assert "exists" in refused(capsys, *command, "-o", out)


def test_totals_can_be_picked_from(tmp_path, capsys):
    phases = [{"device": "g", "gpus": n, "model": "m", "phase": "step", "batch": 8, "s_per_training": 100 / n,
               "j_per_training": 90 / n**0.5} for n in (1, 2, 4)]  # fmt: skip
    totals = tmp_path / "totals.csv"
    joules(capsys, "totals", write(tmp_path / "t.csv", phases), "-o", totals)
    _, out, _ = joules(capsys, "pick", totals, "--reference", "gpus=1", "--metric", "edp")
    (row,) = rows(out)
    assert (row["gpus"], list(row).count("edp_js")) == ("4", 1)
    assert float(row["edp_js"]) == pytest.approx(25 * 180)


def test_conditions_split_at_the_first_equals_sign():
    condition = parse_condition("--where", "target=min EDS(k=2.0)")
    assert (condition.column, condition.value) == ("target", "min EDS(k=2.0)")
    for text in ("=1", "a=", "a", ""):
        with pytest.raises(ConfigError, match="is not COLUMN=VALUE"):
            parse_condition("--where", text)


def test_a_zero_is_said_and_what_overflows_is_refused(tmp_path, capsys):
    table = write(tmp_path / "t.csv", [{**TABLE[0], "energy_kj": 0}, *TABLE[1:]])
    code, out, err = joules(capsys, "pick", table, "--reference", "cap=200", "--metric", "e")
    assert (code, rows(out)[0]["cap"]) == (0, "100")
    assert "t.csv, line 2: 0 counts as 0; leave it empty if it was not measured" in err
    table = write(tmp_path / "t.csv", [{**TABLE[0], "energy_kj": 1e300, "time_ms": 1e300}, *TABLE[1:]])
    assert "line 2: energy and time are too large" in refused(
        capsys, "pick", table, "--reference", "cap=200", "--metric", "edp"
    )


def test_a_metric_is_never_0_by_want_of_digits(tmp_path, capsys):
    table = write(tmp_path / "t.csv", [{"cap": 1, "energy_j": "1e-300", "time_s": "1e-300"}])
    said = refused(capsys, "pick", table, "--reference", "cap=1", "--metric", "edp")
    assert "line 2: energy and time are too small: their metric would be 0" in said
