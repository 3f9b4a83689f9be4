"""Every number that five studies print and that is at hand, beside ours, and what ours is: its `Basis`.

Compared are only numbers that we were not told: counted, predicted, recomputed. `bench_studies.py` runs the studies and
writes what these functions find. Nothing here runs anything.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import pairwise
from math import sqrt
from pathlib import Path
from statistics import fmean

import numpy as np

from powerd_analytics.campaign_views.all_tables import campaign_tables
from powerd_analytics.campaign_views.campaign_figures import Campaign, CellRow
from powerd_analytics.campaign_views.group_tables import mixed_machines
from powerd_analytics.campaign_views.groups import CORE, MEMORY, knee, marginals, scalings
from powerd_analytics.campaigns.card_fit import SweepPoint, fit_card
from powerd_analytics.campaigns.design import Cell, Design
from powerd_analytics.campaigns.journal import History
from powerd_analytics.energy.metrics import edp_js, eds
from powerd_core.gpu_physics import CARDS, NETWORKS, RTX_6000, V100, Operation, operate

HOME = Path(__file__).parents[1]
DATA = HOME / "tests/data"
Row = Mapping[str, str]


class Basis(StrEnum):
    """What our number is."""

    COUNTED = "counted"
    """From a network's description alone."""
    PREDICTED = "predicted"
    """Simulated, and neither set nor fitted."""
    RECOMPUTED = "recomputed"
    """From other numbers that the paper prints, carried through a campaign."""
    FITTED = "fitted"
    """Constants were chosen so that it comes out: the difference is a residual."""
    REPLAYED = "replayed"
    """In the campaign's file, or one multiplication inside the row that is: it shows that the campaign carries it
    through."""
    SET = "set"
    """Of the protocol: the campaign's file has it."""
    CONTRADICTED = "contradicts itself"
    """The paper's own columns say otherwise, which was decided before ours were looked at."""
    NOT_COMPARED = "not compared"


COMPARED = (Basis.COUNTED, Basis.PREDICTED, Basis.RECOMPUTED)


@dataclass(frozen=True, slots=True)
class Number:
    """A published number and ours."""

    table: str
    what: str
    published: str
    basis: Basis
    ours: float | None = None
    tolerance: float = 0.0
    """Half a unit of the print's last digit, the same of what it was recomputed from, and U95 of ours."""
    unit: str = ""
    why: str = ""
    is_independent: bool = True
    """Whether it does not follow from others in its row."""

    @property
    def off(self) -> float | None:
        try:
            return None if self.ours is None else self.ours - float(self.published)
        except ValueError:
            return None

    @property
    def off_pct(self) -> float | None:
        return None if self.off is None or not float(self.published) else 100 * self.off / abs(float(self.published))

    @property
    def verdict(self) -> str:
        """Of those that are compared; else nothing."""
        if self.basis not in COMPARED or self.off is None:
            return ""
        beyond = abs(self.off) - self.tolerance
        return "reproduced" if beyond <= 1e-9 else f"off by {abs(self.off):.3g}"

    @property
    def is_reproduced(self) -> bool:
        return self.verdict == "reproduced"


@dataclass(frozen=True)
class Study:
    """A campaign that was run."""

    design: Design
    history: History
    seconds: float

    @property
    def about(self) -> str:
        return f"{self.history.done} runs of {len(self.design.cells())} cells"

    @cached_property
    def campaign(self) -> Campaign:
        return Campaign(self.design, self.history)

    @property
    def figures(self) -> list[CellRow]:
        return self.campaign.cells


def rows_of(name: str) -> list[dict[str, str]]:
    """A published table of tests/data."""
    with (DATA / name).open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def half_unit(printed: str) -> float:
    """Half a unit of the last digit of a number as it is printed."""
    return 0.5 * 10.0 ** -len(printed.partition(".")[2])


def not_compared(table: str, what: str, published: str, why: str) -> Number:
    return Number(table, what, published, Basis.NOT_COMPARED, why=why)


# -- Castro et al. -----------------------------------------------------------------------------------------------------

CASTRO = {"ResNet": "resnet-gait", "2D-CNN": "2d-cnn", "CaffeNet": "caffenet", "ResNetIm": "resnet-im"}
OF_ZOO = {"ResNet": "resnet", "2D-CNN": "2d-cnn", "CaffeNet": "caffenet", "ResNetIm": "resnet-im"}
SCENARIOS = {
    "n": "normal", "b": "backpack", "s": "shoes", "tn": "t_normal", "tb": "t_backpack", "ts": "t_shoes",
}  # fmt: skip
Place = tuple[str, int, str, str, int]
"""Card, GPUs, network, phase, batch."""


