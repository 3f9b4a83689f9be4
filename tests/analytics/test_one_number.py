"""One run has one number: closing line, tables, info, verify, report and top say the same joules and the same ±.

A campaign has one, too: its journal, tables, CSV, pictures, page, findings and `joules published pick` say one joule,
one ±, one best.
"""

import csv
import importlib.util
import io
import json
import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from make_campaign import one_run
from make_run import MS, LineSpec, PhaseSpec, S, auxiliary, constant, make_run, training
from scipy.special import stdtrit

from powerd_analytics import phase_table, read_run
from powerd_analytics.campaign_views.findings import findings
from powerd_analytics.campaigns.design import Design
from powerd_analytics.campaigns.journal import Journal, read_history
from powerd_analytics.campaigns.results import result_of
from powerd_analytics.campaigns.runner import Blocks, Runner, begin
from powerd_analytics.cli import main
from powerd_analytics.cli.campaign import open_campaign, read_design
from powerd_analytics.frame.figure import Figure, figure_of
from powerd_analytics.frame.figures import concat_frames, rows_of, run_frame
from powerd_analytics.frame.published import read_table
from powerd_analytics.frame.repeats import average_repeats
from powerd_analytics.plots.configurations import configurations_of_table, draw_sweep
from powerd_analytics.plots.power import draw_quality
from powerd_analytics.run_tables.closing_lines import result_lines
from powerd_client.energies.live import LiveLine
from powerd_core.lease import Range
from powerd_core.text import figure_and_u95

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
        "verify": of_gpu0(said(capsys, "info", "--check", run)),
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


# -- campaigns ---------------------------------------------------------------------------------------------------------

CAPS = {100: (0.62, 1.9), 140: (0.7, 1.45), 180: (0.8, 1.18), 220: (0.95, 1.05), 260: (1.0, 1.0)}
"""Power and time over those at 260 W, by cap."""
AFTER_LOOKS_3 = stdtrit(2, 0.985) / stdtrit(2, 0.975)
RAISED = 100, 110.0
"""The driver enforced more than was asked."""
FILE = """
[campaign]
name = "c"
command = ["python", "train.py"]
[factors]
power_cap_w = [100, 140, 180, 220, 260]
[order]
reference = {power_cap_w = REFERENCE}
[repeats]
min = 3
max = 3UNTIL
[guard]
discard = []
[control]
devices = "gpu0"
"""


@dataclass
class Bench:
    """Makes run files instead of running: a sensor with a limit, repeats that differ, a cap that the driver raised."""

    design: Design

    def ranges(self):
        return {"power_cap_w": Range(100.0, 300.0, 260.0)}

    def run(self, item, attempt, file):
        cap = item.cell.levels["power_cap_w"]
        power, time = CAPS[cap]
        draw = np.random.default_rng([cap, item.block])
        tr = training((64,), 4, *(ms * time * (1 + 0.003 * draw.normal()) for ms in (21.3, 43.7, 2.9)))
        enforced = RAISED[1] if cap == RAISED[0] else float(cap)
        gain = power * (1 + 0.004 * draw.normal()) * (1 + 0.02 * item.block)
        lines = [
            LineSpec("gpu0.a", tr.power(gain), "gpu0", accuracy={"u_gain": 0.01}),
            auxiliary("gpu0.power_limit", "power_limit_w", lambda t: np.full(len(t), enforced), device="gpu0"),
        ]
        events = [(0, "campaign", self.design.about(item), 0)]
        make_run(file, lines, tr.phases, end_ns=tr.end_ns, events=events, run_id=item.key)
        return result_of(file, self.design, item.cell.levels)


def made_campaign(folder, reference=260, until=""):
    file = folder / "c.toml"
    file.write_text(FILE.replace("REFERENCE", str(reference)).replace("UNTIL", until))
    design = read_design(file)
    with Journal(folder / "c", is_synced=False) as journal:
        design = begin(design, Bench(design), journal)
        Runner(design, Blocks(design), Bench(design), journal).run()
    return file


@pytest.fixture(scope="module", params=["", "\nuntil = {metric = 'energy_j', half_width = 0.0001}"])
def made(request, tmp_path_factory):
    """Ended by their number, or after looks at the interval."""
    folder = tmp_path_factory.mktemp("campaign")
    return made_campaign(folder, until=request.param), bool(request.param)


