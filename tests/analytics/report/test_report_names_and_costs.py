"""CO2 and money on the page, files of one name kept apart, and commands that make the page again."""

import re
import shlex

import pytest
from command import joules
from make_campaign import one_run
from page import report

from powerd_analytics.campaigns.factors import Factors
from powerd_analytics.campaigns.trainings import Length

pytest.importorskip("jinja2")
FACTORS = Factors(380.0, 20.0, 0.3, None, "eur")


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A run in each of two directories, under one name."""
    folder = tmp_path_factory.mktemp("runs")
    for seed, product in enumerate(("old", "new")):
        (folder / product).mkdir()
        one_run(folder / product / "0.h5", 1.0 - 0.2 * seed, iterations=8, seed=seed, device_name=product,
                accuracy={"u_gain": 0.005})  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def made(pair):
    return report([pair], pair / "page.html", length=Length(None, 90.0, 1281167.0), factors=FACTORS)


def test_the_sentence_on_cost_has_the_figures_of_the_totals(made):
    _, page = made
    columns = [page.column("totals", head) for head in ("g CO2e", "± U95 g CO2e", "EUR", "± U95 EUR", "product")]
    said = next(t for t in page.texts if t.startswith("The whole training: "))
    found = re.findall(r"([\d.]+) ± ([\d.]+) g CO2e and ([\d.]+) ± ([\d.]+) EUR \(.*?(old|new)\)", said)
    shown = sorted(tuple(c[0] for c in row) for row in zip(*columns, strict=True))
    assert sorted(found) == shown
    assert [row[4] for row in found] == ["new", "old"]
    assert said.endswith("of simulated joules; CO2 equivalents at 380 (u = 20) g/kWh, cost at 0.3 EUR/kWh, as stated.")


def test_without_factors_nothing_is_said_of_cost(pair, tmp_path):
    _, page = report([pair / "old"], tmp_path / "plain.html")
    assert "CO2" not in " ".join(page.texts)
    assert not any("CO2" in head for head in page.tables["table-totals"]["heads"])


def test_files_of_one_name_are_told_apart_everywhere(made):
    _, page = made
    assert sorted(c[0] for c in page.column("recordings", "run")) == ["new/0", "old/0"]
    for table, head in (("lines", "run"), ("clocks", "run"), ("files", "file")):
        assert sorted(c[0] for c in page.column(table, head)) == ["new/0.h5", "old/0.h5"]
    assert page.tables["table-environment"]["heads"][1:] == ["new/0.h5", "old/0.h5"]
    texts = " ".join(page.texts)
    assert {f"Uncertainty budget of {n}/0.h5" for n in ("old", "new")} <= {t["caption"] for t in page.tables.values()}
    assert "old/0: gpu0 took" in texts
    assert "new/0.h5: gpu0" in texts


def test_the_commands_of_the_page_make_its_figures_again(made, pair, capsys, monkeypatch):
    _, page = made
    monkeypatch.chdir(pair)
    commands = [line for t in page.texts for line in t.splitlines() if line.startswith("joules ")]
    again = shlex.split(next(c for c in commands if c.startswith("joules report")))
    assert again[-2:] == ["-o", "report.html"]
    code, _, err = joules(capsys, *again[1:])
    assert (code, err) == (0, "")
    assert (pair / "report.html").read_text().count("1281167") == made[0].count("1281167") > 0
    tables = shlex.split(next(c for c in commands if c.startswith("joules tables")))
    code, out, _ = joules(capsys, *tables[1:-2])
    assert code == 0
    assert "co2_g" in out.splitlines()[0]


def test_of_many_runs_the_environment_is_a_row_each_value(tmp_path):
    for i in range(5):
        one_run(tmp_path / f"{i}.h5", iterations=3, seed=i)
    _, page = report([tmp_path], tmp_path / "page.html")
    table = page.tables["table-environment"]
    assert table["heads"] == ["what", "value", "runs"]
    assert ["host", "box", "all"] in [[c[0] for c in row] for row in table["rows"]]
