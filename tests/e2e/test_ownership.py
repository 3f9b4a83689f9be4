"""No program of powerd follows a link that it did not make, or touches what is not its user's and its own."""

import contextlib
import os
import secrets
import socket
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import zmq
from matplotlib.figure import Figure

from powerd_analytics.cli import shared
from powerd_analytics.output.export import write_tables
from powerd_analytics.plots import save
from powerd_client.host import local_powerd, ownership
from powerd_client.journals import journal
from powerd_client.journals.job import take_stderr
from powerd_client.journals.journal_writer import JournalWriter
from powerd_client.journals.marks import MarkWriter
from powerd_client.journals.ranks import Rank, Rendezvous
from powerd_client.pmlib.readings import _write as write_pmlib
from powerd_client.record.csv_import import SensorCard, import_csv
from powerd_client.record.recording import record_command
from powerd_client.runs import build, recover
from powerd_client.runs.runfile import open_file
from powerd_core.errors import ConfigError, RunFileError
from powerd_core.marks import sealing_token
from powerd_core.model import Accuracy, Provenance
from powerd_core.wire import Message, encode
from powerd_daemon import sockets, spool, toml_files
from support import small_run

TOKEN = f"{1:016x}"
OWN_TOKEN = f"{sealing_token(1):016x}"
"""Of a process that marks with this release."""
TIMEOUT_S = 100
COMMAND = [sys.executable, "-c", "from powerd_analytics.cli import main; main()"]


@pytest.fixture
def folder(tmp_path):
    return tmp_path


@pytest.fixture
def precious(folder):
    """Files of the user's; some happen to have names that powerd gives its own."""
    behind = folder / "far" / "precious"
    (behind / "sub").mkdir(parents=True)
    for name in ("notes.txt", "sub/deep.txt", "journal.bin", "job.json", f"marks-{TOKEN}.names", "powerd.toml", "a.h5"):
        (behind / name).write_text(f"the only copy of {name}")
    (behind / "empty.txt").touch()
    with socket.socket(socket.AF_UNIX) as dead, contextlib.chdir(behind):
        dead.bind("powerd")
    return behind


def contents(behind):
    files = {str(p.relative_to(behind)): p.read_bytes() for p in behind.rglob("*") if p.is_file()}
    return files, sorted(p.name for p in behind.rglob("*"))


@pytest.fixture
def foreseen(monkeypatch):
    """Names that nobody can foresee, foreseen."""
    monkeypatch.setattr(secrets, "token_hex", lambda size: "00" * size)
    monkeypatch.setattr(secrets, "randbits", lambda size: 1)


def dead_pid():
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


# ---- every path that is made, written over, renamed, emptied or deleted ----------------------------------------------
# Each row puts links under names that powerd uses, and returns them with what is then run.


def link(path, target):
    path.symlink_to(target)
    return path


def half_made_journal(folder, precious):
    links = [link(folder / f"run.h5.0.{dead_pid()}.partial", precious)]
    return links, lambda: small_run.claim_journal(folder / "run.h5")


def half_made_run_file(folder, precious):
    links = [link(folder / f"run.h5.{dead_pid()}.partial", precious / "notes.txt")]
    return links, lambda: small_run.claim_journal(folder / "run.h5")


def new_journal(folder, precious):
    links = [link(folder / f"run.h5.journal.00000000.{os.getpid()}.partial", precious)]
    return links, lambda: small_run.claim_journal(folder / "run.h5")


def journal_overwritten(folder, precious):
    links = [link(folder / "run.h5.journal", precious)]
    return links, lambda: journal.claim(folder / "run.h5", overwrite=True)


def journal_finished(folder, precious):
    links = [link(folder / "run.h5.journal", precious)]
    return links, lambda: recover.open_run(folder / "run.h5")


def journal_fetched_into(folder, precious):
    links = [link(folder / "run.h5.journal", precious)]
    return links, lambda: recover.recover(links[0], folder / "new.h5", url="ipc:///nowhere")


