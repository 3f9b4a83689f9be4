"""The ways in which a training is recorded all end with totals, iterations and phases + rest = total: in this process,
and as the tutorial's scripts, which print what their page shows, but for the numbers."""

import importlib.util
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from analytics.support.command import joules
from powerd_analytics.run_tables.table import phase_table
from powerd_analytics.runs.run import read_run
from powerd_client import Meter

STEPS = 12
CONFIG = '[server]\nlisten = "{url}"\n[[source]]\nkind = "sim"\nname = "rails"\nrate_hz = 200.0\n'


TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial"
spec = importlib.util.spec_from_file_location("renew", TUTORIAL / "renew.py")
renew = importlib.util.module_from_spec(spec)
spec.loader.exec_module(renew)
PAGE = (TUTORIAL / "scripts.md").read_text(encoding="utf-8")
BLOCKS = {name: text for _, name, text in renew.BLOCK.findall(PAGE)}
FIGURE = (TUTORIAL / "figure.md").read_text(encoding="utf-8")
MARKS = {name: [pytest.mark.soak] for name in ("plain_loop", "watch", "ranks", "killed")}  # other tests do these
for block, library in renew.NEEDS.items():
    MARKS[block] = [pytest.mark.skipif(importlib.util.find_spec(library) is None, reason=f"needs {library}")]


def shape(text):
    """The first word of each line; notes, which say how short of readings a machine was, are left out."""
    lines = re.sub(r"^ \S.*\n(?: {5}\S.*\n)*", "", text + "\n", flags=re.MULTILINE).splitlines()
    # What is in no phase, and what rests between them, shows only where it is more than half a per cent.
    lines = [line for line in lines if "outside phases" not in line and "(rest" not in line]
    lines = [re.sub(r"^ +of \S+ J in \w+: ", "", line) for line in lines]  # where much is outside them
    return [found[0] for line in lines if (found := re.search(r"[A-Za-z$][\w.]*", line))]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", [pytest.param(name, marks=MARKS.get(name, [])) for name in BLOCKS])
def test_a_script_of_the_tutorial_prints_what_the_page_shows_and_its_sums_agree(name, tmp_path):
    renew.set_scene(tmp_path / name)
    assert shape(renew.transcript(BLOCKS[name], tmp_path / name)) == shape(BLOCKS[name])
    table = phase_table(read_run(tmp_path / name / f"{name}.h5"))
    assert table.totals
    assert all(row.energy_j > 0 and row.u95_j > 0 for row in table.totals)
    assert all(abs(row.energy_j - row.phases_j - (row.rest_j or 0.0)) <= row.u95_j for row in table.runs)


@pytest.mark.timeout(600)
def test_the_way_to_a_figure_can_be_typed_from_the_page(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    in_a_shell = renew.run

    def run(line, directory):
        if not line.startswith("$ joules ") or "|" in line:
            return in_a_shell(line, directory)
        code, out, err = joules(capsys, *shlex.split(line)[2:])
        assert code == 0, err
        return "\n".join(row.rstrip() for row in (out + err).strip("\n").splitlines())

    monkeypatch.setattr(renew, "run", run)
    for name, text in re.findall(r"<!-- script: (\S+) -->\n```\w+\n(.*?)^```", FIGURE, re.DOTALL | re.MULTILINE):
        (tmp_path / name).write_text(text, encoding="utf-8")
    blocks = [text for _, _, text in renew.BLOCK.findall(FIGURE)]
    assert sum(line.startswith("$ ") for block in blocks for line in block.splitlines()) == 10
    for block in blocks:
        printed = renew.transcript(block, tmp_path)
        assert shape(printed) == shape(block)
        assert [line for line in printed.splitlines() if len(line) > 80 and not line.startswith("$ ")] == []
    assert r"\begin{tabular}" in (tmp_path / "minima.tex").read_text(encoding="utf-8")
    assert (tmp_path / "cells.csv").read_text(encoding="utf-8").count(",simulated,") == 18
    assert (tmp_path / "sweep.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.parametrize("page", [PAGE, FIGURE], ids=["scripts", "figure"])
def test_the_scripts_in_the_page_are_the_files(page):
    assert renew.with_scripts(page) == page


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    folder = tmp_path_factory.mktemp("powerd")
    config, address = folder / "powerd.toml", f"ipc://{folder}/powerd"
    config.write_text(CONFIG.format(url=address))
    command = [sys.executable, "-P", "-m", "powerd_daemon", "run", "--config", config]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as powerd:
        try:
            assert "listens" in powerd.stderr.readline()
            yield address
        finally:
            powerd.terminate()
            powerd.communicate(timeout=60)


class Net(nn.Linear):
    """Takes a while."""

    def forward(self, x):
        time.sleep(0.006)
        return super().forward(x)


def parts():
    model = Net(4, 2)
    return model, torch.optim.SGD(model.parameters(), lr=0.1), [torch.randn(8, 4)] * STEPS


def short_phases_far_apart(meter):
    for _ in range(STEPS):
        with meter.phase("query", batch_size=8):
            time.sleep(0.001)
        time.sleep(0.008)


def watched(meter):
    model, optimizer, batches = parts()
    watch = meter.watch(model, optimizer, loader=batches, batch_size=8)
    for x in watch.loader:
        model(x).sum().backward()
        optimizer.step()
    model.eval()(x)


@pytest.mark.parametrize("training", [short_phases_far_apart, watched], ids=lambda f: f.__name__)
def test_every_way_of_recording_ends_with_totals_that_agree(training, url, tmp_path):
    out = tmp_path / "run.h5"
    with Meter(url, out) as meter:
        training(meter)
    table = phase_table(read_run(out), "gpu0")
    (whole,) = table.runs
    assert abs(whole.energy_j - whole.phases_j - (whole.rest_j or 0.0)) <= whole.u95_j
    for total in table.totals:
        assert total.energy_j > 0
        assert total.u95_j > 0
        assert total.power_w == pytest.approx(total.energy_j / total.time_s)
    of_phases = sum(total.energy_j for total in table.totals)
    assert abs(of_phases - whole.phases_j) <= sum(total.u95_j for total in table.totals)
    counts = [row.iterations for row in table.phases if row.phase == "iteration"]
    assert counts == ([STEPS] if training is watched else [])
    if training is watched:
        assert {row.group.get("model") for row in table.phases} == {"Net-10"}
