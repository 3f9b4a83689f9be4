"""Run files and journals are data: whatever is in them, reading them ends soon, in a result or in one line of ours."""

import itertools
import json
import os
import shutil

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from powerd_analytics.cli.info import describe_run, run_document
from powerd_analytics.run_tables.table import phase_table
from powerd_analytics.run_tables.verification import verify_sums
from powerd_analytics.runs.run import read_run
from powerd_client import open_run
from powerd_client.runs.recover import recover
from powerd_client.runs.verify import verify_file
from powerd_core.errors import PowerdError, RunFileError
from support.small_run import make_run_file

LINE = "lines/gpu0.rail_0"
CLOCK = "clocks/fake board-0000000000000005"
NAMES = itertools.count()


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """The bytes of a small run file, and its attributes and datasets by name."""
    path = make_run_file(tmp_path_factory.mktemp("good") / "run.h5")
    names = ["/"]
    with h5py.File(path) as file:
        file.visit(names.append)
        attributes = [(name, key) for name in names for key in file[name].attrs]
    return path.read_bytes(), names[1:], attributes


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Nothing here is about what a disk holds after a power cut."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture
def run(tmp_path, good):
    path = tmp_path / "run.h5"
    path.write_bytes(good[0])
    return path


def read_everything(path):
    """All that reads a run file. Anything but a `PowerdError` of one line is a failure."""
    for read in (
        lambda: phase_table(read_run(path)),
        lambda: list(describe_run(run_document(read_run(path)))),
        lambda: list(verify_file(path)),
        lambda: list(verify_sums(path)),
        lambda: recover(path, path.with_name(f"out-{path.name}"), overwrite=True),
    ):
        said = "nothing"
        try:
            read()
        except PowerdError as error:
            said = str(error)
        assert said
        assert "\n" not in said


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_bytes_that_changed_anywhere_do_no_harm(tmp_path, good, data):
    run = tmp_path / f"{next(NAMES)}.h5"
    damaged = bytearray(good[0])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        piece = data.draw(st.binary(min_size=1, max_size=4) | st.integers(1, 4096).map(bytes))
        damaged[at : at + len(piece)] = piece[: len(damaged) - at]
    run.write_bytes(damaged[: data.draw(st.integers(1, len(damaged)) | st.just(len(damaged)))])
    read_everything(run)


VALUES = st.sampled_from(
    [
        np.nan, -np.inf, -1, 0, 1.5, 2**62, "", "x", "[]", "{}", "[" * 100_000, '{"a":' * 100_000, "1" * 5000, "NaN",
        "null", np.bytes_(b"\xff\xfe"), [1, 2, 3], ["a", "b"], np.zeros((2, 2)), np.zeros(0), h5py.Empty("f"), True,
        '{"kind": "shunt", "shunt_ohm": 0, "shunt_lsb_v": 1, "bus_lsb_v": 1}',
        '{"kind": "scaled", "column": "power_mw", "w_per_code": NaN}',
        '{"kind": "counter", "column": "power_mw", "j_per_code": 1, "bits": -5}',
    ]
)  # fmt: skip


FIGURES = st.sampled_from([0.0, 1.0, -1.0, 1e-300, 5e-324, 1e12, -1e12, 1e150, 1e300, -1e300]) | st.floats()


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.fixed_dictionaries({"kind": st.just("scaled"), "w_per_code": FIGURES})
    | st.fixed_dictionaries({"kind": st.just("counter"), "j_per_code": FIGURES, "background_w": FIGURES})
    | st.fixed_dictionaries(
        {"kind": st.just("shunt")}
        | dict.fromkeys(("shunt_ohm", "shunt_lsb_v", "bus_lsb_v", "offset_a", "gain"), FIGURES)
    )
)
@example({"kind": "scaled", "w_per_code": 1e300})
@example({"kind": "counter", "j_per_code": 1e-6, "background_w": 1e300})
@example({"kind": "shunt", "shunt_ohm": 1e-300, "shunt_lsb_v": 1e-5, "bus_lsb_v": 4e-3, "offset_a": 0.0, "gain": 1.0})
def test_any_conversion_is_used_or_refused(tmp_path, good, conversion):
    """Whatever codes are multiplied by: no number that is none comes out, and no library's error."""
    run = tmp_path / f"{next(NAMES)}.h5"
    run.write_bytes(good[0])
    with h5py.File(run, "r+") as file:
        (column,) = set(file[LINE]) - {"t_ns", "t_board_ns", "flags"}
        columns = ("shunt", "bus") if conversion["kind"] == "shunt" else ("column",)
        file[LINE].attrs["conversion"] = json.dumps(conversion | dict.fromkeys(columns, column))
    read_everything(run)
    largest = max(abs(figure) for figure in conversion.values() if isinstance(figure, float))
    if not largest <= 1e12:
        with pytest.raises(RunFileError, match=r"gpu0\.rail_0.* is .*"):
            read_run(run)


