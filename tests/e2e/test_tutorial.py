"""The tutorial's scripts run, and print what their page shows, but for the numbers."""

import importlib.util
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from powerd_analytics import phase_table, read_run

HERE = Path(__file__).parents[2] / "docs" / "tutorial"
spec = importlib.util.spec_from_file_location("renew", HERE / "renew.py")
renew = importlib.util.module_from_spec(spec)
spec.loader.exec_module(renew)
PAGE = (HERE / "scripts.md").read_text(encoding="utf-8")
BLOCKS = {name: text for _, name, text in renew.BLOCK.findall(PAGE)}
NO_TOTALS_YET = {"watch", "unmarked", "ranks"}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Each block's transcript as it is now, and its directory. They run side by side."""
    place = tmp_path_factory.mktemp("tutorial")
    for name in BLOCKS:
        renew.set_scene(place / name)
    with ThreadPoolExecutor(2) as pool:
        printed = pool.map(lambda name: renew.transcript(BLOCKS[name], place / name), BLOCKS)
        return {name: (text, place / name) for name, text in zip(BLOCKS, printed, strict=True)}


def shape(text):
    """The first word of each line; notes, which say how short of readings a machine was, are left out."""
    lines = [line for line in text.splitlines() if not re.match(r" *\d+ {2}", line)]
    return [found[0] for line in lines if (found := re.search(r"[A-Za-z$][\w.]*", line))]


@pytest.mark.parametrize("name", BLOCKS)
def test_a_script_prints_what_the_page_shows(run, name):
    assert shape(run[name][0]) == shape(BLOCKS[name])


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.xfail(strict=False)] if n in NO_TOTALS_YET else []) for n in BLOCKS]
)
def test_totals_have_numbers_and_sums_agree(run, name):
    table = phase_table(read_run(next(run[name][1].glob("*.h5"))))
    assert table.totals
    assert all(row.energy_j > 0 and row.u95_j > 0 for row in table.totals)
    assert all(abs(row.residual_j) <= row.u95_j for row in table.runs)


def test_the_scripts_in_the_page_are_the_files():
    assert renew.with_scripts(PAGE) == PAGE
