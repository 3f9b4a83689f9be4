"""The report in a real browser: nothing goes wrong, nothing is asked for, tables sort, traces zoom and read out."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
from bench_report import browser_page, find_browser

sys.path.insert(0, str(Path(__file__).parents[1] / "analytics" / "support"))
import make_layers
from make_campaign import one_run, simulated_campaign
from make_run import MS, LineSpec, S, make_run, training

from powerd_analytics.campaign_views.campaign_figures import Campaign
from powerd_analytics.campaign_views.campaign_page import write_report as write_campaign
from powerd_analytics.report import write_report
from powerd_analytics.runs.run import read_run
from powerd_analytics.runs.signals import load_signal

CHROMIUM = find_browser()
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the path (or in $CHROMIUM)"),
    pytest.mark.xdist_group("browser"),
]
HOSTILE = '</script><img src=x onerror="window.taken=1">\'&'
TRACE = "joulesReport.traces[0]"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    first = one_run(folder / "a.h5", batches=(64, 128, 256), iterations=12, noise_w=4.0)
    tr = training((64,), 8, model=HOSTILE)
    t = np.arange(0, tr.end_ns, 2 * MS, dtype=np.int64)
    t = t[(t < S // 2) | (t > S * 6 // 10)]
    lines = [LineSpec("b.1", tr.power(0.5), t_ns=t), LineSpec("b.2", tr.power(0.5), offset_ns=MS)]
    second = make_run(folder / "b.h5", lines, tr.phases, end_ns=tr.end_ns, run_id="second")
    return first, second


@pytest.fixture(scope="module")
def page(runs, tmp_path_factory):
    out = tmp_path_factory.mktemp("html") / "report.html"
    write_report(runs, out)
    with browser_page(CHROMIUM) as opened:
        opened.open(out)
        yield opened


def odd_run(path, kind):
    plan = training((64,), 20)
    if kind == "of a slow sensor":  # nothing is resolvable
        line = LineSpec("gpu0.nvml", plan.power(), period_ns=400 * MS)
        return make_run(path, [line], plan.phases, end_ns=plan.end_ns)
    if kind == "of layers":
        return make_layers.write_run(path)
    line = LineSpec("gpu0.a", plan.power())
    devices = {"gpu0": ["gpu0.a"], "gpu1": []}
    return make_run(path, [line], plan.phases, devices, end_ns=plan.end_ns, complete=0)


ODD = ("of a slow sensor", "of layers", "of a device without lines")


@pytest.mark.parametrize("kind", ["of a run", "of several runs", "of a campaign", *ODD])
def test_every_kind_of_page_loads_without_an_error(runs, tmp_path, kind):
    out = tmp_path / "page.html"
    if kind in ODD:
        write_report([odd_run(tmp_path / "r.h5", kind)], out)
    elif kind == "of a campaign":
        design, history = simulated_campaign(tmp_path / "c")
        write_campaign(Campaign(design, history), out)
    else:
        write_report(runs[:1] if kind == "of a run" else runs, out)
    with browser_page(CHROMIUM) as opened:
        opened.open(out)
        assert opened.run("document.documentElement.dataset.ready") == "yes"
        opened.run("document.getElementById('theme').click()")
        opened.run("document.querySelector('table.sorts th button').click()")
        assert opened.said == []


def column(page, table, head):
    """Texts and exact values of a column, in the order in which they stand."""
    return page.run(
        f"""(() => {{ const t = document.getElementById("table-{table}");
        const i = [...t.tHead.rows[0].cells].findIndex(c => c.textContent === "{head}");
        return [...t.tBodies[0].rows].map(r => [r.cells[i].textContent, r.cells[i].dataset.value ?? null]); }})()"""
    )


def click_head(page, table, head):
    page.run(
        f"""[...document.querySelectorAll("#table-{table} th button")].find(b => b.textContent === "{head}").click()"""
    )


def test_it_loads_without_an_error_or_a_request(page):
    assert page.run("document.documentElement.dataset.ready") == "yes"
    assert page.said == []
    assert [url for url in page.requests if not url.startswith("file:")] == []
    assert len(page.requests) == 1
    assert page.run("window.taken") is None
    assert page.run("document.querySelectorAll('img').length") == 0


def test_a_click_sorts_by_value_and_back(page):
    before = column(page, "phases", "J/batch")
    click_head(page, "phases", "J/batch")
    values = [v for _, v in column(page, "phases", "J/batch")]
    numbers = [float(v) for v in values if v is not None]
    assert numbers == sorted(numbers)
    assert None not in values[: len(numbers)]
    assert len(set(numbers)) > 5
    click_head(page, "phases", "J/batch")
    numbers = [float(v) for _, v in column(page, "phases", "J/batch") if v is not None]
    assert numbers == sorted(numbers, reverse=True)
    click_head(page, "phases", "J/batch")
    assert column(page, "phases", "J/batch") == before


def test_a_trace_holds_the_readings_and_reads_them_out(page, runs):
    signal = load_signal(read_run(runs[0]), "gpu0.a")
    line = f"{TRACE}.lines[0]"
    assert page.run(f"{line}.time.length") == len(signal)
    at = 1234
    assert page.run(f"{line}.time[{at}]") == signal.t_ns[at] // 1000
    step = page.run(f"{line}.spec.watts.step")
    assert page.run(f"{line}.low[{at}]") == pytest.approx(signal.value[at], abs=step)
    peak = page.run(f"{line}.high.reduce((a, b) => Math.max(a, b))")
    assert peak == pytest.approx(signal.value.max(), abs=1e-3)
    said = page.run(f"{TRACE}.cursor = {signal.t_ns[at] // 1000}, {TRACE}.draw(), {TRACE}.out.textContent")
    assert re.search(r"gpu0\.a: [\d.]+ W .* › ", said)


def drag(page, x, to_x, y, **more):
    for kind, at in (("mousePressed", x), ("mouseMoved", to_x), ("mouseReleased", to_x)):
        page.call("Input.dispatchMouseEvent", type=kind, x=at, y=y, button="left", clickCount=1, buttons=1, **more)


def test_a_marked_stretch_tells_its_joules_and_how_far_they_can_be_off(page, runs):
    page.run(f"{TRACE}.home(), {TRACE}.canvas.scrollIntoView({{ block: 'center' }})")
    left, top = page.run(f"(b => [b.left, b.top])({TRACE}.canvas.getBoundingClientRect())")
    drag(page, left + 300, left + 700, top + 100)
    begin, end = page.run(f"{TRACE}.brush")
    assert end - begin > 10_000
    assert page.run(f"{TRACE}.spec.u95_percent") > 0
    signal = load_signal(read_run(runs[0]), "gpu0.a")
    (expected,) = signal.integral().between([round(begin * 1000)], [round(end * 1000)])
    said = page.run(f"{TRACE}.draw(), {TRACE}.out.textContent")
    joules, bound = map(float, re.search(r"gpu0\.a: ([\d.]+) ± ([\d.]+) J", said).groups())
    assert joules == pytest.approx(expected, abs=bound + 0.0005 * expected)
    assert bound < 0.05 * expected
    page.run(f"{TRACE}.brush = null, {TRACE}.home()")


def test_wheel_keys_and_drag_change_the_view(page):
    page.run(f"{TRACE}.home(), {TRACE}.canvas.scrollIntoView({{ block: 'center' }}), {TRACE}.canvas.focus()")
    box = page.run(f"(b => [b.left, b.top, b.width])({TRACE}.canvas.getBoundingClientRect())")
    x, y = box[0] + box[2] / 2, box[1] + 100

    def span():
        page.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        return page.run(f"[{TRACE}.begin, {TRACE}.end]")

    whole = span()
    page.call("Input.dispatchMouseEvent", type="mouseWheel", x=x, y=y, deltaX=0, deltaY=-300)
    near = span()
    assert near[1] - near[0] == pytest.approx((whole[1] - whole[0]) / np.e, rel=0.01)
    page.run(f"{TRACE}.canvas.dispatchEvent(new KeyboardEvent('keydown', {{ key: '+' }}))")
    nearer = span()
    assert nearer[1] - nearer[0] == pytest.approx((near[1] - near[0]) / 2)
    shift = 8
    drag(page, x, x - 100, y, modifiers=shift)
    moved = span()
    assert moved[0] > nearer[0]
    assert moved[1] - moved[0] == pytest.approx(nearer[1] - nearer[0])
    page.run(f"{TRACE}.canvas.dispatchEvent(new KeyboardEvent('keydown', {{ key: 'n' }}))")
    phase = span()
    assert phase[1] - phase[0] < nearer[1] - nearer[0]
    assert "›" in page.run(f"{TRACE}.out.textContent")
    page.run(f"{TRACE}.canvas.dispatchEvent(new KeyboardEvent('keydown', {{ key: 'Home' }}))")
    assert span() == whole


def test_something_is_drawn_and_it_fits_any_width(page):
    inked = f"""(c => {{ const d = c.getContext("2d").getImageData(0, 0, c.width, c.height).data;
        return d.filter((v, i) => i % 4 === 3 && v > 0).length / (d.length / 4); }})({TRACE}.canvas)"""
    page.run(f"{TRACE}.cursor = null, {TRACE}.home()")
    for width in (400, 1400):
        page.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        whole = page.run(f"{TRACE}.draw(), {TRACE}.canvas.toDataURL()")
        assert page.run("document.documentElement.scrollWidth") <= width
    assert 0.05 < page.run(inked) < 0.9
    page.run(f"{TRACE}.zoom(0.01)")
    assert page.run(f"{TRACE}.draw(), {TRACE}.canvas.toDataURL()") != whole


def test_a_gap_is_no_straight_line(page):
    trace = "joulesReport.traces[1]"
    assert page.run(f"{trace}.lines.map(l => l.spec.role)") == ["sum", "feed", "feed"]
    assert page.run(f"{trace}.spec.gaps.length") == 1
    said = page.run(f"{trace}.cursor = 550000, {trace}.draw(), {trace}.out.textContent")
    assert "b.1: no reading" in said
    assert "b.2: no reading" not in said


def test_dark_and_light_differ_and_the_button_changes_them(page):
    def paper():
        return page.run("getComputedStyle(document.body).backgroundColor")

    page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "light"}])
    light = paper()
    page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    dark = paper()
    assert light != dark
    page.run("document.getElementById('theme').click()")
    assert paper() == light
    assert page.said == []
