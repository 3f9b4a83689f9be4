"""Every command that writes a file, against everything that may lie at the name: links, files of others, files of the
user's, a full disk, a kill. A command or an option with a path that is new fails here until it says how to be tried."""

import argparse
import dataclasses
import os
import resource
import signal
import sys
import typing
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from make_campaign import one_run
from make_layers import write_run
from published_tables import ENERGIES, TIMES

from powerd_analytics import cli
from powerd_analytics.cli.app import app
from powerd_analytics.gpu_calibration.commands import _keep
from powerd_analytics.optimise.policy import Job, Target, TrainingSettings
from powerd_analytics.optimise.recurrences import Recurrences
from powerd_client.host import ownership
from powerd_client.pmlib.readings import _write as write_pmlib
from powerd_core.calibration import CalibrationFile, GpuFile
from powerd_core.errors import PowerdError
from powerd_core.gpu_physics import CARDS
from powerd_daemon import cli as powerd_cli
from powerd_daemon import sim_gpu
from powerd_daemon.commands import make_parser
from powerd_daemon.sources.ina.sensor_accuracy import save_calibration
from support.accounted import write_node
from support.small_run import make_journal, whole

MINE = b"the only copy of this"
OTHER = 4002
is_root = os.geteuid() == 0

# ---- which commands there are, and which of their options are paths -------------------------------------------------


def joules_paths(at=app, words=("joules",)):
    """The paths among the parameters of all commands, as ``joules tables --into``."""
    for name in at:
        if not name.startswith("-"):
            command, own = at[name], (*words, name)
            if command.default_command is None:
                yield from joules_paths(command, own)
            else:
                yield from (" ".join((*own, n)) for n in _path_options(command.default_command))


def _path_options(of):
    """The names of paths among a command's parameters, and in the dataclasses that are groups of them."""
    for name, hint in typing.get_type_hints(of).items():
        if dataclasses.is_dataclass(hint):
            yield from _path_options(hint)
        elif "Path" in str(hint):
            yield name


def powerd_paths(parser=None, words=("powerd",)):
    for action in (parser or make_parser())._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, sub in action.choices.items():
                yield from powerd_paths(sub, (*words, name))
        elif action.type is Path or action.metavar in ("DIR", "FILE", "PATH"):
            yield " ".join((*words, action.dest))


READ = {
    "run", "runs", "file", "calibration", "profile", "a", "b", "others", "folder", "phases", "operations",
    "table", "traces", "power", "config", "paths", "co2_by_hour",
}  # fmt: skip
"""Parameters that are read, whatever the command."""
OTHERWISE = {
    "joules optimise run runs": "a folder of run files, which are recorded as `joules record` does",
    "joules journal tidy paths": "deletes what is its own alone (tests/e2e/test_ownership.py, test_harms.py)",
    "joules jobs index": "read",
    "joules campaign plan into": "writes nothing", "joules campaign status into": "writes nothing",
    "joules campaign table into": "read", "joules campaign plot into": "read",
    "joules campaign report into": "read; the page has a name by itself (tests/e2e/test_harms.py)",
    "joules campaign resume into": "goes on as `campaign run` does, where one has begun",
    **{f"joules {name} keys": "read" for name in
       ("record", "top", "campaign run", "campaign resume", "campaign caps", "journal recover")},
    "powerd run spool": "a folder, in which no link is followed (tests/e2e/test_ownership.py)",
    **{f"powerd {name} keys": "read" for name in
       ("run", "check", "describe", "stats", "export", "keys list", "keys revoke")},
    "powerd export certfile": "read", "powerd export keyfile": "read",
    "powerd calibrate run": "read", "powerd identify run": "read",
    "powerd check directory": "writes nothing",
    "powerd deploy root": "a root, below which nothing that is there is written over (tests/deploy/test_deploy.py)",
}  # fmt: skip
"""Paths without a recipe of their own, with why."""


# ---- how they are asked to write one ----


def line(*words):
    """A command line with ``{there}`` for the folder of what is read and ``{out}`` for what is written; its status."""

    def ask(there, out, *more):
        program, *arguments = (str(w).format(there=there, out=out, folder=out.parent) for w in (*words, *more))
        if program == "powerd":
            return powerd_cli.main(arguments)
        with pytest.raises(SystemExit) as stopped:
            cli.main(arguments)
        return stopped.value.code

    return ask


def joules(text):
    text = text.replace("{v100}", "--traces {there}/traces --gpu v100").replace("{sim}", "--on sim:rtx6000")
    return line("joules", *text.split())


def keys(name, *words):
    return line("powerd", "keys", name, "--keys", "{folder}", *words)


