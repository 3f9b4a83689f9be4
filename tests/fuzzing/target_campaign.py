"""A campaign's TOML file of any contents: a plan and simulated runs, or one line that says what is wrong."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from fuzzing.picker import Picker, expect
from powerd_analytics.campaigns.journal import History, Result
from powerd_analytics.campaigns.runner import Blocks
from powerd_analytics.campaigns.simulated import Simulated
from powerd_analytics.cli.campaign import read_design
from powerd_core.errors import ConfigError, RunFileError

_VALUES = ("inf", "nan", "0", "-1", "1e308", "9" * 30, "true", "false", '""', '"x"', '"{seed}"', '"}"', '"nan %"', "[]",
           "[[[]]]", "{}", "[false]", "[1, 2]", '["a", "b"]', "[" * 600, "1979-05-27", "{from = 0, to = 9, step = 1}",
           "{from = 0, to = 1e9, step = 1}", '"default"', '["60 %"]', "{a = 1}", "[{a = 1}]")  # fmt: skip
_GOOD = {
    "campaign": {"name": '"c"', "command": '["train", "{batch_size}", "{model}"]', "seed": "1", "price_per_kwh": "0.3"},
    "factors": {"batch_size": "[32, 64]", "power_cap_w": '[150, "default"]', "model": '["vgg16"]'},
    "order": {"kind": '"abba"', "reference": '{power_cap_w = "default"}'},
    "repeats": {"min": "2", "max": "3", "until": '{metric = "edp_js", half_width = "5 %"}'},
    "guard": {"discard": '["thermal"]', "retries": "1", "start_within_c": "5.0"},
    "executor": {"kind": '"local"', "gpus": "1"},
    "environment": {"N": '"{seed}"'},
    "work": {"images": "1000", "epochs": "1"},
    "weights": {"top1": "1.0"},
    "instrument": {"moved_over": '"model"', "mixed": "{vgg16 = 2}"},
    "simulation": {"network": '"vgg16"', "iteration_s": "0.1", "noise": "0.01", "stand_in": "{}",
                   "rows": "[{model = \"vgg16\", results = {top1 = 0.5}, busy_w = 90}]"},
}  # fmt: skip
_MOST_CELLS = 40
_PATH = Path(tempfile.gettempdir()) / f"fuzz-campaign-{os.getpid()}.toml"


def one(data: bytes) -> None:
    picker = Picker(data)
    _PATH.write_bytes(_file(picker) if picker.flip() else picker.rest())
    try:
        design = read_design(_PATH)
        executor = Simulated.named(design, "sim:rtx6000")
        design = design.resolved(executor.ranges())
        if len(design.cells()) > _MOST_CELLS:
            return
        history = History()
        assert Blocks(design).planned(history) >= 0
        for item in Blocks(design).next_block(history):
            outcome = Simulated(design, executor.card).run(item, 1, _PATH)
            assert not isinstance(outcome, Result) or outcome.energy_j > 0
            design.argv(item)
    except (ConfigError, RunFileError) as error:
        expect(len(str(error)) < 1000 and "\n" not in str(error), error)
    finally:
        _PATH.unlink()


def _file(picker: Picker) -> bytes:
    tables = {name: dict(rows) for name, rows in _GOOD.items()}
    for _ in range(picker.below(4)):
        table = tables[picker.one_of(sorted(tables))]
        name = picker.one_of(sorted(table)) if table else "x"
        if picker.rarely():
            table.pop(name, None)
        elif picker.rarely():
            table[picker.one_of(("x", "a.b", "gpus", "sm_clock_mhz"))] = picker.one_of(_VALUES)
        else:
            table[name] = picker.one_of(_VALUES)
    rows = [f"{n} = {picker.one_of(_VALUES)}" for n in ("exclude", "cell", "pilot") if picker.rarely()]
    for name, table in tables.items():
        rows += [f"[{name}]", *(f"{key} = {value}" for key, value in table.items())]
    return "\n".join(rows).encode()
