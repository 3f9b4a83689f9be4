"""What campaigns, optimisers, tables, pages and simulated GPUs once did to files that were not theirs."""

import json
import os
import signal
import sqlite3
import tempfile
from argparse import Namespace
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
from matplotlib.figure import Figure

from analytics.support.command import joules, refused
from powerd_analytics import plots
from powerd_analytics.campaign_views import campaign_page as report
from powerd_analytics.campaigns import executors
from powerd_analytics.campaigns.campaign_file import design_of
from powerd_analytics.campaigns.executors import Local
from powerd_analytics.campaigns.journal import Journal
from powerd_analytics.cli import shared
from powerd_analytics.optimise.policy import Job, Target, TrainingSettings
from powerd_analytics.optimise.recurrences import Recurrences
from powerd_analytics.output import export
from powerd_analytics.output.export import Column, make_table, read_table, write_tables
from powerd_analytics.output.text import MADE_BY
from powerd_analytics.plots import save
from powerd_client.host import ownership
from powerd_core.errors import ConfigError, RunFileError
from powerd_core.gpu_physics import CARDS
from powerd_daemon import sim_gpu

CAMPAIGN = """
[campaign]
name = "camp"
command = ["python", "train.py"]
[factors]
power_cap_w = [150, 260]
[repeats]
min = 1
[simulation]
network = "resnet50"
iterations = 50
"""
ON = ("--on", "sim:rtx6000")
DATA = b"the only copy of thirty numbers, without any end of a line"


@pytest.fixture
def camp(tmp_path, monkeypatch):
    """The folder of a campaign, and beside it a file of the user's that something in it may lead to."""
    monkeypatch.chdir(tmp_path)
    Path("camp.toml").write_text(CAMPAIGN)
    Path("data.bin").write_bytes(DATA)
    Path("camp").mkdir()
    return Path("camp")


# ---- 1: a journal that is a link, or no journal ----

RUN = ("campaign", "run", "camp.toml", *ON)
CAPS = ("campaign", "caps", "--into", "camp", "--adaptive", *ON)


@pytest.mark.parametrize("asked", [RUN, CAPS], ids=["run", "caps"])
@pytest.mark.parametrize("target", ["data.bin", "new.txt"])
@pytest.mark.parametrize("name", ["campaign.jsonl", "campaign.lock"])
def test_a_journal_or_lock_that_is_a_link_is_refused(camp, capsys, asked, target, name):
    (camp / name).symlink_to(Path("..", target))
    line = refused(capsys, *asked)
    assert f"{name} is a link, and powerd follows none" in line
    assert Path("data.bin").read_bytes() == DATA
    assert not Path("new.txt").exists()


@pytest.mark.parametrize("text", [DATA, b"a\nlast line", b'{"event": 3}\n{"torn', b'[1]\n{"torn', b"{}\n\n\ntorn"])
def test_what_is_no_journal_is_not_cut(camp, capsys, text):
    (camp / "campaign.jsonl").write_bytes(text)
    refused(capsys, *RUN)
    assert (camp / "campaign.jsonl").read_bytes() == text


def test_a_torn_line_of_our_own_is_cut_even_where_it_is_the_first(camp, capsys):
    for torn in ('{"eve', '{"event": "begun", "finger'):
        (camp / "campaign.jsonl").write_text(torn)
        assert joules(capsys, *RUN)[0] == 0
        lines = (camp / "campaign.jsonl").read_text().splitlines()
        assert json.loads(lines[0])["event"] == "begun"
        (camp / "campaign.jsonl").unlink()


as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root is several users")
OTHER = 4002