def journal_tidied(folder, precious):
    links = [link(folder / "run.h5.journal", precious)]
    return links, lambda: recover.discard(links[0])


def run_file(folder, precious):
    made = small_run.make_journal(folder / "other.h5", small_run.whole())
    links = [link(folder / "run.h5", precious / "a.h5")]
    read = build.read_contents(made)
    return links, lambda: build.write_file(links[0], read, made, overwrite=True, progress=lambda _: None)


def run_file_of_an_import(folder, precious):
    (folder / "power.csv").write_text("time_s,power_w\n" + "".join(f"{i},5\n" for i in range(20)))
    links = [link(folder / "run.h5", precious / "a.h5")]
    card = SensorCard("node", "wall", Provenance.MEASURED, Accuracy())
    return links, lambda: import_csv(folder / "power.csv", None, links[0], card, overwrite=True)


def recovered_file(folder, precious):
    small_run.make_journal(folder / "run.h5", small_run.whole())
    links = [link(folder / "saved.h5", precious / "a.h5")]
    return links, lambda: recover.recover(folder / "run.h5", links[0], overwrite=True)


def run_file_half_written(folder, precious):
    made = small_run.make_journal(folder / "run.h5", small_run.whole())
    links = [link(folder / f"run.h5.00000000.{os.getpid()}.partial", precious / "notes.txt")]
    return links, lambda: build.build_run(made, folder / "run.h5")


def packed_journal(folder, precious):
    made = small_run.make_journal(folder / "run.h5", small_run.whole())
    links = [link(folder / "run.h5.journal.gz", precious / "notes.txt")]
    return links, lambda: build.build_run(made, folder / "run.h5")


def packed_journal_half_written(folder, precious):
    made = small_run.make_journal(folder / "run.h5", small_run.whole())
    links = [link(folder / f"run.h5.00000000.{os.getpid()}.partial", precious / "notes.txt")]
    return links, lambda: journal.pack(made, overwrite=True)


def packed_journal_tidied(folder, precious):
    links = [link(folder / "run.h5.journal.gz", precious / "notes.txt")]
    return links, lambda: recover.discard(links[0])


def inside(name, target, act):
    """A link in a journal of the user's own."""

    def row(folder, precious):
        made = small_run.claim_journal(folder / "run.h5")
        if (made / name).exists():
            (made / name).unlink()
        return [link(made / name, precious / target)], lambda: act(made)

    return row


def taken_over(made):
    (made.parent / "run.h5").touch()
    journal.claim(made.parent / "run.h5", overwrite=True)


def written(made):
    writer = JournalWriter(made)
    writer.add(Message("note", {}))
    writer.flush()
    writer.close()


def told(made):
    error = os.dup(2)
    try:
        user = take_stderr(made / "recorder.log")
        os.write(2, b"the recorder's")
        os.close(user)
    finally:
        os.dup2(error, 2)
        os.close(error)


def served(made):
    daemon = local_powerd.LocalDaemon([{"kind": "sim"}], made / "powerd.log")
    daemon.start()
    daemon.stop()


def announced(made):
    Rendezvous(made.parent / "run.h5", Rank(0, 2, 0, 2, 0, 0, "launch")).announce(ready=False)


def followed(made):
    tail = journal.MarkTail(made, consume=True)
    for _ in range(3):
        tail.read()


def local_directory(folder, precious):
    links = [link(folder / "powerd-local-abcdefgh", precious)]

    def act():
        directory, lock = local_powerd._private_directory()
        directory.rmdir()
        os.close(lock)

    return links, act


def output(write, name="table.h5", target="a.h5"):
    """The user's own link, to a link that somebody else may have made."""

    def row(folder, precious):
        far = link(folder / "far" / name, precious / target)
        links = [link(folder / name, far), far]
        return links, lambda: write(links[0])

    return row