@pytest.fixture
def home(made, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(made[0].parent)
    return made


def by_cap(capsys, *arguments):
    rows = csv.DictReader(io.StringIO(said(capsys, *arguments, "--format", "csv")))
    return {float(row["power_cap_w"]): row for row in rows if row.get("power_cap_w")}


def figures(row, *names):
    return [float(row[name]) for name in names]


@pytest.mark.slow
def test_a_campaign_says_the_joules_of_its_runs_in_every_place(home, capsys):
    file, is_looked_at = home
    cells = by_cap(capsys, "campaign", "table", file, "--table", "cells")
    asked = {100 if cap == RAISED[1] else cap: row for cap, row in cells.items()}
    assert list(cells) == [RAISED[1], 140, 180, 220, 260]
    assert figures(cells[RAISED[1]], "power_cap_w", "power_cap_w_asked") == [RAISED[1], RAISED[0]]
    opened = open_campaign(file, None)
    files = {cap: [] for cap in CAPS}
    for m in opened.campaign.runs:
        files[m.item.cell.levels["power_cap_w"]].append(file.parent / "c" / m.result.file)
    # One run: the journal, `tables`, the closing line.
    first = files[180][0]
    one = read_history(file.parent / "c").results()
    result = next(r for r in one.values() if first.name == Path(r.file).name)
    (total,) = (r for r in rows_of(run_frame(first)) if r["kind"] == "total")
    assert (result.energy.value, result.energy.u95) == pytest.approx((total["energy_j"], total["u95_j"]), rel=1e-9)
    # Repeats: `tables` and `index` of the run files, `campaign table`, its picture and the page.
    for cap, own in files.items():
        frame = concat_frames([run_frame(path) for path in own])
        (mean,) = (r for r in rows_of(average_repeats(frame)) if r["kind"] == "total")
        figure = Figure(mean["energy_j"], mean["u_statistical_j"], mean["u_systematic_j"], mean["rectangle_j"],
                        mean["degrees_of_freedom"])  # fmt: skip
        if is_looked_at:
            figure = replace(figure, u_statistical=figure.u_statistical * AFTER_LOOKS_3)
        expected = pytest.approx([figure.value, figure.u95, mean["time_s"]], rel=1e-9)
        assert figures(asked[cap], "energy_j", "u95_j", "time_s") == expected, cap
        assert mean["power_cap_w"] == pytest.approx(float(asked[cap]["power_cap_w"]))
        for path in own:
            folder = file.parent / "by cap" / str(cap)
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, folder)
    # Another way to the same means: by the batch, of which each run has four; and by an index.
    both = said(capsys, "compare", "by cap/180", "by cap/260", "--ignore", "power_cap_w", "--format", "csv")
    (of_total,) = (r for r in csv.DictReader(io.StringIO(both)) if (r["kind"], r["figure"]) == ("total", "J/batch"))
    expected = [float(asked[cap]["energy_j"]) / 4 for cap in (180, 260)]
    assert figures(of_total, "a", "b") == pytest.approx(expected, rel=1e-9)
    if importlib.util.find_spec("pyarrow") is not None:
        said(capsys, "query", "by cap/180", "--index", "by cap/180.parquet")
        indexed = csv.DictReader(io.StringIO(said(capsys, "tables", "by cap/180.parquet", "--format", "csv")))
        (mean,) = (row for row in indexed if row["kind"] == "total")
        assert float(mean["energy_j"]) == pytest.approx(float(asked[180]["energy_j"]), rel=1e-9)
    picture = {r["power_cap_w"]: r for r in rows_of(opened.campaign.frame)}
    for cap, row in cells.items():
        drawn = figure_of(picture[cap], "energy_j")
        assert [drawn.value, drawn.u95] == pytest.approx(figures(row, "energy_j", "u95_j"), rel=1e-9)
    said(capsys, "campaign", "report", file, "-o", "page.html", "--overwrite")
    page = (file.parent / "page.html").read_text(encoding="utf-8")
    shown = [figure_and_u95(float(row["energy_j"]), float(row["u95_j"]))[0] for row in cells.values()]
    assert all(f">{text}<" in page for text in shown)