@as_root
@pytest.mark.parametrize("name", ["", "campaign.jsonl", "campaign.7.jsonl", "campaign.lock", "runs"])
def test_another_users_part_of_a_campaign_is_refused(camp, name):
    with Journal(camp) as journal:
        journal.write("begun", fingerprint="x", levels={})
    (camp / "runs").mkdir()
    (camp / "campaign.7.jsonl").write_bytes((camp / "campaign.jsonl").read_bytes())
    os.chown(camp / name, OTHER, OTHER)
    with pytest.raises(RunFileError, match="belongs to another user"), Journal(camp):
        ownership.make_folder(camp / "runs")


# ---- 2: a log that is a link ----


class Started:
    """What `subprocess.Popen` gives, of a command that does nothing."""

    def __init__(self, *_, stdout, **__):
        os.write(stdout.fileno(), b"said\n")

    def wait(self):
        return 1


def test_a_log_is_a_new_file(camp, monkeypatch):
    monkeypatch.setattr(executors.subprocess, "Popen", Started)
    design = design_of({"campaign": {"name": "c", "command": ["train", "{n}"]}, "factors": {"n": [1]}})
    item = design.block(0, design.cells())[0]
    for name in ("link", "file"):
        (camp / "runs").mkdir(exist_ok=True)
        log = camp / "runs" / f"{name}.log"
        log.symlink_to("../../data.bin") if name == "link" else log.write_bytes(DATA)
        with pytest.raises(OSError, match=r"\.log"):
            Local(design).run(item, 1, log.with_suffix(".h5"))
        assert log.read_bytes() == DATA
    Local(design).run(item, 1, camp / "runs" / "new.h5")
    assert (camp / "runs" / "new.log").read_bytes() == b"said\n"


@pytest.mark.parametrize("name", ["runs", "discarded"])
def test_a_link_in_the_place_of_a_folder_is_refused(camp, capsys, name):
    Path("far").mkdir()
    run = "0123456789-0-1.h5"
    started(camp, f"runs/{run}")
    (camp / name).symlink_to("../far")
    (camp / "runs").mkdir(exist_ok=True)
    (camp / "runs" / run).write_bytes(DATA)
    before = (camp / "campaign.jsonl").read_bytes()
    assert f"{name} is a link" in refused(capsys, "campaign", "resume", "camp.toml", *ON)
    assert [path.name for path in Path("far").iterdir()] == [run] * (name == "runs")
    assert (camp / "runs" / run).read_bytes() == DATA
    assert (camp / "campaign.jsonl").read_bytes() == before


# ---- 3: what a journal names ----


def started(camp, name):
    """A campaign whose journal says that a run of this name began."""
    made = Path("made")
    with pytest.MonkeyPatch.context() as patch, Journal(made) as journal:
        patch.setattr(journal, "_is_synced", False)
        from powerd_analytics.campaigns.runner import begin
        from powerd_analytics.campaigns.simulated import Simulated
        from powerd_analytics.cli.campaign import read_design

        design = read_design(Path("camp.toml"))
        begin(design, Simulated.named(design, ON[1]), journal)
    line = {"event": "started", "item": "0123456789-0", "cell": "0123456789", "attempt": 1, "file": name}
    text = (made / "campaign.jsonl").read_text() + json.dumps(line) + "\n"
    (camp / "campaign.jsonl").write_text(text)
    return camp / "campaign.jsonl"


@pytest.mark.parametrize("name", ["{here}/thesis.h5", "../thesis.h5", "runs/../../thesis.h5", "thesis.h5", "runs/a.h5"])
def test_a_journal_moves_nothing_but_runs_of_the_campaign(camp, capsys, name):
    for mine in ("thesis.h5", "thesis.log", "camp/thesis.h5"):
        Path(mine).write_bytes(DATA)
    started(camp, name.format(here=Path.cwd()))
    assert "is no name of a run file" in refused(capsys, "campaign", "resume", "camp.toml", *ON)
    assert [Path(mine).read_bytes() for mine in ("thesis.h5", "thesis.log", "camp/thesis.h5")] == [DATA] * 3
    assert not (camp / "discarded").exists()