def castro(study: Study) -> Iterator[Number]:
    yield from _castro_machines()
    for r in rows_of("castro/table3_iterations.csv"):
        for column in ("iterations", "epochs"):
            why = "the file's samples are iterations times batch size, as printed"
            yield Number("castro 3", f"{r['model']}, batch {r['batch']}: {column}", r[column], Basis.SET, why=why)
    (table,) = campaign_tables(study.campaign, ("phases",))
    ours: dict[Place, Mapping[str, float]] = {
        (str(r["card"]), int(str(r["gpus"])), str(r["model"]), str(r["phase"]), int(str(r["batch_size"]))): {
            name: float(str(r[name])) for name in r if isinstance(r[name], float)
        }
        for r in table.records()
    }
    yield from _castro_phases(ours)
    yield from _castro_totals(study)
    yield from _castro_gains(ours)
    yield from _castro_accuracy(study)


def castro_operations() -> Iterator[Number]:
    """Of table 1, by the paper's equations."""
    from powerd_analytics.operations.torch_model import count_named

    for r in rows_of("castro/table1_operations.csv"):
        count = count_named(OF_ZOO[r["model"]], [], 1)
        ours = {
            "ops_m": count.total / 1e6, "read_mb": 4 * count.values_read / 2**20,
            "written_mb": 4 * count.values_written / 2**20, "ctc": count.ctc,
        }  # fmt: skip
        for column, value in ours.items():
            what = f"{r['model']}: {column}"
            yield Number("castro 1", what, r[column], Basis.COUNTED, value, half_unit(r[column]))


def _castro_machines() -> Iterator[Number]:
    for r in rows_of("paper/castro_table2_machines.csv"):
        for column, value in r.items():
            what = f"{r['device']}: {column}"
            if column == "memory_bandwidth_gb_per_s":
                clock, width = float(r["memory_clock_mhz"]), float(r["memory_width_bits"])
                off = half_unit(r["memory_clock_mhz"]) / clock * float(value)
                yield Number(
                    "castro 2", what, value, Basis.RECOMPUTED, clock * 2 * width / 8000, half_unit(value) + off,
                    "GB/s", "from the row's clock and width",
                )  # fmt: skip
            elif column == "peak_tflops":
                of_row = float(r["core_clock_mhz"]) * 2 * float(r["cores"]) / 1e6
                why = f"its own clock and cores say {of_row:.3g}"
                yield Number("castro 2", what, value, Basis.CONTRADICTED, None, 0.0, "TFLOPS", why)
            elif column not in ("device", "model"):
                yield not_compared("castro 2", what, value, "a property of a card that is not here")


def _printed() -> dict[Place, Row]:
    """The columns of tables 4, 5, 7 and 8 together, by place."""
    found: dict[Place, dict[str, str]] = {}
    for number in (4, 5, 7, 8):
        (path,) = (DATA / "castro").glob(f"table{number}_*.csv")
        for r in rows_of(f"castro/{path.name}"):
            place = r["device"], int(r["gpus"]), CASTRO[r["model"]], r["phase"], int(r["batch"])
            found.setdefault(place, {}).update({n: v for n, v in r.items() if v})
    return found


def _iterations() -> dict[tuple[str, int], float]:
    return {
        (CASTRO[r["model"]], int(r["batch"])): float(r["iterations"]) for r in rows_of("castro/table3_iterations.csv")
    }


def _castro_phases(ours: Mapping[Place, Mapping[str, float]]) -> Iterator[Number]:
    printed, iterations = _printed(), _iterations()
    for number in (4, 5, 7, 8):
        (path,) = (DATA / "castro").glob(f"table{number}_*.csv")
        for r in rows_of(f"castro/{path.name}"):
            place: Place = r["device"], int(r["gpus"]), CASTRO[r["model"]], r["phase"], int(r["batch"])
            row, mine, n = printed[place], ours.get(place, {}), iterations[place[2], place[4]]
            for column, value in list(r.items())[5:]:
                if not value:
                    continue
                what = f"{place[0]}, {place[1]} GPUs, {r['model']} {place[4]}, {place[3]}: {column}"
                own, off = _of_row(column, row, n)
                if abs(own - float(value)) > off + half_unit(value):
                    why = f"its own columns say {own:.4g}"
                    yield Number(f"castro {number}", what, value, Basis.CONTRADICTED, None, 0.0, "", why)
                    continue
                seconds, joules = mine["time_s"], mine["energy_j"]
                found = {
                    "s_per_batch": seconds, "samples_per_s": place[4] / seconds, "s_per_training": n * seconds,
                    "j_per_batch": joules, "watts": joules / seconds, "j_per_training": n * joules,
                }[column]  # fmt: skip
                is_fed = column.endswith("per_batch")
                yield Number(f"castro {number}", what, value, Basis.REPLAYED, found, is_independent=is_fed)


def _of_row(column: str, row: Row, iterations: float) -> tuple[float, float]:
    """What a column's value is by the others of its row, and how far the rounding of these may move it."""
    seconds, joules = float(row["s_per_batch"]), float(row.get("j_per_batch", "nan"))
    off_s = half_unit(row["s_per_batch"]) / seconds
    off_j = half_unit(row.get("j_per_batch", "0")) / joules
    if column == "samples_per_s":
        own, off = float(row["batch"]) / seconds, off_s
    elif column == "s_per_training":
        own, off = iterations * seconds, off_s
    elif column == "j_per_training":
        own, off = iterations * joules, off_j
    elif column == "watts":
        own, off = joules / seconds, off_s + off_j
    else:
        return float(row[column]), 0.0
    return own, own * off


