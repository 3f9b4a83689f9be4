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
        "plot": ("plots:plot", "Draw a run, a campaign or a table."),
        "report": ("plots:report", "Write one page about one or many runs."),
        "info": ("runs:info", "Say what a run file holds."),
        "jobs": ("jobs:jobs", "Print joules of a cluster's jobs, users and accounts."),
        "trace": ("plots:trace", "Put power and phases into a torch.profiler trace."),
    },
    "Compare": {
        "compare": ("tables:compare", "Say what differs between runs by more than chance."),
        "index": ("tables:index", "Write a Parquet index of a campaign of runs."),
        "query": ("tables:query", "Ask an index in SQL, without opening a run file."),
        "totals": ("tables:totals", "Sum published tables of phases into whole trainings."),
        "pick": ("tables:pick", "Print the best row of a table of configurations."),
    },
    "Choose": {"optimise": ("optimise:app", "Choose batch size and power limit of a training that recurs.")},
    "Models": {
        "layers": ("tables:layers", "Print joules, and GFLOPS/W, of every layer."),
        "operations": ("tables:operations", "Count a model's operations by layer."),
    },
    "Trust": {
        "uncertainty": ("tables:uncertainty", "Say what the uncertainty of each energy comes from."),
        "clock": ("runs:clock", "Say how the clocks went, and how sure their times are."),
        "verify": ("runs:verify", "Check everything that must hold in a run file."),
    },
    "Keep": {
        "recover": ("runs:recover", "Save what can be read of a journal into a new file."),
        "tidy": ("runs:tidy", "List what runs have left beside them; delete what is not needed."),
    },
    "Other": {"completion": ("app:completion", "Print a script with which the tab key completes commands.")},
}
"""Module, function and the first line of its docstring, by group in the order of the overview."""
FIRST = ("record", "top", "tables", "plot", "report", "compare", "campaign", "optimise", "info", "import")
"""What most people need: `joules --help` shows these."""
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