def called(act):
    """What has no command line that can be tried without hardware."""

    def ask(there, out):
        try:
            act(out)
        except PowerdError as error:
            print(f"powerd: {error}", file=sys.stderr)
            return 2
        return 0

    return ask


@dataclass(frozen=True)
class Recipe:
    """How a command is brought to write a file or folder of this name."""

    name: str
    ask: Callable[..., int]
    """Of the folder of what is read, the name to be written, and further options; the status."""
    is_option: bool = True
    """Whether a file of the user's own is left alone without ``--overwrite``, and replaced with it. Without that, what
    is there is gone on with, or refused."""
    follows: bool = True
    """Whether a link of the user's own stays, and what it leads to is written."""
    is_new: bool = False
    """Whether it is made once, and never again."""
    heavy: bool = False
    """Whether to carry it out takes a process or seconds: only what is refused is tried."""

    def run(self, there, out, *, overwrite):
        return self.ask(there, out, *(("--overwrite",) if overwrite and self.is_option else ()))


def served(out):
    """`powerd sim-gpu`, which ends as soon as it listens."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sim_gpu, "_serve", lambda server, *_: server._listener.close() or 0)
        card = next(iter(CARDS))
        parsed = argparse.Namespace(cards=1, card=card, fault=[], seed=1, noise=0.0, socket=out, control=False)
        sim_gpu.run(parsed)


KEY = "a" * 40
RECIPES = {
    "joules record output": Recipe("new.h5", joules("record -o {out} -- true"), follows=False, heavy=True),
    "joules import output": Recipe("new.h5", joules("import {there}/power.csv -o {out}"), follows=False),
    "joules journal recover output": Recipe(
        "new.h5", joules("journal recover {there}/lost.h5 -o {out}"), follows=False
    ),
    "joules campaign run into": Recipe("new", joules("campaign run {there}/camp.toml {sim} --into {out}"), False),
    "joules campaign caps into": Recipe("new", joules("campaign caps {sim} --step 40 --into {out}"), False),
    "joules campaign fit output": Recipe("new.toml", joules("campaign fit {there}/sweep.csv -o {out}")),
    "joules campaign fit plot": Recipe("new.png", joules("campaign fit {there}/sweep.csv --plot {out}")),
    "joules campaign table output": Recipe("new.csv", joules("campaign table {there}/camp.toml -o {out}")),
    "joules campaign report output": Recipe("new.html", joules("campaign report {there}/camp.toml -o {out}")),
    "joules campaign plot output": Recipe("new.png", joules("campaign plot {there}/camp.toml --kind sweep -o {out}")),
    "joules tables output": Recipe("new.csv", joules("tables {there}/run.h5 --format csv -o {out}")),
    "joules tables into": Recipe("new.h5", joules("tables {there}/run.h5 --overwrite --into {out}"), False),
    "joules plot output": Recipe("new.png", joules("plot {there}/run.h5 --kind quality -o {out}")),
    "joules report output": Recipe("new.html", joules("report {there}/run.h5 -o {out}")),
    "joules trace output": Recipe("new.json", joules("trace {there}/run.h5 -o {out}")),
    "joules compare output": Recipe("new.csv", joules("compare {there}/run.h5 {there}/runs --format csv -o {out}")),
    "joules query index": Recipe("new.parquet", joules("query {there}/runs --again --jobs 1 --index {out}"), False),
    "joules query output": Recipe("new.csv", line("joules", "query", "{there}/runs", "select 1", "-o", "{out}")),
    "joules published totals output": Recipe(
        "new.csv", line("joules", "published", "totals", TIMES[0], ENERGIES[0], "-o", "{out}")
    ),
    "joules published pick output": Recipe(
        "new.txt", joules("published pick {there}/t.csv --reference cap=250 --metric e -o {out}")
    ),
    "joules optimise simulate output": Recipe(
        "new.txt", joules("optimise simulate {v100} --job squad --recurrences 2 -o {out}")
    ),
    "joules optimise suggest output": Recipe("new.json", joules("optimise suggest {v100} --format json -o {out}")),
    "joules optimise suggest plot": Recipe("new.png", joules("optimise suggest {v100} --plot {out}")),
    "joules optimise run state": Recipe(
        "s.sqlite", joules("optimise run --batch-sizes 1,2 --target 1 --state {out} -- true {{batch_size}}"), False,
        follows=False, heavy=True,
    ),
    "joules operations output": Recipe("new.csv", joules("operations caffenet --format csv -o {out}"), heavy=True),
    "joules jobs output": Recipe("new.csv", joules("jobs {there}/nodes --format csv -o {out}")),
    "powerd sim-gpu socket": Recipe("s", called(served), False, follows=False, heavy=True),
    "powerd pmlib directory": Recipe("new.csv", called(lambda out: write_pmlib(out, "new")), False),
    "powerd calibrate out": Recipe("new.toml", called(lambda out: save_calibration(out, CalibrationFile())), False),
    "powerd identify out": Recipe("gpus.toml", called(lambda out: _keep(GpuFile(), out)), False),
    "powerd keys server keys": Recipe("server.toml", keys("server"), False, is_new=True),
    "powerd keys client keys": Recipe("client.toml", keys("client"), False, is_new=True),
    "powerd keys allow keys": Recipe("clients.toml", keys("allow", "me", "a" * 40), False, is_new=True),
    "powerd keys trust keys": Recipe("boards.toml", keys("trust", "b:1", "a" * 40), False, is_new=True),
}  # fmt: skip
FOLDERS = {"joules campaign run into", "joules campaign caps into"}


def test_every_path_of_every_command_has_a_recipe_or_a_reason():
    every = [*joules_paths(), *powerd_paths()]
    assert len(every) > 60
    unknown = [p for p in every if p not in RECIPES and p not in OTHERWISE and p.split()[-1] not in READ]
    assert not unknown, f"say in RECIPES how these are brought to write, or in OTHERWISE why they need none: {unknown}"
    assert not (RECIPES.keys() | OTHERWISE.keys()) - set(every)


# ---- what may lie there ----


@pytest.fixture(scope="module")
def there(tmp_path_factory):
    """What the commands read."""
    pytest.importorskip("pyarrow")
    folder = tmp_path_factory.mktemp("there")
    (folder / "runs").mkdir()
    one_run(folder / "run.h5", iterations=3)
    one_run(folder / "runs" / "other.h5", iterations=3, scale=1.1)
    write_run(folder / "layers.h5")
    make_journal(folder / "lost.h5", whole(5))
    (folder / "power.csv").write_text("time_s,power_w\n" + "".join(f"{i},5\n" for i in range(20)))
    (folder / "t.csv").write_text("cap,energy_j,time_s\n250,100,10\n")
    (folder / "sweep.csv").write_text("power_cap_w,energy_j,time_s\n100,900,12\n150,1000,10.5\n260,1500,10\n")
    (folder / "camp.toml").write_text(
        '[campaign]\nname = "c"\ncommand = ["train"]\n[factors]\npower_cap_w = [150, 260]\n[repeats]\nmin = 1\n'
        '[simulation]\nnetwork = "resnet50"\niterations = 20\n'
    )
    (folder / "traces").symlink_to(Path(__file__).parents[2] / "data/zeus/traces")
    for text in ("campaign run {there}/camp.toml {sim}", "index {there}/runs"):
        assert joules(text)(folder, folder) == 0
    write_node(folder / "nodes" / "n1", "n1")
    job = Job("job", (1, 2), (), TrainingSettings(2), Target(0.9), 10, 1.0, 1.0)
    Recurrences(folder / "s.sqlite", job, "ours").new_recurrence()
    return folder


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder that all may write into, and beside it a folder of the user's with files that links lead to."""
    monkeypatch.chdir(tmp_path)
    far, shared = tmp_path / "far", tmp_path / "shared"
    for folder in (far / "folder", shared):
        folder.mkdir(parents=True)
    (far / "file").write_bytes(MINE)
    (far / "folder" / "file").write_bytes(MINE)
    shared.chmod(0o1777)
    return shared