def test_what_is_set_aside_takes_a_free_name(camp, capsys):
    name = "0123456789-0-1"
    started(camp, f"runs/{name}.h5")
    for folder in ("runs", "discarded"):
        (camp / folder / f"{name}.h5.journal").mkdir(parents=True)
        for mine in (f"{name}.h5", f"{name}.log", f"{name}.h5.journal/notes.txt"):
            (camp / folder / mine).write_text(f"of {folder}")
    assert joules(capsys, "campaign", "resume", "camp.toml", *ON)[0] == 0
    aside = {p.relative_to(camp / "discarded").as_posix(): p.read_text() for p in camp.rglob("*") if p.is_file()
             and "discarded" in p.parts}  # fmt: skip
    assert aside == {
        f"{name}.h5": "of discarded", f"{name}.log": "of discarded", f"{name}.h5.journal/notes.txt": "of discarded",
        f"{name}-2.h5": "of runs", f"{name}-2.log": "of runs", f"{name}-2.h5.journal/notes.txt": "of runs",
    }  # fmt: skip


# ---- 4 and 16: the state of an optimiser ----

JOB = Job("job", (16, 32), (), TrainingSettings(32), Target(0.9), 10, 1.0, 1.0)
OPTIMISE = ("optimise", "run", "--batch-sizes", "32,64", "--target", "0.9")
TRAINING = ("--", "true", "{batch_size}")


def database(path, *statements):
    with closing(sqlite3.connect(path, isolation_level=None)) as rows:
        for statement in statements:
            rows.execute(statement)
    return path.read_bytes()


@pytest.mark.parametrize(
    "statements",
    [
        ["CREATE TABLE notes (text TEXT)"],
        ["CREATE TABLE notes (text TEXT)", "CREATE TABLE steps (n INTEGER)"],
        ["PRAGMA application_id = 7"],
        ["CREATE TABLE trials (number INTEGER)"],
    ],
)
def test_a_database_of_another_program_is_refused_unchanged(tmp_path, capsys, statements):
    path = tmp_path / "notes.db"
    before = database(path, *statements)
    assert "is the database of another program" in refused(capsys, *OPTIMISE, "--state", path, *TRAINING)
    assert path.read_bytes() == before


@pytest.mark.parametrize("name", ["s.sqlite", "s.sqlite-journal", "s.sqlite-wal"])
def test_a_state_that_is_a_link_is_refused(tmp_path, capsys, name):
    mine = tmp_path / "notes.db"
    before = database(mine, "CREATE TABLE notes (text TEXT)")
    for target in (mine, tmp_path / "new.db"):
        (tmp_path / name).symlink_to(target)
        line = refused(capsys, *OPTIMISE, "--state", tmp_path / "s.sqlite", *TRAINING)
        assert f"{name} is a link" in line
        (tmp_path / name).unlink()
    assert mine.read_bytes() == before
    assert not (tmp_path / "new.db").exists()


@as_root
def test_another_users_state_is_not_taken(tmp_path):
    path = tmp_path / "optimise.sqlite"
    Recurrences(path, JOB, "ours").new_recurrence()
    os.chown(path, OTHER, OTHER)
    for act in (Recurrences(path, JOB, "ours").new_recurrence,):
        with pytest.raises(ConfigError, match="belongs to another user"):
            act()


def test_a_state_of_before_is_taken_and_gets_our_number(tmp_path):
    path = tmp_path / "optimise.sqlite"
    assert Recurrences(path, JOB, "ours").new_recurrence() == 0
    database(path, "PRAGMA application_id = 0", "DROP TABLE steps")
    assert Recurrences(path, JOB, "ours").new_recurrence() == 1
    with closing(sqlite3.connect(path)) as rows:
        assert rows.execute("PRAGMA application_id").fetchone()[0].to_bytes(4) == b"powd"


