"""Every number that five studies print, beside ours: met, missed by how much, or impossible, and why.

`bench_studies.py` runs the studies and writes what these functions find. Nothing here runs anything.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from powerd_analytics.campaign_views.all_tables import campaign_tables
from powerd_analytics.campaign_views.campaign_figures import Campaign, CellRow
from powerd_analytics.campaign_views.group_tables import wholes
from powerd_analytics.campaign_views.groups import CORE, MEMORY, marginals, scalings
from powerd_analytics.campaigns.design import Cell, Design
from powerd_analytics.campaigns.journal import History
from powerd_core.gpu_physics import CARDS, NETWORKS, RTX_6000, operate

HOME = Path(__file__).parents[1]
DATA = HOME / "tests/data"
Row = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Number:
    """A published number and ours."""

    table: str
    what: str
    published: str
    ours: float | None = None
    within: float = 0.0
    """It is met where the difference is at most this."""
    unit: str = ""
    why: str = ""
    """Why it is impossible, or a remark."""
    is_possible: bool = True

    @property
    def off(self) -> float | None:
        try:
            return None if self.ours is None else self.ours - float(self.published)
        except ValueError:
            return None

    @property
    def verdict(self) -> str:
        if not self.is_possible:
            return "impossible"
        if self.off is None:
            return "met"
        missed = abs(self.off) - self.within
        return "met" if missed <= 1e-9 else f"missed by {missed:.3g}"


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


def impossible(table: str, what: str, published: str, why: str, ours: float | None = None, unit: str = "") -> Number:
    return Number(table, what, published, ours, 0.0, unit, why, is_possible=False)


def stated(table: str, what: str, published: str, is_so: bool, why: str) -> Number:
    """A number of the protocol: met where the campaign has it."""
    return Number(table, what, published, None if is_so else float("inf"), 0.0, "", why)


# -- Castro et al. -----------------------------------------------------------------------------------------------------

CASTRO = {"ResNet": "resnet-gait", "2D-CNN": "2d-cnn", "CaffeNet": "caffenet", "ResNetIm": "resnet-im"}
OF_ZOO = {"ResNet": "resnet", "2D-CNN": "2d-cnn", "CaffeNet": "caffenet", "ResNetIm": "resnet-im"}
SCENARIOS = {
    "n": "normal", "b": "backpack", "s": "shoes", "tn": "t_normal", "tb": "t_backpack", "ts": "t_shoes",
}  # fmt: skip


def castro(study: Study) -> Iterator[Number]:
    yield from _castro_machines()
    samples = {str(m["model"]): m["samples"] for m in study.design.simulation.rows if "samples" in m}
    for r in rows_of("castro/table3_iterations.csv"):
        name = f"{r['model']}, batch {r['batch']}"
        ours = samples[CASTRO[r["model"]]] / float(r["batch"])
        yield Number("castro 3", f"{name}: iterations", r["iterations"], ours, 0.5)
        yield stated("castro 3", f"{name}: epochs", r["epochs"], True, "the samples of the runs are those of so many")
    yield from _castro_phases(study)
    yield from _castro_totals(study)
    yield from _castro_gains(study)
    yield from _castro_accuracy(study)


def castro_operations() -> Iterator[Number]:
    """Of table 1, by the paper's equations."""
    from powerd_analytics.operations.torch_model import count_named

    for r in rows_of("castro/table1_operations.csv"):
        count = count_named(OF_ZOO[r["model"]], [], 1)
        ours = {
            "ops_m": count.total / 1e6, "read_mb": 4 * count.values_read / 2**20,
            "written_mb": 4 * count.values_written / 2**20,
        }  # fmt: skip
        ours["ctc"] = count.ctc
        for column, value in ours.items():
            what = f"{r['model']}: {column}"
            if r["model"] == "ResNetIm" and column != "written_mb":
                yield impossible("castro 1", what, r[column], "does not follow from its text, as ResNet-34", value)
            else:
                within = max(0.02 * float(r[column]), 0.05)
                yield Number("castro 1", what, r[column], value, within, why="by the paper's own equations")