@pytest.mark.slow
def test_a_campaign_has_one_best_in_every_place(home, capsys):
    file, _ = home
    said(capsys, "campaign", "table", file, "--table", "cells", "-o", "cells.csv", "--overwrite")
    minima = csv.DictReader(
        io.StringIO(said(capsys, "campaign", "table", file, "--table", "merits", "--format", "csv"))
    )
    table = {row["target"]: row for row in minima}
    metrics = {"e": "E", "edp": "EDP", "eds:2": "EDS k=2", "eds:1.5": "EDS k=1.5"}
    best = {name: float(table[target]["power_cap_w"]) for name, target in metrics.items()}
    picked = csv.DictReader(io.StringIO(said(
        capsys, "published", "pick", "cells.csv", "--reference", "power_cap_w=260", "--metric", ",".join(metrics),
        "--format", "csv",
    )))  # fmt: skip
    rows = {row["metric"]: row for row in picked}
    assert {name: float(row["power_cap_w"]) for name, row in rows.items()} == best
    for name, row in rows.items():
        of = table[metrics[name]]
        ties = {float(text.split()[-1]) for text in row["ties"].split("; ")} if row["ties"] != "none" else set()
        as_good = {best[name], *ties}
        levels = sorted(map(float, re.findall(r"[\d.]+", of["as_good"].partition("≤")[0])))
        assert (min(as_good), max(as_good)) == (levels[0], levels[-1])
        saving = [-float(of["energy_pct"]), float(of["u95_energy_pct"] or 0)]
        assert figures(row, "energy_saving_pct", "u95_energy_saving_pct") == pytest.approx(saving, rel=1e-9)
    campaign = open_campaign(file, None).campaign
    text = " ".join(findings(campaign))
    for name in ("e", "edp"):
        assert f"the least {metrics[name]} is at {best[name]:g} W".lower() in text.lower()
    for frame in (campaign.frame, configurations_of_table(read_table(Path("cells.csv")))):
        axes = draw_sweep(frame, "c", "power_cap_w=260").axes[0]
        rings = [float(line.get_xdata()[0]) for line in axes.lines if line.get_markersize() == 10]
        assert rings[:1] + rings[2:3] == [best["e"], best["edp"]]


@pytest.mark.slow
def test_a_reference_that_was_changed_afterwards_is_taken(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    file = made_campaign(tmp_path)
    before = by_cap(capsys, "campaign", "table", file, "--table", "cells")
    file.write_text(file.read_text().replace("reference = {power_cap_w = 260}", "reference = {power_cap_w = 220}"))
    after = by_cap(capsys, "campaign", "table", file, "--table", "cells")
    assert figures(after[220], "e_ratio") == [1.0]
    for cap, row in after.items():
        ratio = float(before[cap]["e_ratio"]) / float(before[220]["e_ratio"])
        assert float(row["e_ratio"]) == pytest.approx(ratio, rel=1e-9)
        assert row["energy_j"] == before[cap]["energy_j"]
    file.write_text(file.read_text().replace("{power_cap_w = 220}", "{power_cap_w = 230}"))
    with pytest.raises(SystemExit):
        main(["campaign", "table", str(file)])
    assert "order.reference: the campaign has no cell power_cap_w 230 W" in capsys.readouterr().err


@pytest.mark.slow
def test_a_journal_without_rows_takes_them_from_its_run_files_or_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    file = made_campaign(tmp_path)
    new = by_cap(capsys, "campaign", "table", file, "--table", "cells")
    journal = tmp_path / "c" / "campaign.jsonl"
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    for line in lines:
        if line["event"] == "verified":
            (total,) = (row for row in line["result"].pop("rows") if row["kind"] == "total")
            line["result"] |= {
                name: total[name] for name in ("energy_j", "time_s", "u_statistical_j", "u_systematic_j")
            }
            line["result"] |= {"device": "gpu0", "provenance": "measured", "samples": 512.0}
    journal.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert by_cap(capsys, "campaign", "table", file, "--table", "cells") == new
    for run in (tmp_path / "c" / "runs").glob("*.h5"):
        run.unlink()
    text = said(capsys, "campaign", "table", file, "--table", "cells")
    assert "15 runs of an earlier release, without their files: U95 takes limits for noise" in " ".join(text.split())