@pytest.mark.parametrize("name", ["../evil", "a/b", "x\033[31m", "", ".hidden", "-x", "a\nb"])
def test_a_job_has_a_name(tmp_path, capsys, name):
    line = refused(capsys, *OPTIMISE, f"--job={name}", "--state", tmp_path / "s.sqlite", *TRAINING)
    assert "--job" in line
    assert "\033" not in line
    assert list(tmp_path.iterdir()) == []


def test_a_run_of_before_keeps_its_name(tmp_path, capsys, monkeypatch):
    from powerd_analytics.optimise import watched_training as live

    asked = []
    monkeypatch.setattr(live, "record_command", lambda *_, out, **__: asked.append(out) or 1)
    monkeypatch.setattr(live._Watch, "whole", lambda *_: [])
    (tmp_path / "job-1.h5").write_bytes(DATA)
    code, _, said = joules(capsys, *OPTIMISE, "--state", tmp_path / "s.sqlite", *TRAINING)
    assert (code, "overwrite" in said) == (2, False)
    assert asked == [tmp_path / "job-1-2.h5"]
    assert (tmp_path / "job-1.h5").read_bytes() == DATA


# ---- 5: tables in a file of the user's ----

TABLE = make_table("cells", "Cells", (Column("n", "integer"),), [(1,), (2,)])


@pytest.mark.parametrize("link", [h5py.ExternalLink("other.h5", "/"), h5py.SoftLink("/mine")])
def test_a_file_whose_tables_are_elsewhere_stays_as_it_is(tmp_path, link):
    path = tmp_path / "l.h5"
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["far"] = np.arange(9)
    write_tables(path, [])
    with h5py.File(path, "r+") as file:
        file["mine/numbers"] = np.arange(1000)
        file["tables"] = link
    before = path.read_bytes(), (tmp_path / "other.h5").read_bytes()
    with pytest.raises(RunFileError, match="link to elsewhere"):
        write_tables(path, [TABLE])
    assert (path.read_bytes(), (tmp_path / "other.h5").read_bytes()) == before
    with h5py.File(path) as file:
        assert file["mine/numbers"][-1] == 999


def test_tables_that_cannot_be_read_again_replace_nothing(tmp_path, monkeypatch):
    path = tmp_path / "t.h5"
    write_tables(path, [])
    before = path.read_bytes()
    monkeypatch.setattr(export, "_add", lambda _, tables, table, __: tables.create_group("others"))
    with pytest.raises(RunFileError):
        write_tables(path, [TABLE])
    monkeypatch.setattr(
        export, "_add", lambda _, tables, table, __: tables.create_group("cells").create_dataset("n", data=[1])
    )
    with pytest.raises(RunFileError):
        write_tables(path, [TABLE])
    assert path.read_bytes() == before


@pytest.mark.parametrize("is_there", [True, False])
def test_two_writers_into_one_file_lose_no_table(tmp_path, monkeypatch, is_there):
    path, met = tmp_path / "t.h5", []
    if is_there:
        write_tables(path, [])
    add = export._add

    def other_one_first(where, tables, table, overwrite):
        if not met:
            met.append(table.name)
            write_tables(path, [make_table("other", "", (Column("n", "integer"),), [(3,)])])
        add(where, tables, table, overwrite)

    monkeypatch.setattr(export, "_add", other_one_first)
    write_tables(path, [TABLE])
    assert met == ["cells"]
    assert [read_table(path, name)["n"].tolist() for name in ("cells", "other")] == [[1, 2], [3]]


# ---- 13: the socket of simulated GPUs ----


