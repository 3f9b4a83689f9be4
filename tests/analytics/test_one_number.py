"""One run has one number: closing line, tables, info, verify, report and top say the same joules and the same ±."""

import csv
import io
import re

import numpy as np
import pytest
from make_campaign import one_run
from make_run import MS, LineSpec, PhaseSpec, S, constant, make_run, training

from powerd_analytics import phase_table, read_run
from powerd_analytics.cli import main
from powerd_analytics.plots.power import draw_quality
from powerd_analytics.results import result_lines
from powerd_client.live import LiveLine

FIGURE = r"(≥ )?([\d.]+(?: ± [\d.]+)?) J"


def rails(path):
    tr = training((64,), 12)
    lines = [LineSpec(f"gpu0.rail{i}", tr.power(0.5), offset_ns=i * MS // 2, accuracy={"u_gain": 0.01}) for i in (0, 1)]
    return make_run(path, lines, tr.phases, end_ns=tr.end_ns)


def with_a_hole(path, length_ns=S // 2):
    tr = training((64,), 20)
    t = [k for k in range(0, tr.end_ns + 1, 2 * MS) if not S // 2 < k < S // 2 + length_ns]
    line = LineSpec("gpu0.a", tr.power(), t_ns=np.array(t), accuracy={"u_gain": 0.01})
    return make_run(path, [line], tr.phases, end_ns=tr.end_ns)


def two_devices(path):
    lines = [LineSpec(f"gpu{k}.a", constant, f"gpu{k}", "measured", accuracy={"u_gain": 0.01}) for k in (0, 1)]
    return make_run(path, lines, [PhaseSpec("step", k * S, (k + 1) * S) for k in range(9)], end_ns=10 * S)


RUNS = {
    "three batch sizes": lambda path: one_run(path, batches=(64, 128, 256), iterations=8, noise_w=3.0),
    "a slow driver": lambda path: make_run(
        path, [LineSpec("gpu0.nvml", training((64,), 40).power(), period_ns=20 * MS)], training((64,), 40).phases,
        end_ns=training((64,), 40).end_ns,
    ),
    "two rails": rails,
    "a hole": with_a_hole,
    "two devices": two_devices,
}  # fmt: skip


@pytest.fixture(params=RUNS)
def run(request, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return RUNS[request.param](tmp_path / "run.h5")


def said(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    out = capsys.readouterr().out
    assert ended.value.code == 0, out
    return out


def of_gpu0(text):
    """The figure with its ± behind the first mention of the device, and the seconds without readings behind it."""
    line = next(line for line in text.splitlines() if re.search(rf"gpu0 (SIMULATED|measured)[ :]+{FIGURE}", line))
    missing = re.search(r"([\d.]+ m?s) without readings", text)
    return re.search(FIGURE, line).group(2), missing and missing.group(1)


def test_every_place_says_the_same_joules(run, capsys):
    closing = of_gpu0("\n".join(result_lines(run)))
    places = {
        "tables": of_gpu0(said(capsys, "tables", run, "--notes")),
        "info": of_gpu0(said(capsys, "info", run)),
        "verify": of_gpu0(said(capsys, "verify", run)),
        "top": of_gpu0(said(capsys, "top", "--run", run)),
    }
    assert places == dict.fromkeys(places, closing)
    (row,) = (
        r for r in csv.DictReader(io.StringIO(said(capsys, "tables", run, "--format", "csv")))
        if (r["kind"], r["device"]) == ("run", "gpu0")
    )  # fmt: skip
    said(capsys, "report", run, "-o", "report.html")
    page = run.with_name("report.html").read_text(encoding="utf-8")
    figure, _, u95 = closing[0].partition(" ± ")
    decimals = len(figure.partition(".")[2])
    assert abs(float(row["energy_j"]) - float(figure)) <= 0.51 * 10.0**-decimals
    assert figure in page
    assert u95 in page


def test_every_place_says_the_same_seconds_without_readings(tmp_path, monkeypatch, capsys):
    """Of one planted hole of a second, also the picture of quality, and `joules top` while the readings arrive."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    run = with_a_hole(tmp_path / "run.h5", S)
    _, said_s = of_gpu0("\n".join(result_lines(run)))
    assert said_s == "998 ms"
    places = [said(capsys, *place) for place in (("tables", run, "--notes"), ("info", run), ("verify", run),
                                                 ("top", "--run", run))]  # fmt: skip
    assert [of_gpu0(text)[1] for text in places] == [said_s] * 4
    read = read_run(run)
    (footer,) = [text.get_text() for text in draw_quality(read).texts if "bound: guaranteed" in text.get_text()]
    assert f"gpu0 {said_s} without readings; no scan lost; " in footer
    (row,) = phase_table(read).runs
    live, every = LiveLine(read.line("gpu0.a"), True), read.readings("gpu0.a")
    for first in range(0, len(every.t_ns), 10):
        live.take(every.some(first, first + 10))
    assert live.missing_s == pytest.approx(row.missing_s, abs=1e-9)


def test_what_was_remembered_is_forgotten_with_the_file(run, capsys):
    """The same name, another recording: no number of the first is told of the second."""
    first = of_gpu0(said(capsys, "info", run))
    other = one_run(run.with_name("other.h5"), 2.0, batches=(32,), iterations=5)
    other.replace(run)
    assert of_gpu0(said(capsys, "info", run)) != first