def seen(folder):
    """What lies in a folder, links as links."""
    every = sorted(path for path in folder.rglob("*") if not path.name.startswith("powerd-sim-gpu-"))
    return {
        str(path.relative_to(folder)): os.readlink(path) if path.is_symlink() else path.is_file() and path.read_bytes()
        for path in every
    }


def to_a_link(place, out, target):
    """A link to a link: the second one may be anybody's."""
    (place / "second").symlink_to(target)
    out.symlink_to("second")


def link(place, out):
    to_a_link(place, out, "../far/folder" if out.name == "new" else "../far/file")


def dangling_link(place, out):
    to_a_link(place, out, "../far/none")


def strangers_link(place, out):
    out.symlink_to("../far/folder" if out.name == "new" else "../far/file")
    os.lchown(out, OTHER, OTHER)


def strangers_dangling_link(place, out):
    out.symlink_to("../far/none")
    os.lchown(out, OTHER, OTHER)


def others_file(place, out):
    if out.name == "new":
        out.mkdir()
    else:
        out.write_bytes(MINE)
    os.chown(out, OTHER, OTHER)


FOR_ROOT = {strangers_link, strangers_dangling_link, others_file}
LIES = [link, dangling_link, strangers_link, strangers_dangling_link, others_file]


@pytest.mark.parametrize("lies", LIES, ids=lambda lies: lies.__name__)
@pytest.mark.parametrize("path", RECIPES)
def test_what_is_not_the_users_own_is_refused_and_stays(there, place, capsys, path, lies):
    if lies in FOR_ROOT and not is_root:
        pytest.skip("only root is several users")
    recipe, out = RECIPES[path], place / RECIPES[path].name
    lies(place, out)
    before = seen(place.parent)
    assert recipe.run(there, out, overwrite=True) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1, said
    assert "Traceback" not in said
    assert seen(place.parent) == before


