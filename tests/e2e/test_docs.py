"""What the pages show exists: commands, their options, files, headings behind links, benchmarks and their options."""

import argparse
import re
import shlex
import tomllib
from pathlib import Path

import bench_trainings
import pytest

from powerd_analytics.cli.app import app
from powerd_daemon.commands import make_parser

ROOT = Path(__file__).parents[2]
RUNNER = ROOT / "benchmarks/bench_trainings.py"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "firmware/README.md"]
PAGES += [ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"]
NAMED = [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PAGES]

OPTION = re.compile(r"(?<![\w-])(--[a-z][a-z0-9-]*)")
COMMAND = re.compile(r"(?<![\w./-])(joules|powerd) ([a-z][a-z-]*)([^`\n|;&#<]*)")
SCRIPT = re.compile(r"((?:benchmarks|examples)/[\w/]+\.py)([^`\n|;&#<]*)")
LINK = re.compile(r"\]\(([^)\s]+)\)")
HOSTED = ("http://", "https://", "mailto:")
PATH = re.compile(r"""(?:^|(?<=[\s"'`=(>:,\[|]))(?:file://)?(/[A-Za-z][\w.+-]*(?:/[\w.+-]+)+)""", re.MULTILINE)
EVERYWHERE = r"/(bin|boot|dev|etc|proc|run|sys|tmp|usr|var)/"
"""Folders of any Linux."""
OF_THE_PAGES = r"/(opt/powerd|home/me|home/lab|mnt/payload)/"
"""Where the pages install, whom they call by example, and what the board under QEMU has."""
OF_RUN_FILES = r"/(phases|events|gaps|tables)/"
"""Groups of HDF5."""


def joules_options(command, within=app):
    """The options of a command of `joules`, of a group's commands together, or None for a word that is no command."""
    try:
        named = within[command]
    except KeyError:
        return None
    if named.default_command is None:
        inner = [joules_options(name, named) for name in named if not name.startswith("-")]
        return {option for options in inner for option in options}
    arguments = named.assemble_argument_collection()
    return {name for argument in arguments for name in argument.names} | {"--help", "--version"}


def powerd_options(words):
    """The options of `powerd` with these words, and whether they name a command."""
    parser, path = make_parser(), []
    for word in words:
        choices = next((a.choices for a in parser._actions if isinstance(a, argparse._SubParsersAction)), {})
        if word not in choices:
            break
        parser, path = choices[word], [*path, word]
    return path, set(parser._option_string_actions)


def code_of(page):
    """Lines of code blocks, and what stands between backticks: text is not searched for commands."""
    text = re.sub(r"\\\n\s*", " ", page.read_text(encoding="utf-8"))
    fenced = re.findall(r"^```[^\n]*\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    rest = re.sub(r"^```[^\n]*\n.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    indented = re.findall(r"^ {4,}(.*)$", rest, re.MULTILINE)
    return [*(line for block in fenced for line in block.splitlines()), *indented, *re.findall(r"`([^`\n]+)`", rest)]


def own_options(text):
    """Those before what the command runs or is given in quotes."""
    before = re.split(r"\s--\s", re.sub(r"\"[^\"]*\"|'[^']*'|\s#.*", " ", text))[0]
    return OPTION.findall(before)


@pytest.mark.parametrize("page", NAMED)
def test_commands_and_their_options_exist(page):
    wrong, text = [], page.read_text(encoding="utf-8")
    for line in code_of(page):
        for program, command, rest in COMMAND.findall(re.sub(r"\s#.*", "", line)):
            if program == "joules":
                known = joules_options(command)
            else:
                path, known = powerd_options([command, *rest.split()])
                known = known if path else None
            if known is None:
                if line.startswith("$ "):  # elsewhere it may be a sentence that a program prints
                    wrong.append(f"{program} {command}: no command, in: {line}")
            else:
                shown = [o for o in own_options(rest) if not re.search(f"nknown option:? {o}", text)]
                wrong += [f"{option} in: {line}" for option in shown if option not in known]
    assert not wrong


def wrong_of_case(words):
    """What `bench_trainings` does not know of these words: its cases have options of their own."""
    if not words or words[0].startswith("-"):
        return [f"{RUNNER.name} {word}" for word in words]
    if words[0] not in bench_trainings.CASES:
        return [f"{RUNNER.name}: {words[0]} is no case"]
    case, _ = bench_trainings.load(words[0])
    known = [f"--{name}".replace("_", "-") for name in case.options]
    return [f"{RUNNER.name} {words[0]} {o}" for o in own_options(" ".join(words)) if o not in known]


def test_a_case_that_does_not_exist_and_its_options_are_found():
    assert wrong_of_case(["random", "--runs", "3", "--seed", "1"]) == []
    assert wrong_of_case(["random", "--stretches", "3"]) == [f"{RUNNER.name} random --stretches"]
    assert wrong_of_case(["truth"]) == [f"{RUNNER.name}: truth is no case"]


@pytest.mark.parametrize("page", NAMED)
def test_benchmarks_and_examples_have_the_options_shown(page):
    wrong = []
    for line in code_of(page):
        for script, rest in SCRIPT.findall(line):
            path = ROOT / script
            if not path.is_file():
                wrong.append(f"{script} does not exist")
                continue
            if path == RUNNER:
                wrong += wrong_of_case(rest.split())
                continue
            source = path.read_text(encoding="utf-8")
            by_default = re.findall(r"\b(\w+)=", " ".join(re.findall(r"options\(__doc__, .*", source)))
            declared = [f"--{name}".replace("_", "-") for name in by_default]
            wrong += [f"{script} {o}" for o in own_options(rest) if f'"{o}"' not in source and o not in declared]
    assert not wrong


def slug(heading):
    """As GitHub makes anchors."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("page", NAMED)
def test_links_lead_somewhere(page):
    wrong = []
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        if target.startswith(HOSTED):
            continue
        name, _, anchor = target.partition("#")
        path = page.parent / name if name else page
        if not path.exists():
            wrong.append(target)
        elif anchor and path.suffix == ".md":
            headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
            wrong += [] if anchor in map(slug, headings) else [target]
    assert not wrong


def test_every_page_is_named_in_another():
    texts = {page: page.read_text(encoding="utf-8") for page in PAGES}
    alone = [
        str(page.relative_to(ROOT))
        for page in PAGES[1:]
        if not any(page.name in text for other, text in texts.items() if other != page)
    ]
    assert not alone


def test_the_version_is_that_of_the_package_everywhere():
    """pyproject.toml has it; what is cited and what has changed must not lag behind."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    cited = re.search(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE)
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert (cited[1], newest[1]) == (version, version)


def test_the_pages_stay_short():
    """A newcomer reads the README in minutes; results are CSV, with a short page each."""
    words = {page: len(page.read_text(encoding="utf-8").split()) for page in PAGES if page.suffix == ".md"}
    docs = [page for page in words if page.is_relative_to(ROOT / "docs") and "results" not in page.parts]
    assert words[ROOT / "README.md"] < 900
    assert sum(words[page] for page in docs) < 25_500
    assert sum(words[page] for page in words if "results" in page.parts) < 5_500


def test_pages_that_the_code_names_exist():
    folders = ("powerd", "client", "analytics", "firmware", "examples", "benchmarks", "tests")
    code = [
        path for folder in folders for suffix in ("py", "toml", "md") for path in (ROOT / folder).rglob(f"*.{suffix}")
    ]
    named = {
        (path, name) for path in code for name in re.findall(r"docs/[\w/-]+\.md", path.read_text(encoding="utf-8"))
    }
    assert len(named) > 30
    assert [f"{path}: {name}" for path, name in named if not (ROOT / name).is_file()] == []


def parsers(parser):
    """A parser of argparse and those of its subcommands."""
    choices = next((a.choices for a in parser._actions if isinstance(a, argparse._SubParsersAction)), {})
    return [parser, *(inner for made in choices.values() for inner in parsers(made))]


@pytest.mark.parametrize("parser", parsers(make_parser()), ids=lambda parser: parser.prog)
def test_help_of_powerd_ends_with_an_example_that_can_be_typed(parser):
    *_, last = parser.format_help().splitlines()
    assert last.startswith("For example: ")
    words = shlex.split(re.sub(r"^source <\((.*)\)$", r"\1", last.removeprefix("For example: ")))
    assert words[: len(parser.prog.split())] == parser.prog.split()
    make_parser().parse_args(words[1:])


def test_help_of_joules_has_an_example_of_each_command():
    commands = [name for name in app._commands if not name.startswith("-")]
    assert [c for c in commands if "For example" not in app[c].help or f"joules {c}" not in app[c].help] == []


def test_every_command_is_in_a_page():
    said = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    ours = [f"joules {name}" for name in app._commands if not name.startswith("-")]
    theirs = next(a.choices for a in make_parser()._actions if isinstance(a, argparse._SubParsersAction))
    assert [c for c in [*ours, *(f"powerd {name}" for name in theirs)] if c not in said] == []


def foreign_paths(text):
    """Absolute paths that are those of the machine on which a text was made."""
    ours = re.compile("|".join((EVERYWHERE, OF_THE_PAGES, OF_RUN_FILES)))
    return [path for path in PATH.findall(text) if not ours.match(f"{path}/")]


def test_what_was_recorded_names_no_folder_of_the_machine_that_made_it():
    suffixes = {".md", ".txt", ".csv", ".json", ".js", ".html", ".svg", ".toml", ".py", ".tex", ".log"}
    folders = (ROOT / "docs", ROOT / "examples")
    texts = {path for folder in folders for path in folder.rglob("*") if path.suffix in suffixes} | set(PAGES)
    texts.add(ROOT / "CHANGELOG.md")
    named = {str(path.relative_to(ROOT)): foreign_paths(path.read_text(encoding="utf-8")) for path in sorted(texts)}
    assert {path: paths for path, paths in named.items() if paths} == {}


@pytest.mark.parametrize(
    "path", [str(Path("/", "work", "powerd", "run.h5")), "/root/powerd/build", "/home/somebody/powerd/x", "/Users/a/b"]
)
def test_a_folder_of_somebody_is_noticed(path):
    for text in (f"while [ -e {path} ]", f'  File "{path}", line 3', f"file://{path}", f"`{path}`"):
        assert foreign_paths(text) == [path]