def output_of_hdf5(folder, precious):
    write_tables(precious / "new.h5", [])
    return output(lambda path: write_tables(path, []), target="new.h5")(folder, precious)


def key_file_half_written(folder, precious):
    links = [link(folder / "clients.toml.00000000.new", precious / "notes.txt")]
    return links, lambda: toml_files.write_text(folder / "clients.toml", "new")


def socket_file(target):
    def row(folder, precious):
        links = [link(folder / "s", precious / target)]

        def act():
            with contextlib.chdir(folder), zmq.Context() as context:
                sockets.close_router(sockets.bind_router(context, "ipc://s", mandatory=False))

        return links, act

    return row


def spooled(folder, precious):
    (folder / "spool").mkdir()
    links = [link(folder / "spool" / f"{1:016x}-00000001.pwrd", precious / "notes.txt")]

    def act():
        disk = spool.SpoolDirectory(folder / "spool")
        for name in disk.names():
            disk.remove(name)
        disk.release()

    return links, act


def new_segment(folder, precious):
    (folder / "spool").mkdir()
    links = [link(folder / "spool" / f"{1:016x}-00000001.pwrd", precious / "notes.txt")]

    def act():
        disk = spool.SpoolDirectory(folder / "spool")
        file = disk.create(links[0].name)
        disk.write(file, b"frames")
        disk.close(file)
        disk.release()

    return links, act


ROWS = {
    "half-made journal": half_made_journal,
    "half-made run file": half_made_run_file,
    "new journal": new_journal,
    "journal, overwritten": journal_overwritten,
    "journal, finished": journal_finished,
    "journal, fetched into": journal_fetched_into,
    "journal, tidied": journal_tidied,
    "run file": run_file,
    "run file of an import": run_file_of_an_import,
    "run file of recover": recovered_file,
    "run file, half written": run_file_half_written,
    "packed journal": packed_journal,
    "packed journal, half written": packed_journal_half_written,
    "packed journal, tidied": packed_journal_tidied,
    "lock": inside("lock", "new", taken_over),
    "replaces": inside("replaces", "notes.txt", taken_over),
    "pieces of frames, emptied": inside(f"frames-{TOKEN}-000000.bin", "notes.txt", taken_over),
    "journal.bin": inside("journal.bin", "notes.txt", written),
    "reserve": inside("reserve", "notes.txt", written),
    "recorder.log": inside("recorder.log", "notes.txt", told),
    "powerd.log": inside("powerd.log", "new.log", served),
    "job.json": inside("job.json", "notes.txt", announced),
    "job.json, half written": inside("job.json.new", "notes.txt", announced),
    "mark segment, copied": inside(f"marks-{TOKEN}-000000.bin", "empty.txt", followed),
    "mark segment, new": inside(f"marks-{OWN_TOKEN}-000000.new", "new", MarkWriter),
    "names of phases, new": inside(f"marks-{OWN_TOKEN}.names", "notes.txt", MarkWriter),
    "piece of frames, new": inside(f"frames-{TOKEN}-000000.bin", "new", lambda made: journal.FrameFile(made, 1)),
    "directory of a local powerd": local_directory,
    "output": output(lambda path: shared.write(path, lambda partial: partial.write_text("new"), True)),
    "output of HDF5": output_of_hdf5,
    "output of pmlib": output(lambda path: write_pmlib(path, "new")),
    "picture": output(lambda path: save(Figure(), path), name="picture.png"),
    "key or calibration file": output(lambda path: toml_files.write_text(path, "new")),
    "key file, half written": key_file_half_written,
    "socket": socket_file("powerd"),
    "socket, to a new name": socket_file("new"),
    "segment of the spool": spooled,
    "segment of the spool, new": new_segment,
}