def _castro_machines() -> Iterator[Number]:
    for r in rows_of("paper/castro_table2_machines.csv"):
        for column, value in r.items():
            if column in ("device", "model"):
                continue
            what = f"{r['device']}: {column}"
            if column == "memory_bandwidth_gb_per_s":
                ours = float(r["memory_clock_mhz"]) * 2 * float(r["memory_width_bits"]) / 8000
                yield Number("castro 2", what, value, ours, 0.05 * 10, why="from the row's own clock and width")
            elif column == "peak_tflops":
                ours = float(r["core_clock_mhz"]) * 2 * float(r["cores"]) / 1e6
                yield impossible("castro 2", what, value, "does not follow from the row's clock and cores", ours)
            else:
                yield impossible("castro 2", what, value, "a property of the card, which nobody has here")


def _castro_phases(study: Study) -> Iterator[Number]:
    (table,) = campaign_tables(study.campaign, ("phases",))
    ours = {(r["card"], r["gpus"], r["model"], r["phase"], r["batch_size"]): r for r in table.records()}
    iterations = {(r["model"], r["batch"]): float(r["iterations"]) for r in rows_of("castro/table3_iterations.csv")}
    for number in (4, 5, 7, 8):
        (path,) = (DATA / "castro").glob(f"table{number}_*.csv")
        for r in rows_of(f"castro/{path.name}"):
            what = f"{r['device']}, {r['gpus']} GPUs, {r['model']} {r['batch']}, {r['phase']}"
            key = (r["device"], int(r["gpus"]), CASTRO[r["model"]], r["phase"], int(r["batch"]))
            for column, value in list(r.items())[5:]:
                if not value:
                    continue
                mine = ours[key]
                n = iterations[r["model"], r["batch"]]
                seconds, joules = float(str(mine["time_s"])), float(str(mine["energy_j"]))
                found = {
                    "s_per_batch": seconds, "samples_per_s": float(r["batch"]) / seconds, "s_per_training": n * seconds,
                    "j_per_batch": joules, "watts": joules / seconds, "j_per_training": n * joules,
                }[column]  # fmt: skip
                name = f"{what}: {column}"
                if column == "watts":
                    why = "the paper's own joules and seconds of a batch say otherwise"
                    is_off = abs(found / float(value) - 1) > 0.05
                    if is_off:
                        yield impossible(f"castro {number}", name, value, why, found, "W")
                        continue
                    yield Number(f"castro {number}", name, value, found, 0.05 * float(value), "W")
                else:
                    yield Number(f"castro {number}", name, value, found, 0.012 * float(value))


def _castro_totals(study: Study) -> Iterator[Number]:
    found: dict[tuple[str, str, str, str], tuple[float, float, float]] = {}
    for w in wholes(study.campaign):
        kinds = ["pascal", "maxwell"] if len(w.cards) > 1 else list(w.cards)
        for kind in kinds:
            levels = (str(w.levels["model"]), str(w.levels["gpus"]), str(w.levels["batch_size"]))
            found[kind, *levels] = w.time_s.value / 1e3, w.energy_j.value / 1e6, w.edp_js / 1e9
    for r in rows_of("castro/table6_pascal_totals.csv"):
        what = f"{r['device']}, {r['model']}, {r['gpus']} GPUs, batch {r['batch']}"
        own = found.get((r["device"], CASTRO[r["model"]], r["gpus"], r["batch"]))
        for i, column in enumerate(("time_ks", "energy_mj", "edp")):
            if r[column] and own is not None:
                half = 0.5 * 10 ** -len(r[column].partition(".")[2])
                yield Number("castro 6", f"{what}: {column}", r[column], own[i], 0.015 * float(r[column]) + half)


