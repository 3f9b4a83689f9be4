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
MARKS = {"ranks": [pytest.mark.soak]}  # three processes with torch
for block, library in renew.NEEDS.items():
    MARKS[block] = [pytest.mark.skipif(importlib.util.find_spec(library) is None, reason=f"needs {library}")]
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def runs(tmp_path_factory, request):
    """The transcript of each chosen script as it is now, as a future, and its directory. They run side by side."""
    place = tmp_path_factory.mktemp("tutorial")
    asked = {item.callspec.params.get("name") for item in request.session.items if hasattr(item, "callspec")}
    chosen = [name for name in BLOCKS if name in asked]
    with ThreadPoolExecutor(2) as pool:
        for name in chosen:
            renew.set_scene(place / name)
        yield {name: (pool.submit(renew.transcript, BLOCKS[name], place / name), place / name) for name in chosen}


def shape(text):
    """The first word of each line; notes, which say how short of readings a machine was, are left out."""
    lines = re.sub(r"^ \S.*\n(?: {5}\S.*\n)*", "", text + "\n", flags=re.MULTILINE).splitlines()
    # What is in no phase, and what rests between them, shows only where it is more than half a per cent.
    lines = [line for line in lines if "outside phases" not in line and "(rest" not in line]
    return [found[0] for line in lines if (found := re.search(r"[A-Za-z$][\w.]*", line))]


@pytest.mark.parametrize("name", [pytest.param(name, marks=MARKS.get(name, [])) for name in BLOCKS])
def test_a_script_prints_what_the_page_shows_and_its_sums_agree(runs, name):
    transcript, place = runs[name]
    assert shape(transcript.result()) == shape(BLOCKS[name])
    table = phase_table(read_run(place / f"{name}.h5"))
    assert table.totals
    assert all(row.energy_j > 0 and row.u95_j > 0 for row in table.totals)
    assert all(abs(row.residual_j) <= row.u95_j for row in table.runs)


def test_the_scripts_in_the_page_are_the_files():
    assert renew.with_scripts(PAGE) == PAGE
