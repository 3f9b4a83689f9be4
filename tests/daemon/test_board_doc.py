"""docs/howto/board.md says what the program computes."""

from __future__ import annotations

import re
import shlex
import textwrap
from pathlib import Path

import pytest

from powerd_daemon.cli import make_parser
from powerd_daemon.plan import Bus, BusPlan, line_loads_w, plan_bus, plan_file, plan_text
from powerd_daemon.sources.ina.chips import Settings
from powerd_daemon.sources.ina.sensor import Sensor, make_bank
from powerd_daemon.sources.ina.source import RailsOptions

ROOT = Path(__file__).parents[2]
DOC = (ROOT / "docs/howto/board.md").read_text()
PROSE = " ".join(DOC.split()).replace(" %", "%")


def marked(name: str) -> str:
    return textwrap.dedent(DOC.partition(f"<!-- {name}: begin -->\n")[2].partition(f"<!-- {name}: end -->")[0]).strip()


@pytest.fixture
def card() -> tuple[BusPlan, dict[str, float]]:
    """The worked example, with the loads of its own command line."""
    command = make_parser().parse_args(shlex.split(marked("plan").splitlines()[0])[1:])
    (plan,) = plan_file(
        ROOT / command.file, combined=None if command.adapter is None else command.adapter == "combined"
    )
    return plan, dict(command.load)


def test_the_plan_is_the_programs(card: tuple[BusPlan, dict[str, float]]) -> None:
    plan, loads_w = card
    shown = [line.rstrip() for line in marked("plan").splitlines()[2:]]
    assert shown == [line.rstrip() for line in plan_text(plan, loads_w).strip().splitlines()]


def test_the_figures_in_the_text_are_the_plans(card: tuple[BusPlan, dict[str, float]]) -> None:
    plan, loads_w = card
    combined, single = plan.modes
    loads = line_loads_w(plan.budgets, loads_w)
    total_w = sum(loads.values())
    u_w = sum(b.u_w(loads[b.line]) ** 2 for b in plan.budgets) ** 0.5
    wire = next(b for b in plan.budgets if b.line == "gpu0.ext_12v_1")
    for figure in (
        f"one transaction leave {combined.limit_hz:.1f} Hz on the",
        f"sixteen transactions {single.limit_hz:.1f} Hz",
        f"{wire.settings.coverage:.1%} of the current",
        f"cycle lasts up to {wire.settings.longest_cycle_ns / 1000:.0f} us",
        f"they combine to {wire.accuracy.u_gain:.2%}",
        f"On {loads[wire.line]:g} W",
        f"this is {wire.u_w(loads[wire.line]):.3f} W; the zero ({wire.offset_a * 1000:g} mA, ",
        f"{wire.accuracy.u_offset_w * 1000:.0f} mW standard) and the step ({wire.accuracy.step_w * 1000:.1f} mW)",
        f"{total_w:.1f} W +- {2 * u_w:.3f} W (U, k = 2), or {2 * u_w / total_w:.2%}",
    ):
        assert figure in PROSE, figure


def test_the_table_of_shunts() -> None:
    rows = re.findall(r"^\| (\d+) mOhm \|(.*)\|$", DOC, re.MULTILINE)
    assert [int(r) for r, _ in rows] == [50, 20, 10, 5]
    for milliohm, shown in rows:
        ohm = int(milliohm) / 1000
        sensor = Sensor("a", 0x40, shunt_ohm=ohm)
        (b,) = plan_bus(Bus("s", "f", 1, RailsOptions(), make_bank([sensor]))).budgets
        assert [cell.strip() for cell in shown.split("|")] == [
            f"{b.clip_a:.1f} A",
            f"{5.5 * ohm * 1000:.0f} mV",
            f"{5.5**2 * ohm:.2f} W",
            f"{b.offset_a * 12 * 1000:.0f} mW",
            f"{b.step_a * 12 * 1000:.1f} mW",
        ]
    assert f"a 50 mOhm shunt turns {Settings().clip_a(0.05) ** 2 * 0.05:.2f} W into heat" in DOC