def _castro_gains(study: Study) -> Iterator[Number]:
    (table,) = campaign_tables(study.campaign, ("phases",))
    ours = {(r["card"], r["gpus"], r["model"], r["phase"], r["batch_size"]): r for r in table.records()}
    for r in rows_of("paper/castro_table10_pascal_gain.csv"):
        what = f"{r['model']}, {r['gpus']} GPUs, {r['phase']} {r['batch']}"
        rest = int(r["gpus"]), CASTRO[r["model"]], r["phase"], int(r["batch"])
        for card in ("maxwell", "pascal"):
            for unit, name in (("s", "time_s"), ("j", "energy_j")):
                value = r[f"{card}_{unit}_per_batch"]
                mine = float(str(ours[card, *rest][name]))
                yield Number("castro 10", f"{what}: {card} {unit} a batch", value, mine, 0.012 * float(value))
        for name, column in (("time_pct", "time_gain_pct"), ("energy_pct", "energy_gain_pct")):
            yield Number(
                "castro 10", f"{what}: {column}", r[column], -float(str(ours["pascal", *rest][name])), 1.0, "%"
            )


def _castro_accuracy(study: Study) -> Iterator[Number]:
    by_cell = {(f.cell.levels["model"], f.cell.levels["batch_size"]): f.results for f in study.figures}
    (table,) = campaign_tables(study.campaign, ("accuracy",))
    means = {(row["model"], row["batch_size"]): row["average"] for row in table.records()}
    for r in rows_of("paper/castro_table12_accuracy_scenarios.csv"):
        accuracy = by_cell[CASTRO[r["model"]], int(r["batch"])]
        mean = float(str(means[CASTRO[r["model"]], int(r["batch"])]))
        for name, of in SCENARIOS.items():
            value = r[f"{name}_pct"]
            yield Number(
                "castro 12", f"{r['model']} {r['batch']}: {of}", value, accuracy[of].value, 0.05, "%", "replayed"
            )
        yield Number("castro 12", f"{r['model']} {r['batch']}: average", r["avg_pct"], mean, 0.06, "%",
                     "weights 155 : 16, which the paper does not print")  # fmt: skip
    for r in rows_of("paper/castro_table13_top1_top5.csv"):
        accuracy = by_cell[CASTRO[r["model"]], int(r["batch"])]
        for name in ("top1", "top5"):
            value = r[f"{name}_pct"]
            yield Number("castro 13", f"{r['model']} {r['batch']}: {name}", value, accuracy[name].value, 0.05, "%",
                         "replayed")  # fmt: skip


# -- Krzywaniak et al. -------------------------------------------------------------------------------------------------

MODELS = {
    "Alexnet": "alexnet", "VGG-19": "vgg19", "Inception3": "inception3", "Inception4": "inception4",
    "Resnet50": "resnet50", "Resnet152": "resnet152",
}  # fmt: skip
"""A network's name in Krzywaniak's Table 2, and ours."""
METRIC = {"min E": "e", "min EDP": "edp", "min EDS(k=2.0)": "eds:2", "min EDS(k=1.5)": "eds:1.5"}


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
        least, default, greatest = limits[r["system"]].limits_w
        of_card = {"min_power_limit_w": least, "default_power_limit_w": default, "max_power_limit_w": greatest}
        for column, value in r.items():
            if column in of_card:
                yield Number(
                    "krzywaniak 1", f"{r['system']}: {column}", value, of_card[column], 0.0, "W", "joules info"
                )
            elif column not in ("testbed", "system"):
                why = "a property of the machine, which nobody has here; `joules info` prints it of yours"
                yield impossible("krzywaniak 1", f"{r['system']}: {column}", value, why)
    cells = cells_of(study)
    groups = {str(group.levels["model"]): group for group in study.campaign.groups}
    default_row: Row = {}
    for r in rows_of("krzywaniak/table2_rtx6000_power_caps.csv"):
        model, cap = MODELS[r["model"]], int(r["power_cap_w"])
        f, what, is_default = cells[model, cap], f"{r['model']}, {r['target']}", r["target"] == "default"
        default_row = r if is_default else default_row
        if is_default:
            yield stated("krzywaniak 2", f"{what}: cap", r["power_cap_w"], cap == 260, "the reference")
        else:
            best = study.campaign.best(groups[model], METRIC[r["target"]])
            caps = {int(cell.levels["power_cap_w"]) for cell in (*best.as_good, best.cell)}
            near = min(caps, key=lambda mine: abs(mine - cap))
            remark = f"best {best.cell.levels['power_cap_w']} W; as good {min(caps)} to {max(caps)} W"
            yield Number("krzywaniak 2", f"{what}: cap", r["power_cap_w"], near, 10, "W", remark)
        for column, ours in (
            ("avg_power_w", f.power_w), ("energy_kj", f.energy_j.value / 1e3), ("time_s", f.time_s.value),
        ):  # fmt: skip
            yield Number("krzywaniak 2", f"{what}: {column}", r[column], ours, 0.015 * float(r[column]))
        for column, key, of in (
            ("energy_vs_default_pct", "energy_kj", "e"), ("time_vs_default_pct", "time_s", "time"),
        ):  # fmt: skip
            if is_default or not r[column]:
                continue
            follows = 100 * (float(r[key]) / float(default_row[key]) - 1)
            ours, name = 100 * (f.ratios[of].value - 1), f"{what}: {column}"
            if abs(follows - float(r[column])) > 0.6:
                yield impossible("krzywaniak 2", name, r[column], f"its own columns say {follows:+.1f}", ours, "%")
            else:
                yield Number("krzywaniak 2", name, r[column], ours, 1.0, "%")


