"""Whatever creates, cuts, moves, replaces or deletes a file goes through an opener: `powerd_client.host.ownership`, and
`powerd_daemon.ownership` for the board. This test reads all of the product and names what does not."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = (
    "powerd/powerd_core", "powerd/powerd_daemon", "powerd/powerd_control", "client/powerd_client",
    "analytics/powerd_analytics",
)  # fmt: skip
OPENERS = {"client/powerd_client/host/ownership.py", "powerd/powerd_daemon/ownership.py"}
OWN_NAME = "under a name that `ownership.whole_output` has given, in a folder that nobody else may enter"
OWN_FOLDER = "in a temporary folder of its own, that nobody else may enter"
BY_DESCRIPTOR = "by the descriptor of a folder that is the user's own, no link, and only new or own files in it"
ALLOWED = {
    "analytics/powerd_analytics/cli/start.py": {"os.open(os.devnull, os.O_WRONLY)": "a device"},
    "analytics/powerd_analytics/output/export.py": {
        "target.open('w', encoding='utf-8', newline='')": OWN_NAME,
        "pq.ParquetWriter(target, arrow_schema(columns))": OWN_NAME,
        "pq.write_table(arrow_table(table.columns, table.records(), about), path)": OWN_NAME,
        "writer.write_table(arrow_table(columns, rows))": "into the file of `ParquetWriter`",
        "shutil.copy2(path, partial)": OWN_NAME,
    },
    "analytics/powerd_analytics/campaign_views/campaign_page.py": {
        "figure.savefig(data, format='png', dpi=140)": "into memory",
    },
    "analytics/powerd_analytics/frame/index.py": {
        "duckdb.connect(':memory:', config={'python_enable_replacements': 'false', 'temp_directory': ''})": "in memory",
        "pq.write_table(rows.take(in_order), partial, compression='zstd', row_group_size=ROW_GROUP)": OWN_NAME,
    },
    "analytics/powerd_analytics/frame/job_totals.py": {
        "duckdb.connect(':memory:', config={'python_enable_replacements': 'false', 'temp_directory': ''})": "in memory",
    },
    "analytics/powerd_analytics/plots/style.py": {"figure.savefig(partial, dpi=140, metadata=metadata)": OWN_NAME},
    "analytics/powerd_analytics/run_tables/trace.py": {"stack.enter_context(whole_output(out)).open('wb')": OWN_NAME},
    "client/powerd_client/accounting/days.py": {
        "pq.ParquetWriter(partial, _SECONDS, column_encoding=_ENCODINGS, use_dictionary=words, **options)": OWN_NAME,
        "file.write_table(_table(_SECONDS, (second, (node,) * len(rows), *others)))": "into `ParquetWriter`'s file",
        "pq.write_table(table, partial, compression='zstd')": OWN_NAME,
    },
    "client/powerd_client/accounting/history.py": {
        "sqlite3.connect(f'{(folder / NAME).absolute().as_uri()}?mode=ro', uri=True)": "to read: `mode=ro` makes none",
    },
    "client/powerd_client/host/database.py": {
        "sqlite3.connect(path, timeout=WAIT_S, isolation_level=None)": "after `open_own`, which has made the file",
        "sqlite3.connect(':memory:')": "in memory",
    },
    "client/powerd_client/journals/journal.py": {
        "partial.rename(journal)": "a new folder, locked already; one that is not empty stays",
        "os.open(journal / 'lock', os.O_RDWR | os.O_NOFOLLOW)": "to ask who holds it; nothing is written",
        "os.open('lock', os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 384, dir_fd=folder)": BY_DESCRIPTOR,
        "os.link(packed, packed_path(run.with_name(f'{run.stem}-{number}{run.suffix}')))": "refuses what is there",
    },
    "client/powerd_client/energies/live_energy.py": {"h5py.File(path, 'w')": OWN_FOLDER},
    "client/powerd_client/runs/runfile.py": {
        "h5py.File(raw, 'w' if mode == 'x' else mode, libver=_LIBVER)": "over the descriptor of `open_own`",
    },
    "powerd/powerd_daemon/sources/joulescope.py": {"self._driver.open(path)": "a device on USB"},
    "powerd/powerd_daemon/sources/web.py": {"self._opener.open(request, timeout=self._timeout_s)": "an address"},
    "powerd/powerd_control/helper.py": {
        "path.unlink()": "root's own socket, which nobody answers at",
        "arguments.socket.unlink()": "the socket that it has bound itself",
        "os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 384)": "a lock, of which nothing is read",
    },
    "powerd/powerd_control/untested.py": {"path.write_text(text)": "sysfs"},
    "powerd/powerd_control/leases.py": {
        "os.unlink(entry, dir_fd=self._folder)": BY_DESCRIPTOR,
        "os.open(temporary, flags, 384, dir_fd=self._folder)": BY_DESCRIPTOR,
        "os.replace(temporary, f'{name}.json', src_dir_fd=self._folder, dst_dir_fd=self._folder)": BY_DESCRIPTOR,
    },
    "powerd/powerd_daemon/cli.py": {"os.open(os.devnull, os.O_WRONLY)": "a device"},
    "powerd/powerd_daemon/sim_gpu.py": {"(folder / 'control.log').open('wb')": OWN_FOLDER},
    "powerd/powerd_daemon/sources/port.py": {"os.open(path, os.O_RDWR | os.O_CLOEXEC)": "a device"},
    "powerd/powerd_daemon/spool.py": {
        "os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 384, dir_fd=self._lock)": BY_DESCRIPTOR,
        "os.unlink(name, dir_fd=self._lock)": BY_DESCRIPTOR,
    },
}  # fmt: skip
"""Calls, as `ast.unparse` writes them, with why they need no opener."""
DELETES = {"unlink", "rmtree", "removedirs"}
MAKES = {
    "write_text", "write_bytes", "savefig", "ParquetWriter", "write_table", "symlink_to", "hardlink_to", "truncate",
    "touch", "mkfifo", "mknod", "mkstemp", "NamedTemporaryFile", "to_parquet", "to_hdf", "to_excel", "memmap",
}  # fmt: skip
OF_OS = {"rename", "renames", "replace", "remove", "link", "symlink", "truncate"}
OF_SHUTIL = {"move", "copy", "copy2", "copyfile", "copytree", "rmtree", "copymode"}


def writes(call):
    """Whether a call may create, cut, move, replace or delete a file."""
    function = call.func
    owner, name = "", function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
    if isinstance(function, ast.Attribute):
        owner = ast.unparse(function.value)
    places, named = call.args, {word.arg: word.value for word in call.keywords}
    if owner == "os":
        is_read = name == "open" and "O_RDONLY" in ast.unparse(places[1])
        return name in OF_OS | DELETES | MAKES or (name == "open" and not is_read)
    if owner == "shutil":
        return name in OF_SHUTIL
    if owner in ("sqlite3", "duckdb"):
        return name == "connect"
    if owner == "h5py" and name == "File":
        return not (len(places) > 1 and ast.unparse(places[1]) == "'r'")
    if name == "open" and owner not in ("gzip", "mmap"):
        mode = named.get("mode", places[0 if owner else 1] if len(places) > (0 if owner else 1) else None)
        return not (mode is None or (isinstance(mode, ast.Constant) and set(str(mode.value)) <= set("rbt")))
    if name in ("rename", "replace") and owner:  # of a path: of a string, a frame or a moment there are other arguments
        return len(places) == 1 and not named
    return name in DELETES | (MAKES if owner else set())


WORDS = (
    *(f"{owner}.{name}(" for owner, names in (("os", OF_OS), ("shutil", OF_SHUTIL)) for name in names),
    *(f".{name}(" for name in (*DELETES, *MAKES, "rename")), "sqlite3.connect(", "duckdb.connect(", "h5py.File(",
)  # fmt: skip
OPENED, REPLACED = re.compile(r"\bopen\((?!\)|\"rb\"\))"), re.compile(r"\.replace\((?!\s*(\"[^\"]*\"|'[^']*'), )")
"""What a text has at least where it has such a call: to parse all of the product takes seconds."""


def calls(text):
    if not (any(word in text for word in WORDS) or OPENED.search(text) or REPLACED.search(text)):
        return []
    return [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call) and writes(node)]


def test_whatever_writes_goes_through_an_opener():
    beside, used = [], set()
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("*.py")):
            name = file.relative_to(ROOT).as_posix()
            if name in OPENERS:
                continue
            for call in calls(file.read_text(encoding="utf-8")):
                text = ast.unparse(call)
                used.add((name, text))
                if text not in ALLOWED.get(name, {}):
                    beside.append(f"{name}:{call.lineno}: {text}")
    assert not beside, "\n".join(["these open, move or delete files beside powerd's opener:", *beside])
    assert used == {(name, text) for name, texts in ALLOWED.items() for text in texts}  # none that is there no more


def test_the_look_for_it_sees_what_was_there_before():
    before = """
log.open("wb"); path.open(mode="a"); open(path, "x"); open(path, mode); path.open("r+")
os.open(path, os.O_RDWR | os.O_CREAT); path.rename(aside / path.name); new.replace(place); os.replace(a, b)
path.unlink(missing_ok=True); shutil.rmtree(folder); shutil.move(a, b); sqlite3.connect(path, timeout=1)
out.write_text(text); out.write_bytes(b""); h5py.File(path, "a"); h5py.File(path, "w"); h5py.File(path, "r+")
h5py.File(path)
"""
    assert len(calls(before)) == 19
    others = """
path.open(); path.open("rb"); open(path); text.replace("a", "b"); replace(row, a=1); frame.rename(columns=names)
os.open(path, os.O_RDONLY | os.O_NOFOLLOW); h5py.File(path, "r"); moment.replace(tzinfo=UTC); socket.connect(a)
"""
    assert calls(others) == []