def _castro_totals(study: Study) -> Iterator[Number]:
    printed, iterations = _printed(), _iterations()
    found = {}
    for w in mixed_machines(study.campaign):
        for kind in w.cards:
            at = kind, int(str(w.levels["gpus"])), str(w.levels["model"]), int(str(w.levels["batch_size"]))
            off_s, off_j = 0.0, 0.0
            for phase in ("forward", "backward"):
                n, row = iterations[at[2], at[3]], printed[at[0], at[1], at[2], phase, at[3]]
                off_s += n * half_unit(row["s_per_batch"])
                for card, count in w.cards.items():
                    row = printed[card, at[1], at[2], phase, at[3]]
                    off_j += count * n * half_unit(row["j_per_batch"])
            seconds, joules = (w.time_s.value, off_s + w.time_s.u95), (w.energy_j.value, off_j + w.energy_j.u95)
            share = seconds[1] / seconds[0] + joules[1] / joules[0]
            found[at] = (
                (seconds[0] / 1e3, seconds[1] / 1e3), (joules[0] / 1e6, joules[1] / 1e6),
                (w.edp_js / 1e9, w.edp_js / 1e9 * share),
            )  # fmt: skip
    for r in rows_of("castro/table6_pascal_totals.csv"):
        what = f"{r['device']}, {r['model']}, {r['gpus']} GPUs, batch {r['batch']}"
        own = found.get((r["device"], int(r["gpus"]), CASTRO[r["model"]], int(r["batch"])))
        for i, column in enumerate(("time_ks", "energy_mj", "edp")):
            if r[column] and own is not None:
                value, off = own[i]
                tolerance = half_unit(r[column]) + off
                name, is_own = f"{what}: {column}", column != "edp"
                yield Number("castro 6", name, r[column], Basis.RECOMPUTED, value, tolerance, is_independent=is_own)


def _castro_gains(ours: Mapping[Place, Mapping[str, float]]) -> Iterator[Number]:
    """Of table 10 the gains; its seconds and joules of a batch are those of tables 4, 5, 7 and 8 printed again."""
    printed = _printed()
    for r in rows_of("paper/castro_table10_pascal_gain.csv"):
        gpus, model, phase, batch = int(r["gpus"]), CASTRO[r["model"]], r["phase"], int(r["batch"])
        what = f"{r['model']}, {gpus} GPUs, {phase} {batch}"
        mine = ours["pascal", gpus, model, phase, batch]
        for unit, of, column, name in (
            ("s", "s_per_batch", "time_pct", "time_gain_pct"), ("j", "j_per_batch", "energy_pct", "energy_gain_pct"),
        ):  # fmt: skip
            texts = [printed[card, gpus, model, phase, batch][of] for card in ("pascal", "maxwell")]
            again = [r[f"{card}_{unit}_per_batch"] for card in ("pascal", "maxwell")]
            if list(map(float, texts)) != list(map(float, again)):
                why = f"printed {' and '.join(texts)} in another table"
                yield Number("castro 10", f"{what}: {unit} a batch", again[0], Basis.CONTRADICTED, None, 0.0, unit, why)
            ratio = float(texts[0]) / float(texts[1])
            off = 100 * ratio * sum(half_unit(t) / float(t) for t in texts)
            tolerance = half_unit(r[name]) + off + mine[f"u95_{column}"]
            yield Number("castro 10", f"{what}: {name}", r[name], Basis.RECOMPUTED, -mine[column], tolerance, "%")


def _castro_accuracy(study: Study) -> Iterator[Number]:
    by_cell = {(f.cell.levels["model"], f.cell.levels["batch_size"]): f.results for f in study.figures}
    (table,) = campaign_tables(study.campaign, ("accuracy",))
    means = {(row["model"], row["batch_size"]): row["average"] for row in table.records()}
    for r in rows_of("paper/castro_table12_accuracy_scenarios.csv"):
        place = CASTRO[r["model"]], int(r["batch"])
        for name, of in SCENARIOS.items():
            what = f"{r['model']} {r['batch']}: {of}"
            yield Number("castro 12", what, r[f"{name}_pct"], Basis.REPLAYED, by_cell[place][of].value, unit="%")
        why = "the weights 155 : 16 were fitted to the six averages"
        mean = float(str(means[place]))
        what = f"{r['model']} {r['batch']}: average"
        yield Number("castro 12", what, r["avg_pct"], Basis.FITTED, mean, unit="%", why=why)
    for r in rows_of("paper/castro_table13_top1_top5.csv"):
        for name in ("top1", "top5"):
            value = by_cell[CASTRO[r["model"]], int(r["batch"])][name].value
            what = f"{r['model']} {r['batch']}: {name}"
            yield Number("castro 13", what, r[f"{name}_pct"], Basis.REPLAYED, value, unit="%")