@pytest.fixture
def plant(folder, precious, foreseen, monkeypatch):
    """Puts the links of a row, runs it, and returns what has become of the files behind and of the links."""
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(folder))
    monkeypatch.setattr(local_powerd, "_LONGEST_BYTES", 4096)  # else it would be /tmp

    def run(row):
        links, act = row(folder, precious)
        before = contents(precious)
        targets = [os.readlink(path) for path in links]  # they are there when the program runs
        with contextlib.suppress(OSError, ConfigError, ValueError):  # that it says so is another test's
            act()
        stand = [os.path.islink(path) and os.readlink(path) for path in links]
        return contents(precious) == before, stand == targets

    return run


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_a_link_is_not_followed_and_stays(plant, row):
    assert plant(row) == (True, True)


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_without_the_guard_the_same_row_does_harm(plant, row, monkeypatch):
    monkeypatch.setattr(os, "O_NOFOLLOW", 0)
    monkeypatch.setattr(os, "O_EXCL", 0)
    monkeypatch.setattr(
        os, "mkdir", lambda path, *_, mkdir=os.mkdir, **__: None if os.path.isdir(path) else mkdir(path)
    )
    monkeypatch.setattr(ownership, "_foreign", lambda path, status: None)
    monkeypatch.setattr(ownership, "_is_plain", lambda status: True)
    for module in (toml_files, sockets):
        monkeypatch.setattr(module, "foreign", lambda path: None)
    monkeypatch.setattr(Path, "lstat", Path.stat)
    for name in ("S_ISREG", "S_ISSOCK"):
        monkeypatch.setattr(stat, name, lambda mode: True)
    assert plant(row) != (True, True)


@pytest.mark.parametrize(
    ("name", "options"),
    [("run.h5.0.999999.partial", []), ("run.h5.journal", ["--overwrite"]), ("run.h5", ["--overwrite"])],
)
def test_a_recording_beside_a_link(folder, precious, name, options):
    before = contents(precious)
    link(folder / name, precious / "a.h5" if name == "run.h5" else precious)
    command = [*COMMAND, "record", *options, "-o", "run.h5", "--", "true"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    assert contents(precious) == before
    assert (folder / name).is_symlink()
    if options:
        assert done.returncode == 2
        assert f"{name} is a link, and powerd follows none: choose another name\n" in done.stderr
        assert sorted(os.listdir(folder)) == sorted(["far", name])
    else:
        assert done.returncode == 0, done.stderr
        open_file(folder / "run.h5").close()


def test_what_a_user_has_put_beside_powerds_own_files_stays(folder, precious, monkeypatch):
    """Under a name of powerd's, without any link."""
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(folder))
    monkeypatch.setattr(local_powerd, "_LONGEST_BYTES", 4096)  # else it would be /tmp
    names = ["run.h5.journal", f"run.h5.journal.0.{dead_pid()}.partial", "powerd-local-abcdefgh"]
    for name in names:
        (folder / name / "sub").mkdir(parents=True)
        (folder / name / "sub" / "deep.txt").write_text("mine")
        (folder / name / "notes.txt").write_text("mine")
        for own in ("journal.bin", "powerd.toml"):
            (folder / name / own).write_text("powerd's")
    os.close(journal.claim(folder / "run.h5", overwrite=True)[1])
    directory, lock = local_powerd._private_directory()
    directory.rmdir()
    os.close(lock)
    for name in names:
        left = {path.name for path in (folder / name).rglob("*")}
        assert left >= {"sub", "deep.txt", "notes.txt"}
        gone = {"powerd.toml"} if name.startswith("powerd") else {"journal.bin"}
        assert not left & gone


def test_folders_on_the_way_and_links_of_the_users_own_are_followed(folder, precious):
    data = link(folder / "data", precious / "sub")
    small_run.make_run_file(data / "run.h5")
    assert (precious / "sub" / "run.h5").is_file()
    disk = spool.SpoolDirectory(data)
    disk.close(disk.create("segment"))
    assert disk.names()["segment"] == 0
    disk.release()
    for number, write in enumerate((lambda p: write_pmlib(p, "new"), lambda p: toml_files.write_text(p, "new"))):
        own = link(folder / f"own{number}", Path("far", "precious", f"file{number}"))
        write(own)
        write(own)
        assert own.is_symlink()
        assert (precious / f"file{number}").read_text() == "new"