# -- Koszczal et al. ---------------------------------------------------------------------------------------------------

OF_TABLE_1 = {"energy": "e", "EDP": "edp", "EDS(k=1.5)": "eds:1.5", "EDS(k=2.0)": "eds:2"}
GAIN = "energy gain minus performance loss"
PROTOCOL = (
    "default_cap", "settable_cap_min", "settable_cap_max", "cap_step", "runs_per_cell", "gpus_in_node", "epochs",
    "training_images",
)  # fmt: skip


def koszczal(study: Study) -> Iterator[Number]:
    (scaling,) = scalings(study.campaign)
    rows = {row.gpus: row for row in scaling.rows}
    ratios = {f.cell.id: f.ratios for f in study.figures}

    def gain(cell: Cell) -> float:
        return 2 - ratios[cell.id]["e"].value - ratios[cell.id]["time"].value

    best: dict[str, tuple[Cell, float]] = {}
    for name, metric in OF_TABLE_1.items():
        cell = study.campaign.best(rows[8].group, metric).cell
        best[name] = cell, 100 * (1 - ratios[cell.id][metric].value)
    most = max(rows[8].group.cells, key=gain)
    best[GAIN] = most, 100 * gain(most)
    fitted = "constants of the card are another paper's: its order and caps can be demanded, not its values"
    for r in rows_of("paper/koszczal_table1_best_caps.csv"):
        cell, saved = best[r["metric"]]
        cap = float(cell.levels["power_cap_w"])
        yield Number("koszczal 1", f"8 GPUs, {r['metric']}: cap", r["power_cap_w"], cap, 20, "W")
        yield Number("koszczal 1", f"8 GPUs, {r['metric']}: gain", r["gain_vs_default_cap_pct"], saved, 1, "%", fitted)
    yield from _koszczal_text(study, {n: 100 * (1 - row.energy.value) for n, row in rows.items()}, best)