# -- Krzywaniak et al. -------------------------------------------------------------------------------------------------

MODELS = {
    "Alexnet": "alexnet", "VGG-19": "vgg19", "Inception3": "inception3", "Inception4": "inception4",
    "Resnet50": "resnet50", "Resnet152": "resnet152",
}  # fmt: skip
"""A network's name in Krzywaniak's Table 2, and ours."""
METRIC = {"min E": "e", "min EDP": "edp", "min EDS(k=2.0)": "eds:2", "min EDS(k=1.5)": "eds:1.5"}
CONSTANTS = 4 + 4 * len(MODELS)
"""Of the RTX 6000, and of each network: power, waiting and memory shares, and how long an iteration takes."""


def cells_of(study: Study) -> dict[tuple[str, int], CellRow]:
    """By model and cap."""
    return {(str(f.cell.levels["model"]), int(f.cell.levels["power_cap_w"])): f for f in study.figures}


def off_truth_pct(study: Study) -> list[float]:
    """Energy and time of each cell of Table 2, off the card's truth in per cent, as ratios to the default."""
    cells, found = cells_of(study), []
    for row in rows_of("krzywaniak/table2_rtx6000_power_caps.csv"):
        if row["target"] == "default":
            continue
        model, cap = MODELS[row["model"]], int(row["power_cap_w"])
        at, default = (operate(RTX_6000, NETWORKS[model], float(w)) for w in (cap, 260))
        ratios = cells[model, cap].ratios
        found.append(100 * (ratios["e"].value / (at.energy_j / default.energy_j) - 1))
        found.append(100 * (ratios["time"].value / (at.time_s / default.time_s) - 1))
    return found


def krzywaniak(study: Study) -> Iterator[Number]:
    limits = {"Quadro 6000": CARDS["rtx6000"], "V100": CARDS["v100-sxm2"]}
    for r in rows_of("paper/krzywaniak_table1_testbeds.csv"):
        names = "min_power_limit_w", "default_power_limit_w", "max_power_limit_w"
        of_card = dict(zip(names, limits[r["system"]].limits_w, strict=True))
        for column, value in r.items():
            what = f"{r['system']}: {column}"
            if column in of_card:
                yield Number("krzywaniak 1", what, value, Basis.SET, of_card[column], unit="W")
            elif column not in ("testbed", "system"):
                yield not_compared("krzywaniak 1", what, value, "a property of a machine that is not here")
    cells = cells_of(study)
    groups = {str(group.levels["model"]): group for group in study.campaign.groups}
    seen, default_row = set(), dict[str, str]()
    for r in rows_of("krzywaniak/table2_rtx6000_power_caps.csv"):
        model, cap, what = MODELS[r["model"]], int(r["power_cap_w"]), f"{r['model']}, {r['target']}"
        f = cells[model, cap]
        if r["target"] == "default":
            default_row = r
            yield Number("krzywaniak 2", f"{what}: cap", r["power_cap_w"], Basis.SET, 260, unit="W")
        else:
            best = study.campaign.best(groups[model], METRIC[r["target"]]).cell
            why = "constants were pulled towards the printed caps"
            watts = float(best.levels["power_cap_w"])
            yield Number("krzywaniak 2", f"{what}: cap", r["power_cap_w"], Basis.FITTED, watts, unit="W", why=why)
        if (model, cap) in seen:  # printed twice
            continue
        seen.add((model, cap))
        for column, ours, unit in (
            ("avg_power_w", f.power_w, "W"), ("time_s", f.time_s.value, "s"),
            ("energy_kj", f.energy_j.value / 1e3, "kJ"),
        ):  # fmt: skip
            own = float(r["avg_power_w"]) * float(r["time_s"]) / 1e3
            off = sum(half_unit(r[c]) / float(r[c]) for c in ("avg_power_w", "time_s")) * own
            name, is_own = f"{what}: {column}", column != "energy_kj"
            if not is_own and abs(own - float(r[column])) > off + half_unit(r[column]):
                why = f"its own watts and seconds say {own:.4g}"
                yield Number("krzywaniak 2", name, r[column], Basis.CONTRADICTED, None, 0.0, unit, why)
            else:
                yield Number("krzywaniak 2", name, r[column], Basis.FITTED, ours, 0.0, unit, is_independent=is_own)
        for column, key, of in (
            ("energy_vs_default_pct", "energy_kj", "e"), ("time_vs_default_pct", "time_s", "time"),
        ):  # fmt: skip
            if not r[column]:
                continue
            own, name = 100 * (float(r[key]) / float(default_row[key]) - 1), f"{what}: {column}"
            off = 100 * sum(half_unit(row[key]) / float(row[key]) for row in (r, default_row)) * (1 + own / 100)
            if abs(own - float(r[column])) > off + half_unit(r[column]):
                why = f"its own columns say {own:+.1f}"
                yield Number("krzywaniak 2", name, r[column], Basis.CONTRADICTED, None, 0.0, "%", why)
            else:
                ours = 100 * (f.ratios[of].value - 1)
                yield Number("krzywaniak 2", name, r[column], Basis.FITTED, ours, 0.0, "%", is_independent=False)


