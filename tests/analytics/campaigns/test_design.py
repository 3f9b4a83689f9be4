"""Designs: what a file says, what of it is refused, and the order in which runs are made."""

import copy
import json
import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerd_analytics.campaigns.campaign_file import design_of
from powerd_analytics.campaigns.design import Design
from powerd_analytics.campaigns.journal import History
from powerd_analytics.campaigns.runner import Blocks
from powerd_analytics.campaigns.simulated import Simulated
from powerd_analytics.cli.campaign import read_design
from powerd_core.errors import ConfigError
from powerd_core.gpu_physics import RTX_6000
from powerd_core.lease import Range

FILE = """
[campaign]
name = "caps"
command = ["python", "train.py", "--batch", "{batch_size}", "--seed", "{seed}"]
[factors]
batch_size = [64, 128]
power_cap_w = {from = 100, to = 260, step = 40}
[work]
images = 32000
epochs = 2
[order]
reference = {power_cap_w = "default"}
[repeats]
min = 3
until = {metric = "energy_j", half_width = "1 %"}
"""
CAPS = Range(*(RTX_6000.limits_w[i] for i in (0, 2, 1)))


def design(text: str = FILE, **changes: str) -> Design:
    for old, new in changes.items():
        text = text.replace(old, new)
    return design_of(tomllib.loads(text)).resolved({"power_cap_w": CAPS})


def test_a_file_becomes_cells_with_their_reference_among_them():
    d = design()
    assert len(d.cells()) == 2 * 5  # 260 W is the default
    assert len(design(FILE.replace("to = 260", "to = 220")).cells()) == 2 * 5  # and is added where no level is it
    assert {d.reference_of(cell).levels["power_cap_w"] for cell in d.cells()} == {260}
    assert {d.reference_of(cell).levels["batch_size"] for cell in d.cells()} == {64, 128}
    assert d.samples == 64_000
    assert (d.repeats.min, d.repeats.max) == (3, 20)


def test_a_run_has_the_levels_in_its_command_and_holds_the_knobs():
    d = design()
    item = d.block(2, d.cells())[0]
    assert d.argv(item) == ["python", "train.py", "--batch", str(item.cell.levels["batch_size"]), "--seed", "3"]
    assert d.knobs(item) == {"power_cap_w": item.cell.levels["power_cap_w"]}
    assert d.about(item)["factors"] == dict(item.cell.levels)


@given(st.integers(0, 10_000), st.integers(0, 50))
def test_a_block_has_each_cell_once_and_follows_from_the_seed(seed, number):
    d = design(FILE.replace('name = "caps"', f'name = "caps"\nseed = {seed}'))
    block = d.block(number, d.cells())
    assert sorted(i.cell.id for i in block) == sorted(c.id for c in d.cells())
    assert block == d.block(number, d.cells())
    assert {i.seed for i in block} == {seed + number}


def test_orders():
    d = design(FILE.replace("[order]", '[order]\nkind = "as-written"'))
    assert [i.cell for i in d.block(1, d.cells())] == list(d.cells())
    d = design(FILE.replace("[order]", '[order]\nkind = "abba"'))
    assert [i.cell for i in d.block(1, d.cells())] == list(d.cells())[::-1]
    assert [i.cell for i in d.block(2, d.cells())] == list(d.cells())
    d = design()
    orders = [[i.cell.id for i in d.block(n, d.cells())] for n in range(20)]
    assert len(set(map(tuple, orders))) == 20
    assert [order[::-1] for order in orders[::2]] == orders[1::2]


def test_excluded_and_further_cells():
    more = "[[exclude]]\nbatch_size = 128\npower_cap_w = 100\n[[cell]]\nbatch_size = 8\npower_cap_w = 150\n"
    levels = [tuple(cell.levels.values()) for cell in design(FILE + more).cells()]
    assert (128, 100) not in levels
    assert (8, 150) in levels
    assert (8, 260) in levels  # what it is compared with


def test_repeats_and_guards_do_not_make_it_another_design():
    same = design(FILE.replace("min = 3", "min = 4") + "[guard]\nretries = 5\n")
    assert same.fingerprint == design().fingerprint
    assert design(FILE.replace("32000", "1000")).fingerprint != design().fingerprint
    assert design(FILE.replace("[64, 128]", "[64]")).fingerprint != design().fingerprint