def _koszczal_text(
    study: Study, saved: Mapping[int, float], best: Mapping[str, tuple[Cell, float]]
) -> Iterator[Number]:
    at = {(int(f.cell.levels["gpus"]), int(f.cell.levels["power_cap_w"])): f for f in study.figures}
    caps = {cell.levels["power_cap_w"] for cell, _ in best.values()}
    eds = best["EDS(k=1.5)"][0].levels["power_cap_w"]
    gains = {"gain_minus_loss": GAIN, "edp_gain": "EDP", "eds_k1.5_gain": "EDS(k=1.5)", "eds_k2.0_gain": "EDS(k=2.0)"}
    own: dict[str, tuple[float, float]] = {
        "best_caps_from": (min(map(float, caps)), 20), "best_caps_to": (max(map(float, caps)), 20),
        "eds_k1.5_similar_caps_from": (float(eds), 40), "eds_k1.5_similar_caps_to": (float(eds), 40),
    }  # fmt: skip
    own |= {f"energy_gain_{n}_gpu{'s' if n > 1 else ''}": (value, 1.0) for n, value in saved.items()}
    own |= {f"{name}_8_gpus": (best[of][1], 1.0) for name, of in gains.items()}
    cap_of = {name.replace("_gain", "_cap").replace("minus_loss", "minus_loss_cap"): of for name, of in gains.items()}
    own |= {f"{name}_8_gpus": (float(best[of][0].levels["power_cap_w"]), 20) for name, of in cap_of.items()}
    for (n, cap), f in at.items():
        plural = "s" if n > 1 else ""
        own[f"time_{n}_gpu{plural}_{cap}_w"] = f.time_s.value, 0.02 * f.time_s.value
        own[f"speed_up_{n}_gpus_{cap}_w"] = at[1, cap].time_s.value / f.time_s.value, 0.1
    for r in rows_of("paper/koszczal_text_numbers.csv"):
        name, value = r["quantity"], r["value"]
        what, table = f"{name.replace('_', ' ')} ({r['unit'] or '1'})", "koszczal text"
        if not value:
            ours = own[name][0] if name in own else None
            yield impossible(table, what, "", "its label in figure 7 is lost", ours, r["unit"])
        elif name.startswith("cited_"):
            yield impossible(table, what, value, "other authors' number")
        elif name in own:
            yield Number(table, what, value, *own[name], r["unit"])
        elif name in PROTOCOL:
            yield stated(table, what, value, True, "examples/studies/koszczal.toml has it")
        else:
            yield impossible(table, what, value, "of the machine, the data or the accuracy: nothing is trained here")


# -- Tang et al. -------------------------------------------------------------------------------------------------------

OF_CARD = {"Tesla P100": "p100", "Tesla V100": "v100", "GTX 2080Ti": "rtx2080ti"}
OF_TABLE_4 = {"P100": "p100", "V100": "v100", "2080Ti": "rtx2080ti"}
IN_ABSTRACT = {"p100": (23.1, 26.4), "v100": (14.5, 22.3), "rtx2080ti": (8.7, 19.6)}
"""Saved in training and in inference, per cent, as the abstract has them."""
NETWORK = {"AlexNet": "alexnet", "VggNet-16": "vgg16", "GoogleNet": "googlenet", "ResNet-50": "resnet50"}


