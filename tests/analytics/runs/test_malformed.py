"""Run files and journals are data: whatever is in them, reading them ends soon, in a result or in one line of ours."""

import itertools
import os
import shutil

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from powerd_analytics.cli.describe import describe_run
from powerd_analytics.runs.run import read_run
from powerd_analytics.tables.sums import verify_sums
from powerd_analytics.tables.table import phase_table
from powerd_client import fileshape, open_run
from powerd_client.recover import recover
from powerd_client.verify import verify_file
from powerd_core.errors import PowerdError, RunFileError
from powerd_core.wire import Message, encode
from support.small_run import description, frames, head, make_journal, make_run_file, stop, whole

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
    out = path.with_name(f"out-{path.name}")
    for read in (
        lambda: phase_table(read_run(path)),
        lambda: list(describe_run(read_run(path))),
        lambda: list(verify_file(path)),
        lambda: list(verify_sums(path)),
        lambda: recover(path, out, overwrite=True),
    ):
        said = "nothing"
        try:
            read()
        except PowerdError as error:
            said = str(error)
        assert said
        assert "\n" not in said
    return out


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_bytes_that_changed_anywhere_do_no_harm(tmp_path, good, data):
    run = tmp_path / f"{next(NAMES)}.h5"
    damaged = bytearray(good[0])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        piece = data.draw(st.binary(min_size=1, max_size=4) | st.integers(1, 4096).map(bytes))
        damaged[at : at + len(piece)] = piece[: len(damaged) - at]
    run.write_bytes(damaged[: data.draw(st.integers(1, len(damaged)) | st.just(len(damaged)))])
    out = read_everything(run)
    if out.exists():
        # Damage is told from data by checksums: what passes for good is good.
        assert [f for f in verify_file(out) if f.state == "wrong"] == []
        out.unlink()


VALUES = st.sampled_from(
    [
        np.nan, -np.inf, -1, 0, 1.5, 2**62, "", "x", "[]", "{}", "[" * 100_000, '{"a":' * 100_000, "1" * 5000, "NaN",
        "null", np.bytes_(b"\xff\xfe"), [1, 2, 3], ["a", "b"], np.zeros((2, 2)), np.zeros(0), h5py.Empty("f"), True,
        '{"kind": "shunt", "shunt_ohm": 0, "shunt_lsb_v": 1, "bus_lsb_v": 1}',
        '{"kind": "scaled", "column": "power_mw", "w_per_code": NaN}',
        '{"kind": "counter", "column": "power_mw", "j_per_code": 1, "bits": -5}',
    ]
)  # fmt: skip


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_attributes_that_make_no_sense_do_no_harm(tmp_path, good, data):
    run = tmp_path / f"{next(NAMES)}.h5"
    run.write_bytes(good[0])
    at = data.draw(st.lists(st.integers(0, len(good[2]) - 1), min_size=1, max_size=3))
    places = sorted({good[2][i] for i in at})
    values = [data.draw(st.none() | VALUES) for _ in places]
    without_copy = data.draw(st.booleans())
    with h5py.File(run, "r+") as file:
        for (name, key), value in zip(places, values, strict=True):
            del file[name].attrs[key]
            if value is not None:
                file[name].attrs[key] = value
        if without_copy:
            del file["attributes"]
    read_everything(run)


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


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_datasets_that_make_no_sense_do_no_harm(tmp_path, good, data):
    run = tmp_path / f"{next(NAMES)}.h5"
    run.write_bytes(good[0])
    with h5py.File(run, "r+") as file:
        name = data.draw(st.sampled_from(good[1]))
        old = file[name][:] if isinstance(file[name], h5py.Dataset) else np.zeros(3, int)
        del file[name]
        parent = file[name].parent if name in file else file[name.rpartition("/")[0] or "/"]
        INSTEAD[data.draw(st.sampled_from(sorted(INSTEAD)))](parent, name.rpartition("/")[2], old)
    read_everything(run)


@pytest.mark.parametrize("name", ["complete", "rebuilt", "t_start_ns"])
@pytest.mark.parametrize("value", [[1, 2, 3], [1], np.zeros((2, 2)), "x", h5py.Empty("f")])
def test_a_flag_or_time_of_the_run_that_is_no_single_number_is_refused(run, name, value):
    with h5py.File(run, "r+") as file:
        del file.attrs[name]
        file.attrs[name] = value
    with pytest.raises(RunFileError, match="damaged"):
        read_run(run)


@pytest.mark.parametrize("name", ["begin_ns", "end_ns", "kind", "begin_bound_ns"])
def test_phases_whose_numbers_are_none_are_not_cast_into_others(run, tmp_path, name):
    with h5py.File(run, "r+") as file:
        count = len(file["phases/begin_ns"])
        del file[f"phases/{name}"]
        file[f"phases/{name}"] = np.full(count, np.nan)
    report = recover(run, tmp_path / "saved.h5")
    with h5py.File(report.out) as file:
        kept = file["phases/begin_ns"][:]
    if name == "begin_bound_ns":
        assert len(kept) == count
        assert f"{count} of {count} begin_bound_ns of phases" in report.lost
    else:
        assert len(kept) == 0
        assert f"{count} of {count} phases" in report.lost


def virtual(file, elsewhere):
    layout = h5py.VirtualLayout((1200,), "i8")
    layout[:] = h5py.VirtualSource(elsewhere, f"{LINE}/t_ns", (1200,))
    file[LINE].create_virtual_dataset("t_ns", layout)


def huge(file, elsewhere):
    file[LINE].create_dataset("t_ns", (2**60,), "i8", chunks=(65536,), compression="gzip")


def huge_in_memory(file, elsewhere):
    file[LINE].create_dataset("t_ns", (2**26,), "i8", chunks=(2**25,), compression="gzip")