TABLE_2 = "krzywaniak/table2_rtx6000_power_caps.csv"
CAP_STEP_W = 5
SCORES: dict[str, Callable[[float, float, Operation], float]] = {
    "min E": lambda energy_j, _time_s, _whole: energy_j,
    "min EDP": lambda energy_j, time_s, _whole: edp_js(energy_j, time_s),
    "min EDS(k=2.0)": lambda energy_j, time_s, whole: eds(energy_j, time_s, whole.energy_j, whole.time_s),
    "min EDS(k=1.5)": lambda energy_j, time_s, whole: eds(energy_j, time_s, whole.energy_j, whole.time_s, 1.5),
}


def _points_of(rows: Iterable[Mapping[str, str]]) -> dict[str, dict[int, SweepPoint]]:
    """By network and cap."""
    points: dict[str, dict[int, SweepPoint]] = {}
    for r in rows:
        cap = int(r["power_cap_w"])
        points.setdefault(r["model"], {})[cap] = SweepPoint(cap, float(r["time_s"]), float(r["avg_power_w"]))
    return points


def _kept(points: Mapping[int, SweepPoint]) -> set[int]:
    caps = sorted(points)
    return {caps[0], caps[len(caps) // 2], caps[-1]}


def straight_lines_pct() -> tuple[float, float]:
    """What `left_out` is beside: how far, at worst, straight lines between the kept caps are off in time and in power,
    per cent."""
    off: tuple[list[float], list[float]] = [], []
    for own in _points_of(rows_of(TABLE_2)).values():
        kept = sorted(_kept(own))
        for cap in set(own) - set(kept):
            for to, name in zip(off, ("time_s", "power_w"), strict=True):
                line, true = np.interp(cap, kept, [getattr(own[k], name) for k in kept]), getattr(own[cap], name)
                to.append(100 * abs(line - true) / true)
    return max(off[0]), max(off[1])


def left_out() -> Iterator[Number]:
    """Times and watts of each network of Table 2 between three of its own caps, and its best caps, by a card that was
    fitted to the other five. Which caps are best was told to none."""
    rows = rows_of(TABLE_2)
    points = _points_of(rows)
    for model, own in points.items():
        others = {name: tuple(of.values()) for name, of in points.items() if name != model}
        card = fit_card(others, V100).card  # from another card's constants
        known = _kept(own)
        fit = fit_card({model: tuple(own[cap] for cap in sorted(known))}, card, keeps_card=True)
        for r in rows:
            cap = int(r["power_cap_w"])
            if r["model"] == model and cap not in known:
                known.add(cap)
                at = operate(fit.card, fit.networks[model], float(cap))
                for column, ours, unit in (("time_s", at.time_s, "s"), ("avg_power_w", at.power_w, "W")):
                    what, why = f"{model} at {cap} W: {column}", "card of the other five, three caps of its own"
                    tolerance = half_unit(r[column])
                    yield Number("left out", what, r[column], Basis.PREDICTED, ours, tolerance, unit, why)
        at_caps = {cap: operate(fit.card, fit.networks[model], float(cap)) for cap in range(100, 261, CAP_STEP_W)}
        whole = at_caps[260]
        for r in rows:
            if r["model"] == model and r["target"] in SCORES:
                score = SCORES[r["target"]]
                best = min(at_caps, key=lambda cap: score(at_caps[cap].energy_j, at_caps[cap].time_s, whole))
                yield Number(
                    "left out", f"{model}, {r['target']}: cap", r["power_cap_w"], Basis.PREDICTED, best, CAP_STEP_W / 2,
                    "W", "card of the other five, three caps of its own",
                )  # fmt: skip


# -- Koszczal et al. ---------------------------------------------------------------------------------------------------

OF_TABLE_1 = {"energy": "e", "EDP": "edp", "EDS(k=1.5)": "eds:1.5", "EDS(k=2.0)": "eds:2"}
GAIN = "energy gain minus performance loss"
OF_THE_GAIN = {"EDP", "EDS(k=2.0)"}
"""At one cap these follow from energy and time there, as does their sum, of which EDS(k=2) is half."""
AGAIN = {
    "energy_gain_8_gpus", "gain_minus_loss_8_gpus", "edp_gain_8_gpus", "eds_k1.5_gain_8_gpus", "eds_k2.0_gain_8_gpus",
    "gain_minus_loss_cap_8_gpus", "edp_cap_8_gpus", "eds_k1.5_cap_8_gpus", "eds_k2.0_cap_8_gpus", "best_caps_from",
    "best_caps_to",
}  # fmt: skip
"""Numbers of the text that table 1 has."""


def koszczal(study: Study) -> Iterator[Number]:
    (scaling,) = scalings(study.campaign)
    rows = {row.gpus: row for row in scaling.rows}
    ratios = {f.cell.id: f.ratios for f in study.figures}

    def gain(cell: Cell) -> float:
        return 2 - ratios[cell.id]["e"].value - ratios[cell.id]["time"].value

    best: dict[str, tuple[Cell, float, float]] = {}
    for name, metric in OF_TABLE_1.items():
        cell = study.campaign.best(rows[8].group, metric).cell
        best[name] = cell, 100 * (1 - ratios[cell.id][metric].value), 100 * ratios[cell.id][metric].u95
    most = max(rows[8].group.cells, key=gain)
    best[GAIN] = most, 100 * gain(most), 100 * (ratios[most.id]["e"].u95 + ratios[most.id]["time"].u95)
    for r in rows_of("paper/koszczal_table1_best_caps.csv"):
        cell, saved, u95 = best[r["metric"]]
        watts, printed, what = float(cell.levels["power_cap_w"]), r["gain_vs_default_cap_pct"], f"8 GPUs, {r['metric']}"
        why = "constants of the machine were chosen for it"
        yield Number("koszczal 1", f"{what}: cap", r["power_cap_w"], Basis.FITTED, watts, unit="W", why=why)
        tolerance = half_unit(printed) + u95
        at, is_own = f"ours at {watts:g} W, the printed one at {r['power_cap_w']} W", r["metric"] not in OF_THE_GAIN
        yield Number("koszczal 1", f"{what}: gain", printed, Basis.PREDICTED, saved, tolerance, "%", at, is_own)
    saved_at = {n: (100 * (1 - row.energy.value), 100 * row.energy.u95) for n, row in rows.items()}
    yield from _koszczal_text(study, saved_at)


def _koszczal_text(study: Study, saved: Mapping[int, tuple[float, float]]) -> Iterator[Number]:
    at = {(int(f.cell.levels["gpus"]), int(f.cell.levels["power_cap_w"])): f for f in study.figures}
    caps, design = [cap for _, cap in at], study.design
    own: dict[str, tuple[Basis, float, float]] = {
        f"energy_gain_{n}_gpu{'s' if n > 1 else ''}": (Basis.PREDICTED, *figure) for n, figure in saved.items()
    }
    for (n, cap), f in at.items():
        times, single = f.time_s, at[1, cap].time_s
        share = times.u95 / times.value + single.u95 / single.value
        speed_up = single.value / times.value
        basis = Basis.SET if cap == 260 else Basis.FITTED if (n, cap) == (8, 170) else Basis.PREDICTED
        own[f"time_{n}_gpu{'s' if n > 1 else ''}_{cap}_w"] = basis, times.value, times.u95
        own[f"speed_up_{n}_gpus_{cap}_w"] = basis, speed_up, speed_up * share
    protocol = {
        "default_cap": design.reference["power_cap_w"], "settable_cap_min": min(caps), "settable_cap_max": max(caps),
        "cap_step": sorted(set(caps))[1] - min(caps), "runs_per_cell": design.repeats.min,
        "gpus_in_node": max(n for n, _ in at),
    }  # fmt: skip
    own |= {name: (Basis.SET, float(str(value)), 0.0) for name, value in protocol.items() if value is not None}
    for r in rows_of("paper/koszczal_text_numbers.csv"):
        name, value = r["quantity"], r["value"]
        what, table = f"{name.replace('_', ' ')} ({r['unit'] or '1'})", "koszczal text"
        if name in AGAIN:
            continue
        if not value:
            yield not_compared(table, what, "", "its label in figure 7 is lost")
        elif name in own:
            basis, ours, u95 = own[name]
            yield Number(table, what, value, basis, ours, half_unit(value) + u95, r["unit"])
        elif name.startswith("cited_"):
            yield not_compared(table, what, value, "other authors' number")
        elif name.startswith("eds_k1.5_similar"):
            yield not_compared(table, what, value, "what counts as similar is not said")
        else:
            yield not_compared(table, what, value, "of the machine, the data or the accuracy: nothing is trained here")


# -- Tang et al. -------------------------------------------------------------------------------------------------------

OF_CARD = {"Tesla P100": "p100", "Tesla V100": "v100", "GTX 2080Ti": "rtx2080ti"}
OF_TABLE_4 = {"P100": "p100", "V100": "v100", "2080Ti": "rtx2080ti"}
IN_ABSTRACT = {"p100": ("23.1", "26.4"), "v100": ("14.5", "22.3"), "rtx2080ti": ("8.7", "19.6")}
"""Saved in training and in inference, per cent, as the abstract has them: means of table III, which is not at hand."""
SPEED_UPS = {"training": ("17.4", "38.2"), "inference": ("22.5", "33.0")}
"""The least and the greatest gain of speed of a network, per cent, on the 2080 Ti from 1350 to 1950 MHz."""
JUMP_MHZ = "1000"
"""The text: power rises by a jump above about that clock."""
EXAMPLE = {"performance": "83", "power": "66"}
"""AlexNet, batch 1024, V100, 510 to 945 MHz: by so many per cent, by two figures of other cards and tasks."""
NETWORK = {"AlexNet": "alexnet", "VggNet-16": "vgg16", "GoogleNet": "googlenet", "ResNet-50": "resnet50"}
TRAINING = ("gemm", "fft", "winograd")


def tang(studies: Mapping[str, Study], parameters: Mapping[str, float]) -> Iterator[Number]:
    """``parameters``: of our networks, in millions."""
    yield from _tang_protocol(studies)
    for r in rows_of("paper/tang_table2_networks.csv"):
        if (millions := parameters.get(NETWORK[r["network"]])) is not None:
            text = r["parameters_approx_m"]
            tolerance = half_unit(text) * 10 ** (len(text) - len(text.rstrip("0")))
            what = f"{r['network']}: parameters (millions)"
            yield Number("tang II", what, text, Basis.COUNTED, millions, tolerance, "M", "printed with 'about'")
    why = "power of the kernels was chosen for it"
    for r in rows_of("paper/tang_table4_algorithms.csv"):
        saving = _saving(studies[OF_TABLE_4[r["gpu"]]], algorithm=r["algorithm"].lower())
        what = f"{r['gpu']}, {r['algorithm']}: saved"
        yield Number("tang IV", what, r["saving_pct"], Basis.FITTED, saving, unit="%", why=why)
    for card, (training, inference) in IN_ABSTRACT.items():
        mean = fmean(_saving(studies[card], algorithm=a) for a in TRAINING)
        what = f"{card}: saved in training"
        yield Number("tang abstract", what, training, Basis.FITTED, mean, unit="%", why=why, is_independent=False)
        saving = _saving(studies[card], algorithm="tensorrt")
        yield Number("tang abstract", f"{card}: saved in inference", inference, Basis.FITTED, saving, unit="%", why=why)
    yield from _tang_text(studies)


def _tang_protocol(studies: Mapping[str, Study]) -> Iterator[Number]:
    for r in rows_of("paper/tang_table1_gpus.csv"):
        design = studies[OF_CARD[r["gpu"]]].design
        for column, knob in (("core_clocks_mhz", CORE), ("memory_clocks_mhz", MEMORY)):
            ours = [int(level) for level in design.factors.get(knob, ())] or [CARDS[OF_CARD[r["gpu"]]].memory_mhz[-1]]
            for clock in r[column].split(";"):
                near = min(ours, key=lambda mine, clock=clock: abs(mine - int(clock)))  # type: ignore[misc]
                yield Number("tang I", f"{r['gpu']}: {column}", clock, Basis.SET, near, unit="MHz")
        for column, knob in (("default_core_clock_mhz", CORE), ("default_memory_clock_mhz", MEMORY)):
            if r[column]:
                ours_mhz = float(design.reference[knob])
                yield Number("tang I", f"{r['gpu']}: {column}", r[column], Basis.SET, ours_mhz, unit="MHz")
        for column in ("sms", "cores_per_sm", "memory_gb"):
            why = "a property of a card that is not here; most are wrong there"
            yield not_compared("tang I", f"{r['gpu']}: {column}", r[column], why)
    for r in rows_of("paper/tang_table2_networks.csv"):
        cells = studies["v100"].design.cells()
        trained = {int(c.levels["batch_size"]) for c in cells if c.levels["model"] == NETWORK[r["network"]]}
        for size in r["batch_sizes"].split(";"):
            near = min(trained, key=lambda mine, size=size: abs(mine - int(size)))  # type: ignore[misc]
            yield Number("tang II", f"{r['network']}: batch size", size, Basis.SET, near)
        yield not_compared("tang II", f"{r['network']}: layers", r["layers"], "what counts as a layer is not said")


def _tang_text(studies: Mapping[str, Study]) -> Iterator[Number]:
    of = studies["rtx2080ti"]
    for task, printed in SPEED_UPS.items():
        algorithms = TRAINING if task == "training" else ("tensorrt",)
        gains = []
        for model in NETWORK.values():
            groups = [
                g for g in of.campaign.groups if g.levels["model"] == model and g.levels["algorithm"] in algorithms
            ]
            fastest = marginals(of.design, groups, CORE)[-1].time
            gains.append((100 * (1 / fastest.value - 1), 100 * fastest.u95 / fastest.value**2))
        for name, value, (ours, u95) in zip(("least", "greatest"), printed, (min(gains), max(gains)), strict=True):
            what = f"rtx2080ti, {task}: {name} gain of speed"
            yield Number("tang text", what, value, Basis.PREDICTED, ours, half_unit(value) + u95, "%")
    for card in ("p100", "v100"):
        study = studies[card]
        found = knee(marginals(study.design, study.campaign.groups, CORE))
        clocks = sorted(float(level) for level in study.design.factors[CORE])
        step = min(b - a for a, b in pairwise(clocks))
        if found is not None:
            why = "'above'; within half a step of its clocks"
            tolerance = step / 2 + found.u95
            yield Number(
                "tang text", f"{card}: power's jump", JUMP_MHZ, Basis.PREDICTED, found.value, tolerance, "MHz", why
            )
    yield from _tang_example(studies["v100"])


def _tang_example(study: Study) -> Iterator[Number]:
    own = {"model": "alexnet", "batch_size": 1024, "algorithm": "gemm"}
    at = {f.cell.levels[CORE]: f for f in study.figures if own.items() <= f.cell.levels.items()}
    low, high = at[510], at[945]
    faster = low.time_s.value / high.time_s.value
    ratios = {"performance": faster, "power": high.power_w / low.power_w}
    off_t, off_e = (
        sqrt(sum((figure.u95 / figure.value) ** 2 for figure in pair))
        for pair in ((low.time_s, high.time_s), (low.energy_j, high.energy_j))
    )
    for name, value in EXAMPLE.items():
        u95 = 100 * ratios[name] * (off_t if name == "performance" else off_t + off_e)
        what, ours = f"AlexNet 1024, 510 to 945 MHz: {name}", 100 * (ratios[name] - 1)
        why, tolerance = "the paper takes the two from figures of different tasks", half_unit(value) + u95
        yield Number("tang text", what, value, Basis.PREDICTED, ours, tolerance, "%", why)


def _saving(study: Study, algorithm: str) -> float:
    """At the best core clock, per cent: the geometric mean over models, batch sizes and memory clocks."""
    groups = [g for g in study.campaign.groups if g.levels["algorithm"] == algorithm]
    return 100 * (1 - min(m.energy.value for m in marginals(study.design, groups, CORE)))


# -- Zeus --------------------------------------------------------------------------------------------------------------


def zeus(study: Study) -> Iterator[Number]:
    """The page draws its savings and prints none."""
    own = {"networks_in_traces": len({cell.levels["model"] for cell in study.design.cells()})}
    for r in rows_of("paper/zeus_text_numbers.csv"):
        what = f"{r['quantity'].replace('_', ' ')} ({r['unit'] or '1'})"
        if r["quantity"] in own:
            yield Number("zeus text", what, r["value"], Basis.SET, own[r["quantity"]])
        elif r["quantity"] in ("eta_min", "eta_max", "policy_classes"):
            yield not_compared("zeus text", what, r["value"], "of the method, and no result")
        else:
            yield not_compared("zeus text", what, r["value"], "other authors' number, or of traces of four GPUs")


# -- all of them -------------------------------------------------------------------------------------------------------

NOWHERE = (
    "Castro, tables 9 and 11, all figures, the text's percentages",
    "Krzywaniak, table 3 (the V100), figures 1 to 3, the text's ranges of caps",
    "Koszczal, figures 2 to 6, the labels of figure 7 that are lost, all standard deviations",
    "Tang, table III, figures 1 to 15, the clock of each optimum, the text's means by algorithm",
    "Zeus, every picture of the page",
)
"""What the papers print and is not at hand as numbers."""
COMMANDS = {
    "castro 1": "joules operations caffenet",
    "castro 4, 5, 7, 8, 10": "joules campaign table castro.toml --table phases",
    "castro 6": "joules campaign table castro.toml --table machines",
    "castro 12, 13": "joules campaign table castro.toml --table accuracy",
    "krzywaniak 2": "joules campaign table krzywaniak.toml --table merits",
    "tang II, parameters": "joules operations --input 3x224x224 examples/studies/networks.py:vgg16",
    "tang IV": "joules campaign table tang-v100.toml --table optimum",
    "koszczal 1": "joules campaign table koszczal.toml --table merits",
}
"""The command that prints a table of the papers, of a campaign that has run into the folder of its name."""


def counted(numbers: Iterable[Number]) -> dict[str, dict[Basis, int]]:
    """By table and basis."""
    found: dict[str, dict[Basis, int]] = {}
    for n in numbers:
        of = found.setdefault(n.table, {})
        of[n.basis] = of.get(n.basis, 0) + 1
    return found


def residuals_pct(numbers: Iterable[Number]) -> tuple[int, float, float]:
    """Of fitted values that do not follow from others: how many, their rms and the worst in per cent."""
    off = [abs(n.off_pct) for n in numbers if n.is_independent and n.off_pct is not None]
    return len(off), sqrt(fmean(o * o for o in off)), max(off)


def write_csv(path: Path, numbers: Sequence[Number]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(
            ("table", "number", "published", "basis", "ours", "unit", "tolerance", "verdict", "independent", "why")
        )
        for n in numbers:
            ours = "" if n.ours is None else f"{n.ours:.6g}"
            tolerance = f"{n.tolerance:.3g}" if n.verdict else ""
            is_own = "yes" if n.is_independent else "no"
            out.writerow((n.table, n.what, n.published, n.basis, ours, n.unit, tolerance, n.verdict, is_own, n.why))