def tang(studies: Mapping[str, Study], parameters: Mapping[str, float]) -> Iterator[Number]:
    """``parameters``: of our networks, in millions."""
    for r in rows_of("paper/tang_table1_gpus.csv"):
        design = studies[OF_CARD[r["gpu"]]].design
        for column, knob in (("core_clocks_mhz", CORE), ("memory_clocks_mhz", MEMORY)):
            ours = [int(level) for level in design.factors.get(knob, ())] or [CARDS[OF_CARD[r["gpu"]]].memory_mhz[-1]]
            for clock in map(int, r[column].split(";")):
                yield stated("tang I", f"{r['gpu']}: {column}", str(clock), clock in ours, "the campaign sets it")
        yield stated("tang I", f"{r['gpu']}: default core clock", r["default_core_clock_mhz"],
                     design.reference[CORE] == int(r["default_core_clock_mhz"]), "the reference")  # fmt: skip
        if r["default_memory_clock_mhz"]:
            is_so = design.reference[MEMORY] == int(r["default_memory_clock_mhz"])
            yield stated(
                "tang I", f"{r['gpu']}: default memory clock", r["default_memory_clock_mhz"], is_so, "the same"
            )
        for column in ("sms", "cores_per_sm", "memory_gb"):
            yield impossible(
                "tang I", f"{r['gpu']}: {column}", r[column], "a property of the card; most are wrong there"
            )
    for r in rows_of("paper/tang_table2_networks.csv"):
        name = NETWORK[r["network"]]
        design = studies["v100"].design
        trained = {int(c.levels["batch_size"]) for c in design.cells() if c.levels["model"] == name}
        for size in map(int, r["batch_sizes"].split(";")):
            yield stated("tang II", f"{r['network']}: batch size", str(size), size in trained, "the campaign has it")
        yield impossible("tang II", f"{r['network']}: layers", r["layers"], "what counts as a layer is not said")
        if (millions := parameters.get(name)) is not None:
            within = 0.1 * float(r["parameters_approx_m"])
            what = f"{r['network']}: parameters (millions)"
            if name == "googlenet":
                why = "an error of the paper: 7, or 13 with auxiliary classifiers"
                yield impossible("tang II", what, r["parameters_approx_m"], why, millions)
            else:
                yield Number(
                    "tang II", what, r["parameters_approx_m"], millions, within, why="'about', so within a tenth"
                )
    for r in rows_of("paper/tang_table4_algorithms.csv"):
        saving = _saving(studies[OF_TABLE_4[r["gpu"]]], algorithm=r["algorithm"].lower())
        why = "power of the kernels was chosen for it"
        yield Number("tang IV", f"{r['gpu']}, {r['algorithm']}: saved", r["saving_pct"], saving, 1.5, "%", why)
    for card, (training, inference) in IN_ABSTRACT.items():
        mean = sum(_saving(studies[card], algorithm=a) for a in ("gemm", "fft", "winograd")) / 3
        why = "of table III, which is not at hand; ours is the mean over three algorithms"
        yield Number("tang abstract", f"{card}: saved in training", f"{training}", mean, 2.5, "%", why)
        why = "power of the kernels was chosen for it"
        yield Number("tang abstract", f"{card}: saved in inference", f"{inference}",
                     _saving(studies[card], algorithm="tensorrt"), 1.5, "%", why)  # fmt: skip


def _saving(study: Study, algorithm: str) -> float:
    """At the best core clock, per cent: the geometric mean over models, batch sizes and memory clocks."""
    groups = [g for g in study.campaign.groups if g.levels["algorithm"] == algorithm]
    return 100 * (1 - min(m.energy.value for m in marginals(study.design, groups, CORE)))


# -- Zeus --------------------------------------------------------------------------------------------------------------

SAVED = {
    "cifar100": (31.4, 63.2, 74.7), "imagenet": (22.5, 3.0, 23.8), "squad": (17.8, 6.7, 27.6),
    "librispeech": (16.2, 18.0, 42.8), "movielens": (3.0, 65.0, 66.6), "sentiment140": (21.2, 3.4, 26.4),
}  # fmt: skip
"""Limit, batch size, both, per cent: what the public traces of the V100 hold (`joules optimise suggest`)."""


def zeus(study: Study) -> Iterator[Number]:
    from powerd_analytics.campaign_views.group_tables import savings

    so = {
        "eta_min": "`--eta 0`", "eta_max": "`--eta 1`", "policy_classes": "zeus_classes adapts both",
        "networks_in_traces": "the campaign has six",
    }  # fmt: skip
    for r in rows_of("paper/zeus_text_numbers.csv"):
        what = f"{r['quantity'].replace('_', ' ')} ({r['unit'] or '1'})"
        if r["quantity"] in so:
            yield stated("zeus text", what, r["value"], True, so[r["quantity"]])
        else:
            yield impossible("zeus text", what, r["value"], "other authors' number, or of traces of four GPUs")
    found: dict[str, list[float]] = {}
    for s in savings(study.campaign):
        found.setdefault(s.model, []).append(100 * (1 - s.energy.value))
    for model, published in SAVED.items():
        for name, value, ours in zip(("limit", "batch size", "both"), published, found[model], strict=True):
            why = "the simulated card was fitted to the traces, 2.4 % rms; four runs a cell"
            yield Number("zeus traces", f"{model}: saved by {name}", f"{value}", ours, 6.0, "%", why)


