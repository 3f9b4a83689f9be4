"""The commands of `joules`, and what it says of itself without loading one: `--help` and `--version`."""

COMMANDS = {
    "Record": {
        "record": ("runs:record", "Record any command, and the phases that it marks."),
        "top": ("runs:top", "Show watts, joules and the current phase while a run goes on."),
        "campaign": ("campaign:campaign", "Measure many settings by one file, whatever drifts meanwhile."),
        "import": ("runs:import_", "Make a run file of a log that another meter or program wrote."),
    },
    "Look": {
        "tables": ("tables:tables", "Print joules, seconds and watts by phase."),
        "plot": ("plots:plot", "Draw a run, many runs or a table."),
        "report": ("plots:report", "Write one page about one or many runs."),
        "info": ("runs:info", "Say what a run file holds."),
        "jobs": ("jobs:jobs", "Print joules of a cluster's jobs, users and accounts."),
        "trace": ("plots:trace", "Put power and phases into a torch.profiler trace."),
    },
    "Compare": {
        "compare": ("tables:compare", "Say what differs between runs by more than chance."),
        "query": ("query:query", "Ask many runs in SQL, by an index that is made of them."),
        "published": ("published:app", "Sum and choose from tables that anybody published."),
    },
    "Choose": {"optimise": ("optimise:app", "Choose batch size and power limit of a training that recurs.")},
    "Other": {
        "operations": ("tables:operations", "Count a model's operations by layer."),
        "journal": ("journal:app", "Save what journals hold; delete those not needed."),
        "completion": ("app:completion", "Print a script with which the tab key completes commands."),
    },
}
"""Module, function and the first line of its docstring, by group in the order of the overview."""
FIRST = ("record", "top", "tables", "plot", "report", "compare", "campaign", "optimise", "info", "import")
"""What most people need: `joules --help` shows these."""
OLD_NAMES = {
    "clock": ("info", "--check"), "index": ("query",), "layers": ("tables", "--table", "layers"),
    "pick": ("published", "pick"), "recover": ("journal", "recover"), "tidy": ("journal", "tidy"),
    "totals": ("published", "totals"), "uncertainty": ("tables", "--table", "uncertainty"),
    "verify": ("info", "--check"),
}  # fmt: skip
"""What commands of 0.1.0 are called now; their names work for as long as 0.2 does."""
OLD_OPTIONS = {
    "index": {"-o": ("--index", ""), "--output": ("--index", "")},
    "layers": {"--model": ("--where", "model=")},
    "uncertainty": {"--phase": ("--where", "phase=")},
}
"""Their options that have another name now, and what their value begins with."""
OPTIONS = {
    "--help (-h)": "Display this message and exit.",
    "--help-all": "Display all commands.",
    "--version": "Display application version.",
}
ABOUT = """\
Joules for every phase of deep-learning training.

For example:

  joules record -o run.h5 -- python train.py

  joules tables run.h5

  joules plot run.h5 -o power.png"""


def version() -> str:
    """What `joules --version` prints."""
    from importlib.metadata import version as version_of

    return f"joules (powerd) {version_of('powerd')}"


def replace_old_names(arguments: list[str]) -> tuple[list[str], str]:
    """A command line with a name of 0.1.0 as it is written now, and a line that says so; else as it is, and nothing."""
    command, *rest = arguments
    if command not in OLD_NAMES:
        return arguments, ""
    given = iter([part for text in rest for part in (text.split("=", 1) if text.startswith("--") else [text])])
    options, words = OLD_OPTIONS.get(command, {}), list(OLD_NAMES[command])
    for word in given:
        name, prefix = options.get(word, (word, ""))
        words += [name] if word not in options else [name, prefix + next(given, "")]
    return words, f"joules {command} is called `joules {' '.join(OLD_NAMES[command])}` now: the old name goes with 0.3"


def overview() -> str:
    """What `joules --help` prints: the commands that most people need, within 24 lines."""
    lines = {name: text for commands in COMMANDS.values() for name, (_, text) in commands.items()}
    width = max(map(len, OPTIONS))
    shown = {name: lines[name] for name in FIRST} | OPTIONS
    about = ABOUT.partition("\n")[0]
    return "\n".join([
        "Usage: joules COMMAND", "", about, "", *(f"  {name:{width}}  {text}" for name, text in shown.items()), "",
        "For example:  joules record -o run.h5 -- python train.py", "              joules tables run.h5",
    ])  # fmt: skip


def whole_overview() -> str:
    """What `joules --help-all` prints: all commands, each with its line."""
    lines = ["Usage: joules COMMAND", "", ABOUT]
    for group, commands in COMMANDS.items():
        shown = {name: text for name, (_, text) in commands.items()} | (OPTIONS if group == "Other" else {})
        width = max(map(len, shown))
        lines += ["", f"{group}:", *(f"  {name:{width}}  {text}" for name, text in shown.items())]
    return "\n".join(lines)