# ---- several users ---------------------------------------------------------------------------------------------------

OWNER, OTHER = 4001, 4002
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root is several users")


@pytest.fixture
def shared_folder():
    """As /tmp: everybody may make files there, and nobody may move those of others."""
    with tempfile.TemporaryDirectory(prefix="shared-") as path:
        os.chmod(path, 0o1777)
        yield Path(path)


def give(path, uid):
    for one in [path, *path.rglob("*")] if path.is_dir() else [path]:
        os.chown(one, uid, uid, follow_symlinks=False)


def by(uid, act):
    """What ``act`` returns, or the error that it raises, as text, in a process of that user; and its error stream."""
    reading, writing = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            os.dup2(writing, 2)
            sys.stderr = os.fdopen(2, "w")
            os.setgid(uid)
            os.setuid(uid)
            print(act(), file=sys.stderr)
        except Exception as error:
            print(type(error).__name__, error, file=sys.stderr)
        finally:
            sys.stderr.flush()
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        text = file.read()
    os.waitpid(pid, 0)
    return text


def read(run):
    with recover.open_run(run) as file:
        return file.attrs["run_id"]


def leftover(run, uid):
    """The journal of a recording that was to overwrite a run and was killed, as earlier releases left them."""
    made = small_run.claim_journal(run, overwrite=True)
    frames = [encode(Message("run", {**small_run.RUN, "run_id": "zz"})), *small_run.whole()[1:]]
    (made / "journal.bin").write_bytes(b"".join(frames))
    give(made, uid)
    return made


def everything(path):
    return {p.name: (p.lstat().st_uid, p.read_bytes() if p.is_file() else b"") for p in path.rglob("*")}


@as_root
@pytest.mark.parametrize("uid", [OTHER, 0])
def test_a_record_over_another_users_run_is_refused_and_leaves_nothing(shared_folder, uid):
    run = small_run.make_run_file(shared_folder / "run.h5")
    give(run, OWNER)
    before = everything(shared_folder)
    text = by(uid, lambda: record_command(["true"], url=None, out=run, overwrite=True, quiet=True))
    assert text == f"RunFileError {run} belongs to another user ({OWNER}): choose another name\n"
    assert everything(shared_folder) == before


@as_root
@pytest.mark.parametrize("reader", [OWNER, 0, OTHER])
def test_another_users_leftover_journal_is_left_alone_and_the_run_read_as_it_is(shared_folder, reader):
    run = small_run.make_run_file(shared_folder / "run.h5")
    made = leftover(run, OTHER)
    os.chown(run, OWNER, OWNER)
    before = everything(shared_folder)
    text = by(reader, lambda: [read(run), read(run)])
    whose, user = (run, OWNER) if reader == OTHER else (made, OTHER)
    reason = f"{whose} belongs to another user ({user})"
    assert text == (
        f"powerd: {run} is read as it is, and the journal beside it is left alone: {reason}\n['ab', 'ab']\n"
    )
    assert everything(shared_folder) == before
    for overwrite in (False, True):
        refused = by(reader, lambda overwrite=overwrite: journal.claim(run, overwrite=overwrite))
        assert refused.startswith("RunFileError")
    assert "belongs to another user" in refused
    assert everything(shared_folder) == before


@as_root
def test_root_leaves_a_users_journal_to_the_user_who_finishes_it(shared_folder):
    run = small_run.make_run_file(shared_folder / "run.h5")
    leftover(run, OWNER)
    for path in shared_folder.iterdir():
        give(path, OWNER)
    assert "is left alone" in by(0, lambda: read(run))
    assert by(0, lambda: recover.needed_for(journal.journal_path(run))).startswith("['")
    assert by(OWNER, lambda: read(run)) == "zz\n"
    assert run.stat().st_uid == OWNER
    assert not journal.journal_path(run).exists()