BASIS = {
    "castro 1": "counted", "castro 2": "of the card", "castro 3": "set", "castro 4": "replayed", "castro 5": "replayed",
    "castro 7": "replayed", "castro 8": "replayed", "castro 6": "worked out of replayed ones",
    "castro 10": "worked out of replayed ones", "castro 12": "replayed, averages worked out", "castro 13": "replayed",
    "krzywaniak 1": "of the card", "krzywaniak 2": "simulated, the card fitted to them", "tang I": "set",
    "tang II": "set, parameters counted", "tang IV": "simulated, the kernels' power chosen for them",
    "tang abstract": "simulated, the kernels' power chosen for them", "koszczal 1": "simulated",
    "koszczal text": "simulated, times at 260 W set", "zeus text": "set",
    "zeus traces": "simulated, the card fitted to them",
}  # fmt: skip
"""Where our numbers come from, by table."""
COMMANDS = {
    "castro 1": "joules operations caffenet", "castro 2": "joules campaign table castro.toml --table testbed",
    "castro 4, 5, 7, 8, 10": "joules campaign table castro.toml --table phases",
    "castro 3, 6": "joules campaign table castro.toml --table machines",
    "castro 12, 13": "joules campaign table castro.toml --table accuracy",
    "krzywaniak 1": "joules campaign table krzywaniak.toml --table testbed",
    "krzywaniak 2": "joules campaign table krzywaniak.toml --table minima",
    "tang I, and batch sizes of II": "joules campaign plan tang-v100.toml",
    "parameters of tang II": "joules operations --input 3x224x224 examples/studies/networks.py:vgg16",
    "tang IV": "joules campaign table tang-v100.toml --table optimum",
    "koszczal 1": "joules campaign table koszczal.toml --table minima",
    "zeus traces": "joules campaign table zeus.toml --table savings",
}  # fmt: skip
"""The command that prints a table of the papers, of a campaign that has run into the folder of its name."""


# -- one page ----------------------------------------------------------------------------------------------------------


def counted(numbers: Sequence[Number]) -> dict[str, tuple[int, int, int]]:
    """By table: met, missed, impossible."""
    found: dict[str, list[int]] = {}
    for n in numbers:
        of = found.setdefault(n.table, [0, 0, 0])
        of[2 if not n.is_possible else 0 if n.verdict == "met" else 1] += 1
    return {table: (a, b, c) for table, (a, b, c) in found.items()}


HEAD = "| number | published | ours | difference | |\n| --- | ---: | ---: | ---: | --- |\n"


def line(n: Number) -> str:
    off = "" if n.off is None else f"{n.off:+.3g}"
    ours = "" if n.ours is None else f"{n.ours:.4g} {n.unit}".strip()
    verdict = n.verdict + (f": {n.why}" if n.why and n.verdict != "met" else "")
    return f"| {n.what} | {n.published} {n.unit} | {ours} | {off} | {verdict} |\n"


def write_csv(path: Path, numbers: Sequence[Number]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(("table", "number", "published", "ours", "unit", "within", "verdict", "why"))
        for n in numbers:
            ours = "" if n.ours is None else f"{n.ours:.6g}"
            within = "" if n.ours is None or not n.is_possible else f"{n.within:.3g}"
            out.writerow((n.table, n.what, n.published, ours, n.unit, within, n.verdict, n.why))


def grouped_by_reason(numbers: Sequence[Number]) -> dict[tuple[str, str], list[Number]]:
    """Impossible numbers by table and reason."""
    found: dict[tuple[str, str], list[Number]] = {}
    for n in numbers:
        if not n.is_possible:
            found.setdefault((n.table, n.why.partition(" say ")[0]), []).append(n)
    return found


def is_met(numbers: Sequence[Number], of: Callable[[Number], bool]) -> bool:
    return all(n.verdict == "met" for n in numbers if of(n))