def not_stored(file, elsewhere):
    file[LINE].create_dataset("t_ns", (1200,), "i8", chunks=(100,))[:100] = 1


def put(name, value):
    def made(file, elsewhere):
        file[name] = value(elsewhere) if callable(value) else value

    return made


@pytest.mark.parametrize(
    ("where", "make", "text"),
    [
        (f"{LINE}/t_ns", put(f"{LINE}/t_ns", lambda other: h5py.ExternalLink(other, f"{LINE}/t_ns")), "a link to"),
        (f"{LINE}/t_ns", put(f"{LINE}/t_ns", h5py.SoftLink("/lines/gpu0.rail_1/t_ns")), "a link to"),
        ("lines", put("lines", lambda other: h5py.ExternalLink(other, "/lines")), "a link to"),
        (f"{LINE}/t_ns", virtual, "kept in another file"),
        (f"{LINE}/t_ns", lambda file, other: file[LINE].create_dataset(
            "t_ns", (1200,), "i8", external=[(other, 0, 9600)]), "kept in another file"),
        (f"{LINE}/t_ns", huge, "GB, more than the memory of this machine"),
        (f"{LINE}/t_ns", huge_in_memory, "chunks of more than"),
        (f"{LINE}/t_ns", not_stored, "claims 1200 rows, but not all of them are stored"),
        (f"{LINE}/t_ns", lambda file, other: file[LINE].create_dataset(
            "t_ns", data=np.zeros(1200, int), compression="lzf"), "compressed in an unknown way"),
        (f"{LINE}/t_ns", put(f"{LINE}/t_ns", np.zeros(1199, int)), "differ in length"),
        (f"{LINE}/flags", put(f"{LINE}/flags", np.zeros(1200)), "not of the right type"),
        (f"{LINE}/flags", None, "has no 'flags'"),
        ("phases/kinds", None, "no table of kinds"),
        ("messages", put("messages", np.zeros(3)), "'messages' is no table of texts"),
        ("messages", lambda file, other: file.create_group("messages"), "'messages' is not what it should be"),
        (f"{CLOCK}/map", put(f"{CLOCK}/map", np.zeros((30, 2))), "not of the right type"),
        ("devices/gpu0", put("devices/gpu0", np.zeros(3)), "is no group"),
        ("parts", lambda file, other: file["lines"].create_group("a/b/c"), "nested too deep"),
    ],
)  # fmt: skip
def test_what_must_not_be_in_a_run_file_is_refused_and_said(run, tmp_path, where, make, text):
    elsewhere = tmp_path / "elsewhere.h5"
    shutil.copy(run, elsewhere)
    with h5py.File(run, "r+") as file:
        del file[where]
        if make:
            make(file, str(elsewhere))
    for read in (read_run, open_run):
        with pytest.raises(RunFileError, match=text) as caught:
            read(run)
        assert "\n" not in str(caught.value)
    (finding,) = verify_file(run)
    assert (finding.state, finding.check) == ("wrong", "structure")
    read_everything(run)


def test_one_dataset_under_two_names_is_refused(run):
    with h5py.File(run, "r+") as file:
        file["lines/gpu0.rail_0/more"] = file["lines/gpu0.rail_0/t_ns"]
    with pytest.raises(RunFileError, match="under two names"):
        open_run(run)
    with h5py.File(run, "r+") as file:
        file["lines/gpu0.rail_0/round"] = file["lines"]
    with pytest.raises(RunFileError, match="under two names"):
        open_run(run)


def test_a_few_bytes_that_claim_to_be_gigabytes_of_text_are_not_read(run, monkeypatch):
    monkeypatch.setattr(fileshape, "_MAX_TEXT_BYTES", 10_000)
    with h5py.File(run, "r+") as file:
        del file["messages"]
        file.create_dataset("messages", data=['{"text": "' + "x" * 1000 + '"}'] * 100, dtype=h5py.string_dtype())
    with pytest.raises(RunFileError, match="GiB of text"):
        read_run(run)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_journals_that_make_no_sense_do_no_harm(tmp_path, data):
    """Frames in any order, messages of any contents, and bytes changed anywhere."""
    path = tmp_path / f"j{next(NAMES)}.h5"
    pieces = data.draw(st.permutations([*head(), description(), *frames(6, 5), *stop(10**9)]))
    values = (
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(max_size=5)
    )
    keys = st.sampled_from(
        ["t_start_ns", "t_stop_ns", "complete", "reception", "process", "kind", "name", "attributes", "timing", "text"]
    )
    subjects = st.sampled_from(["run", "start", "stop", "description", "phase-names", "note", "?"])
    messages = st.builds(Message, subjects, st.dictionaries(keys, values | st.dictionaries(keys, values), max_size=6))
    pieces += [encode(m) for m in data.draw(st.lists(messages, max_size=4))]
    raw = bytearray(b"".join(pieces))
    for _ in range(data.draw(st.integers(0, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    directory = make_journal(path, [bytes(raw)])
    for name in data.draw(st.sets(st.sampled_from(sorted(os.listdir(directory))))):
        if name != "journal.bin" and (directory / name).stat().st_size:
            with (directory / name).open("r+b") as file:
                file.write(data.draw(st.binary(max_size=40)))
    read_everything(path)


def test_a_stray_file_of_marks_does_not_cost_the_run(tmp_path):
    path = tmp_path / "run.h5"
    directory = make_journal(path, whole(), marks=False)
    (directory / "marks-zz-0.bin").write_bytes(bytes(16))
    with open_run(path) as file:
        assert len(file[LINE]["t_ns"]) == 1200
        assert "cannot be used" in str(file["messages"].asstr()[:])