@as_root
@pytest.mark.parametrize("mode", [0o755, 0o700])
def test_another_users_journal_without_a_run_file_is_never_named_empty(shared_folder, mode):
    run = shared_folder / "run.h5"
    made = small_run.make_journal(run, small_run.whole())
    (made / "journal.bin").chmod(0o600)  # as a recorder makes it
    made.chmod(mode)
    give(made, OWNER)
    before = everything(shared_folder)
    acts = [
        lambda: read(run),
        lambda: recover.recover(run, shared_folder / "new.h5"),
        lambda: journal.claim(run),
        lambda: journal.claim(run, overwrite=True),
        lambda: recover.needed_for(made),
        lambda: recover.discard(made),
    ]
    for act in acts:
        text = by(OTHER, act)
        assert "belongs to another user" in text or "cannot be read" in text or "cannot read" in text, text
        assert "can be deleted" not in text
        assert "holds nothing" not in text
    assert everything(shared_folder) == before
    assert by(0, lambda: recover.recover(run, shared_folder / "new.h5").readings) == "2400\n"


@as_root
def test_a_link_of_another_users_is_no_name_for_an_output(shared_folder):
    own = shared_folder / "notes.txt"
    own.write_text("mine")
    for name in ("table.csv", "keys.toml"):
        os.lchown(link(shared_folder / name, own), OTHER, OTHER)
    with pytest.raises(RunFileError, match=r"table\.csv is a link"):
        shared.write(shared_folder / "table.csv", lambda partial: partial.write_text("new"), True)
    with pytest.raises(ConfigError, match="a link"):
        toml_files.write_text(shared_folder / "keys.toml", "new")
    assert own.read_text() == "mine"


@as_root
def test_files_of_another_user_are_none_of_a_spools_sockets_or_keys(shared_folder):
    segment = f"{1:016x}-00000001.pwrd"
    disk = spool.SpoolDirectory(shared_folder)
    for name in (segment, segment.replace("01.", "02.")):
        disk.close(disk.create(name))
    os.chown(shared_folder / segment, OTHER, OTHER)
    assert list(disk.names()) == [segment.replace("01.", "02.")]
    disk.release()
    keys = shared_folder / "clients.toml"
    keys.write_text("theirs")
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(shared_folder / "s"))
    for path in (keys, shared_folder / "s"):
        os.chown(path, OTHER, OTHER)
    with pytest.raises(ConfigError, match=f"run this as {OTHER}"):
        toml_files.write_text(keys, "mine")
    with zmq.Context() as context, pytest.raises(ConfigError, match="in use"):
        sockets.bind_router(context, f"ipc://{shared_folder}/s", mandatory=False)
    assert keys.read_text() == "theirs"
    assert (shared_folder / "s").is_socket()


def test_a_file_of_another_uid_is_foreign_to_whoever_runs_this(folder, monkeypatch, capfd):
    run = small_run.make_run_file(folder / "run.h5")
    leftover(run, os.geteuid())
    before = everything(folder)
    monkeypatch.setattr(os, "geteuid", lambda: OTHER)
    monkeypatch.setattr(ownership, "own_uids", lambda folder: {OTHER})
    assert read(run) == "ab"
    assert "is left alone" in capfd.readouterr().err
    with pytest.raises(RunFileError, match="belongs to another user"):
        journal.claim(run, overwrite=True)
    assert everything(folder) == before


def test_where_a_file_system_gives_all_files_one_owner_they_are_everybodys(folder, monkeypatch):
    """NFS with all_squash, CIFS, sshfs: there the process is another user than its own new files."""
    run = small_run.make_run_file(folder / "run.h5")
    leftover(run, os.geteuid())
    monkeypatch.setattr(os, "geteuid", lambda: OTHER)
    assert read(run) == "zz"