@pytest.mark.parametrize("path", RECIPES)
def test_a_file_of_the_users_own_is_never_replaced_unasked(there, place, capsys, path):
    recipe, out = RECIPES[path], place / RECIPES[path].name
    out.write_bytes(MINE)
    assert recipe.run(there, out, overwrite=False) == 2 or not (recipe.is_option or path in FOLDERS)
    if path not in UNASKED:
        assert out.read_bytes() == MINE
        assert list(place.iterdir()) == [out]


UNASKED = {
    "powerd pmlib directory": "a client names the file, as pmlib's own server lets it",
    "powerd calibrate out": "a calibration is replaced by the next one",
}


LIGHT = [path for path, recipe in RECIPES.items() if not recipe.heavy]
DRAWN = {path for path in LIGHT if RECIPES[path].name.endswith((".png", ".html"))} | {"joules tables into"}


def each(paths):
    """What draws takes half a second and more."""
    return [pytest.param(path, marks=pytest.mark.slow if path in DRAWN else ()) for path in paths]


@pytest.mark.parametrize("path", each(LIGHT))
def test_where_nothing_is_in_the_way_it_is_written(there, place, capsys, path):
    """Without this, a recipe that is always refused would pass all else here."""
    recipe, out = RECIPES[path], place / RECIPES[path].name
    if recipe.follows and path not in FOLDERS:
        out.symlink_to("../far/new")
    assert recipe.run(there, out, overwrite=False) == 0
    if path != "powerd sim-gpu socket":  # which goes with its program
        assert out.is_symlink() == (recipe.follows and path not in FOLDERS)
        assert out.is_dir() if path in FOLDERS else out.stat().st_size > 1
    assert [p for p in place.parent.rglob("*") if p.name.endswith((".partial", ".new"))] == []


# ---- a full disk, and a kill ----


def in_a_fork(act):
    """The status of what is done in a process of its own."""
    sys.stdout.flush()
    if (pid := os.fork()) == 0:
        status = 97
        try:
            status = act()
        finally:
            os._exit(status if isinstance(status, int) else 98)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


FILES = [path for path in LIGHT if path not in FOLDERS and RECIPES[path].name != "s"]


def lay(there, recipe, out):
    """A file that the command replaces, or goes on with."""
    if recipe.is_new:
        return {}
    if recipe.is_option:
        out.write_bytes(MINE)
    else:
        assert recipe.run(there, out, overwrite=False) == 0
    return seen(out.parent)


@pytest.mark.parametrize("path", each(FILES))
def test_on_a_full_disk_what_was_there_stays(there, place, path):
    recipe, out = RECIPES[path], place / RECIPES[path].name
    before = lay(there, recipe, out)

    def full():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        with open(os.devnull, "w") as nowhere:
            sys.stdout = sys.stderr = nowhere
            return recipe.run(there, out, overwrite=True)

    assert in_a_fork(full) == 2
    assert seen(place) == before


@pytest.mark.parametrize("path", each(FILES))
def test_a_kill_before_it_is_whole_leaves_what_was_there(there, place, capsys, path):
    if path.startswith("joules query"):
        pytest.importorskip("duckdb")  # what a forked process says of it is not seen here
    recipe, out = RECIPES[path], place / RECIPES[path].name
    before = lay(there, recipe, out)

    def killed(*_, **__):
        os.kill(os.getpid(), signal.SIGKILL)

    def dies():
        ownership.move = killed
        Path.replace = killed
        return recipe.run(there, out, overwrite=True)

    assert in_a_fork(dies) == -signal.SIGKILL
    assert {name: text for name, text in seen(place).items() if name in before} == before
    capsys.readouterr()
    left = [p for p in place.iterdir() if p.name not in before]
    assert left  # the kill came before the end
    if left[0].name.startswith("."):
        assert joules("tidy {out} --yes")(there, place) == 0
        assert str(left[0]) in capsys.readouterr().out
        assert seen(place) == before