def test_levels_as_they_were_resolved_come_back():
    raw = design_of(tomllib.loads(FILE))
    assert raw.with_levels(design().levels).cells() == design().cells()


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("{batch_size}", "{batch}", r"\{batch\}, and there is no such factor.*batch_size"),
        ('"--batch", "{batch_size}", ', "", "'batch_size' changes nothing"),
        ("{batch_size}", "{batch_size", "in the command"),
        ("name = \"caps\"", "name = \"a/b\"", "option 'campaign': name"),
        ("command =", "comand =", "'campaign': unknown option 'comand': did you mean 'command'"),
        ("[64, 128]", "[]", "factors.batch_size"),
        ("step = 40", "step = 0", "factors.power_cap_w'.*step"),
        ("to = 260", "to = 300", "can be set from 100 W to 260 W"),
        ('"default"', '"deflaut"', "power_cap"),
        ("min = 3", "min = 0", "repeats"),
        ("min = 3", 'min = "three"', "repeats.min"),
        ('"1 %"', '"200 %"', "half_width"),
        ('"energy_j"', '"joules"', "repeats.until.*joules' is none of e, time, edp"),
        ('"energy_j"', '"eds"', "metric eds: repeats end by e, time, edp or ed2p"),
        ("[order]", '[order]\nkind = "random"', "'order.kind'"),
        ("epochs = 2", "epoch = 2", "'work': unknown option 'epoch'"),
        ("[repeats]", '[guard]\ndiscard = ["thermel"]\n[repeats]', "did you mean 'thermal'"),
        ("[factors]", "[factor]\n[factors]", "unknown option 'factor': did you mean 'factors'"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(old, new, text):
    assert old in FILE
    with pytest.raises(ConfigError, match=text):
        design(FILE.replace(old, new))


def of(**tables) -> Design:
    document = {
        "campaign": {"name": "c", "command": ["train", "{model}", "{batch_size}"]},
        "factors": {"model": ["vgg19", "resnet50"], "batch_size": [64, 128], "power_cap_w": [160, 260]},
    }
    return design_of(document | tables)


def test_a_list_of_levels_excludes_each_of_them():
    few = of(exclude=[{"model": "vgg19", "batch_size": [64, 128]}])
    assert {c.levels["model"] for c in few.cells()} == {"resnet50"}


def test_a_reference_may_differ_by_model():
    d = of(order={"reference": {"power_cap_w": 260, "batch_size": {"vgg19": 128, "resnet50": 64}}})
    for cell in d.cells():
        own = {"vgg19": 128, "resnet50": 64}[cell.levels["model"]]
        assert d.reference_of(cell).levels == {**cell.levels, "power_cap_w": 260, "batch_size": own}
    again = d.with_levels(d.levels)
    assert [again.reference_of(c) for c in again.cells()] == [d.reference_of(c) for c in d.cells()]


def test_a_model_without_a_reference_of_its_own_is_compared_with_nothing():
    d = of(order={"reference": {"power_cap_w": 260, "batch_size": {"vgg19": 128}}})
    compared = {cell.levels["model"] for cell in d.cells() if d.reference_of(cell) is not None}
    assert compared == {"vgg19"}


@pytest.mark.parametrize(
    ("tables", "named"),
    [
        ({"pilot": {"result": "epochs"}}, "'pilot': missing option 'command'"),
        ({"instrument": {"moved_over": "card"}}, "instrument.moved_over: there is no factor 'card'"),
        ({"instrument": {"mixed": 2}}, "'instrument.mixed': expected a table"),
        ({"weights": {"top1": 0}}, "weights: each must be above 0"),
        ({"simulation": {"rows": {"model": "vgg19"}}}, "'simulation.rows': expected a list of tables"),
        ({"simulation": {"rows": [{"modl": "vgg19"}]}}, "simulation.rows: unknown option 'modl'"),
    ],
)
def test_what_is_wrong_in_a_table_is_named(tables, named):
    with pytest.raises(ConfigError, match=named):
        of(**tables)


WHOLE = {
    "campaign": {"name": "c", "command": ["train", "{model}", "{batch_size}"], "seed": 3, "seed_of": "campaign",
                 "device": "gpu0", "price_per_kwh": 0.3, "currency": "EUR", "idle_w": 20.0},
    "factors": {"model": ["vgg19", "resnet50"], "batch_size": [64, 128], "gpus": [1, 2],
                "power_cap_w": {"from": 160, "to": 260, "step": 50}},
    "exclude": [{"model": "vgg19", "batch_size": [128]}],
    "cell": [{"model": "vgg19", "batch_size": 8, "gpus": 1, "power_cap_w": 160}],
    "order": {"kind": "abba", "reference": {"power_cap_w": "default", "batch_size": {"vgg19": 64, "resnet50": 128}}},
    "repeats": {"min": 3, "max": 9, "until": {"metric": "time_s", "half_width": "2 %"}},
    "guard": {"discard": ["thermal"], "retries": 1, "idle_gap_s": 0.5},
    "control": {"devices": "gpu0"}, "executor": {"kind": "local", "gpus": 2},
    "environment": {"N": 3, "M": "{model}"}, "work": {"images": 1280, "epochs": 2}, "weights": {"top1": 1},
    "pilot": {"command": ["train", "{seed}"], "sets": "epochs"},
    "instrument": {"moved_over": "model", "mixed": {"vgg19": 1}, "spread": 0.01},
    "simulation": {"network": "{model}", "stand_in": {"a": "vgg19"}, "iteration_s": {"vgg19": 0.3, "resnet50": 0.2},
                   "batch_size": 64, "noise": 0.01, "machine": True, "rows": [
                       {"model": "vgg19", "phases": {"forward": [2, 0.1]}, "results": {"top1": 0.9}, "kernels": ["k"]},
                       {"model": "resnet50", "gpus": 2, "busy_w": 10, "is_out_of_memory": True}]},
}  # fmt: skip
"""Every table of a campaign's file."""


def places(value, path=()):
    """The path of every value in a document."""
    if path:
        yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield from places(one, (*path, key))


PLACES = sorted(places(WHOLE), key=str)
OTHER = st.sampled_from(
    ["x", "", "{model", "{none}", 0, -1, 3, 10**15, 0.5, -2.5, True, [], [1, 2], {}, {"a": 1}, None]
)


@given(st.lists(st.tuples(st.sampled_from(PLACES), OTHER, st.booleans()), min_size=1, max_size=2))
def test_a_mutated_file_gives_a_design_that_can_be_run_or_one_clear_line(changes):
    document = copy.deepcopy(WHOLE)
    for path, value, renames in changes:
        holder = document
        try:
            for key in path[:-1]:
                holder = holder[key]
            taken = holder.pop(path[-1])
        except (LookupError, TypeError, AttributeError):  # what an earlier change took away
            continue
        if isinstance(holder, dict) and value is not None:
            holder[f"{path[-1]}x" if renames else path[-1]] = taken if renames else copy.deepcopy(value)
        elif value is not None:
            holder.insert(path[-1], copy.deepcopy(value))
    refusal = None
    try:
        d = design_of(document)
        executor = Simulated.named(d, "sim:rtx6000")
        d = d.with_pilot(3).resolved(executor.ranges())
        executor = Simulated(d, executor.card)
        for item in d.block(0, d.cells())[:4]:
            assert all(isinstance(word, str) for word in (*d.argv(item), *d.environment_of(item).values()))
            assert isinstance(json.dumps(d.about(item)), str)
            executor.run(item, 1, Path("none"))
            d.reference_of(item.cell)
        assert d.fingerprint
        assert Blocks(d).next_block(History())
        assert d.pilot is None or d.pilot_argv(0)
    except ConfigError as error:
        refusal = str(error)
    assert refusal is None or re.fullmatch(r"[^\n]{5,900}", refusal)


def test_the_whole_file_is_taken():
    d = design_of(WHOLE).resolved({"power_cap_w": CAPS})
    assert len(d.cells()) == 3 * 2 * 3 + 1
    assert (d.repeats.until.half_width, d.environment["N"], d.samples) == (0.02, "3", 2560)


@pytest.mark.parametrize(
    ("table", "change", "named"),
    [
        ("executor", {"kind": "slurm"}, "'executor.kind'"),
        ("campaign", {"price_per_kwh": "x"}, "'campaign.price_per_kwh'"),
        ("campaign", {"price_per_kwh": -1}, "price_per_kwh"),
        ("control", {"devices": 3}, "'control.devices'"),
        ("pilot", {"result": 3}, "'pilot.result'"),
        ("work", {"images": float("nan")}, "'work.images'"),
        ("environment", {"N": [1]}, "'environment.N'"),
        ("simulation", {"network": 3}, "'simulation.network'"),
        ("simulation", {"rows": [{"phases": 3}]}, "simulation.rows: option 'phases'"),
        ("simulation", {"rows": [{"results": 3}]}, "simulation.rows: option 'results'"),
    ],
)
def test_what_was_taken_once_is_refused(table, change, named):
    with pytest.raises(ConfigError, match=named):
        design_of(WHOLE | {table: WHOLE[table] | change})


@pytest.mark.parametrize("change", [{"exclude": [1, 2]}, {"cell": 3}])
def test_rows_are_tables(change):
    with pytest.raises(ConfigError, match=f"option {next(iter(change))!r}"):
        design_of(WHOLE | change)


@pytest.mark.parametrize(
    "change",
    [
        "cell = [[[]]]",
        'factors.gpus = "nan %"',
        "factors.gpus = [false]",
        "factors.gpus = [0]",
        "factors.sm_clock_mhz = {from = 0, to = nan, step = 1}",
        "repeats.min = inf",
        "simulation.network = true",
        'simulation.rows = [{iteration_s = "fast"}]',
        "environment.N = [1]",
        "order.reference = {batch_size = [[1]]}",
        "exclude = 5",
        "work.images = -3",
        "campaign.price_per_kwh = [1]",
        f"x = {'[' * 5000}",
    ],
)
def test_a_file_with_nonsense_in_it_is_refused_in_one_line(tmp_path, change):
    name, _, value = change.partition(" = ")
    rows = [
        'campaign.name = "c"', 'campaign.command = ["train", "{batch_size}"]', "factors.batch_size = [1, 2]",
        *([] if name == "repeats.min" else ["repeats.min = 2"]), f"{name} = {value}",
    ]  # fmt: skip
    file = tmp_path / "c.toml"
    file.write_text("\n".join(rows))
    with pytest.raises(ConfigError, match=rf"^{re.escape(str(file))}: [^\n]{{5,400}}$"):
        read_design(file)