@pytest.mark.parametrize("what", ["file", "link", "socket of another", "own"])
def test_sim_gpu_takes_away_its_own_socket_alone(tmp_path, monkeypatch, what):
    path, mine = Path(tempfile.mkdtemp(dir="/tmp"), "gpu"), tmp_path / "mine"
    mine.write_bytes(DATA)

    def serve(server, environment, folder, arguments):
        assert path.is_socket()
        server._listener.close()
        if what != "own":
            path.unlink()
        if what == "file":
            path.write_bytes(DATA)
        elif what == "link":
            path.symlink_to(mine)
        elif what == "socket of another":
            sim_gpu._listen(path).close()
        return 0

    monkeypatch.setattr(sim_gpu, "_serve", serve)
    card = next(iter(CARDS))
    assert sim_gpu.run(Namespace(cards=1, card=card, fault=[], seed=1, noise=0.0, socket=path, control=False)) == 0
    assert os.path.lexists(path) == (what != "own")
    assert mine.read_bytes() == DATA


# ---- 14: pages and pictures that a person made ----


@pytest.mark.parametrize("ending", ["png", "pdf", "svg"])
def test_a_picture_says_that_powerd_made_it(tmp_path, ending):
    path = tmp_path / f"picture.{ending}"
    save(Figure(), path)
    shared.refuse_by_hand(path, overwrite=False)
    path.write_bytes(path.read_bytes().replace(MADE_BY.encode(), b"Made by a person"))
    with pytest.raises(RunFileError, match="name another file with -o, or give --overwrite"):
        shared.refuse_by_hand(path, overwrite=False)
    shared.refuse_by_hand(path, overwrite=True)


@pytest.mark.parametrize(("name", "asked"), [("report.html", ["report"]), ("sweep.png", ["plot", "--kind", "sweep"])])
def test_a_page_or_picture_by_hand_is_not_replaced(camp, capsys, monkeypatch, name, asked):
    monkeypatch.setattr(plots, "save", lambda _, out: save(Figure(), out))  # an empty picture is drawn at once
    monkeypatch.setattr(report, "pictures", lambda *_: [SimpleNamespace(name="sweep", title="", draw=Figure)])
    monkeypatch.setattr(report, "_png", lambda _: "")
    joules(capsys, *RUN)
    asked = ("campaign", asked[0], "camp.toml", *asked[1:])
    (camp / name).write_bytes(DATA)
    assert f"{name} was not made by this command" in refused(capsys, *asked)
    assert (camp / name).read_bytes() == DATA
    assert joules(capsys, *asked, "--overwrite")[0] == 0
    first = (camp / name).stat().st_ino
    assert joules(capsys, *asked)[0] == 0  # what it made itself it makes again
    assert (camp / name).stat().st_ino != first


# ---- 15: what kills leave ----


@pytest.fixture
def killed(tmp_path):
    """The folder in which a program that was killed was writing ``run.csv``, beside one in which another one writes."""

    def dies(*_, **__):
        os.kill(os.getpid(), signal.SIGKILL)

    if (pid := os.fork()) == 0:
        ownership.move = dies
        try:
            ownership.whole_text(tmp_path / "run.csv", "half")
        finally:
            os._exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    return left


@pytest.mark.parametrize("named", ["", "run.h5"])
def test_tidy_knows_what_kills_leave_of_outputs(killed, capsys, named):
    folder = killed.parent
    (folder / "run.h5").touch()
    with ownership.whole_output(folder / "run.json") as partial:
        partial.write_text("going on")
        code, out, _ = joules(capsys, "journal", "tidy", folder / named)
        assert (code, out.count("\n")) == (0, 1)
        assert out.startswith(f"{killed}  0.0 MB  not needed")
        assert joules(capsys, "journal", "tidy", folder / named, "--yes")[0] == 0
        assert partial.is_file()
    assert sorted(path.name for path in folder.iterdir()) == ["run.h5", "run.json"]


def test_tidy_leaves_what_somebody_put_into_such_a_folder(killed, capsys):
    (killed / "notes.txt").write_bytes(DATA)
    assert "not empty" in refused(capsys, "journal", "tidy", killed.parent, "--yes").lower()
    assert (killed / "notes.txt").read_bytes() == DATA
