"""`make demo` on a small scale: the main job, end to end."""

import importlib
from pathlib import Path

import pytest
import torch

from powerd_analytics import read_run

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.timeout(300)
def test_the_demo_leaves_a_run_a_table_a_picture_and_a_page(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setattr("sys.argv", ["demo.py", "--directory", "demo", "--batch", "8", "--seconds", "1"])
    threads = torch.get_num_threads()
    try:
        status = importlib.import_module("demo").main()
    finally:
        torch.set_num_threads(threads)
    out, err = capsys.readouterr()
    assert status == 0, out + err
    made = tmp_path / "demo"
    assert all((made / name).stat().st_size > 1000 for name in ("run.h5", "table.csv", "power.png", "report.html"))
    run = read_run(made / "run.h5")
    assert {"data", "forward", "backward", "update"} <= {kind.name for kind in run.phases.classes}
    assert max(len(line) for line in out.splitlines() if "│" not in line) <= 80