def extreme(old):
    values = old[:].copy()
    values[: len(values) // 2] = np.iinfo(values.dtype).min if values.dtype.kind in "iu" else 0
    values[len(values) // 2 :] = np.iinfo(values.dtype).max if values.dtype.kind in "iu" else 0
    return values


INSTEAD = {
    "nothing": lambda parent, name, old: None,
    "a group": lambda parent, name, old: parent.create_group(name),
    "a number": lambda parent, name, old: parent.create_dataset(name, data=5),
    "empty": lambda parent, name, old: parent.create_dataset(name, data=h5py.Empty("i8")),
    "floats": lambda parent, name, old: parent.create_dataset(name, data=np.full(len(old), np.nan)),
    "texts": lambda parent, name, old: parent.create_dataset(name, data=["["] * len(old), dtype=h5py.string_dtype()),
    "a square": lambda parent, name, old: parent.create_dataset(name, data=np.zeros((5, 5), int)),
    "records": lambda parent, name, old: parent.create_dataset(name, (3,), dtype=[("a", "i4")]),
    "references": lambda parent, name, old: parent.create_dataset(name, (3,), dtype=h5py.ref_dtype),
    "half": lambda parent, name, old: parent.create_dataset(name, data=old[: len(old) // 2]),
    "extreme": lambda parent, name, old: parent.create_dataset(name, data=extreme(old)),
    "reversed": lambda parent, name, old: parent.create_dataset(name, data=old[::-1]),
}


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_attributes_and_datasets_that_make_no_sense_do_no_harm(tmp_path, good, data):
    run = tmp_path / f"{next(NAMES)}.h5"
    run.write_bytes(good[0])
    with h5py.File(run, "r+") as file:
        if data.draw(st.booleans()):
            name, key = data.draw(st.sampled_from(good[2]))
            file[name].attrs[key] = data.draw(VALUES)
        else:
            name = data.draw(st.sampled_from(good[1]))
            old = file[name][:] if isinstance(file[name], h5py.Dataset) else np.zeros(3, int)
            parent, _, child = name.rpartition("/")
            del file[name]
            INSTEAD[data.draw(st.sampled_from(sorted(INSTEAD)))](file[parent or "/"], child, old)
    read_everything(run)


@pytest.mark.parametrize("drift_ppm", [np.nan, np.inf, -1, 2e6, "1" * 5000])
def test_a_clock_that_drifts_by_no_number_is_refused_in_one_line(run, drift_ppm):
    with h5py.File(run, "r+") as file:
        file[CLOCK].attrs["drift_ppm"] = drift_ppm
    with pytest.raises(RunFileError, match="drifts"):
        read_run(run)
    read_everything(run)


@pytest.mark.parametrize("column", range(3))
@pytest.mark.parametrize("offset", [np.nan, np.inf, -np.inf, 1e30])
def test_a_clock_with_an_offset_that_cannot_be_is_refused_in_one_line(run, column, offset):
    with h5py.File(run, "r+") as file:
        file[CLOCK]["map"][3, column] = offset
    with pytest.raises(RunFileError):
        read_run(run)
    read_everything(run)


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (f"{LINE}/t_ns", lambda other: h5py.ExternalLink(other, f"{LINE}/t_ns")),
        (f"{LINE}/t_ns", lambda other: np.zeros(1199, int)),
        (f"{LINE}/flags", lambda other: np.zeros(1200)),
        (f"{LINE}/flags", None),
        ("phases/kinds", None),
        ("messages", lambda other: np.zeros(3)),
        (f"{CLOCK}/map", lambda other: np.zeros((30, 2))),
        ("devices/gpu0", lambda other: np.zeros(3)),
    ],
)
def test_what_must_not_be_in_a_run_file_is_refused_in_one_line(run, tmp_path, where, value):
    elsewhere = tmp_path / "elsewhere.h5"
    shutil.copy(run, elsewhere)
    with h5py.File(run, "r+") as file:
        del file[where]
        if value is not None:
            file[where] = value(str(elsewhere))
    for read in (read_run, open_run):
        with pytest.raises(RunFileError) as caught:
            read(run)
        assert "\n" not in str(caught.value)
    (finding,) = verify_file(run)
    assert (finding.state, finding.check) == ("wrong", "structure")
    read_everything(run)
