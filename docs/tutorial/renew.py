"""Run the commands that the pages show, and write what they print into the pages anew.

    python docs/tutorial/renew.py                 # the tutorial and the README
    python docs/tutorial/renew.py README.md       # one page

A transcript is a block of `console` behind `<!-- transcript: NAME -->`. Each line that begins with `$` is run in a
shell; transcripts of one name share a directory, in which the tutorial's scripts lie. Behind `<!-- script: FILE -->`
stands the script without its docstring.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PAGES = [HERE / "scripts.md", HERE / "index.md", HERE / "figure.md", ROOT / "README.md"]
BLOCK = re.compile(r"(<!-- transcript: (\w+) -->\n```console\n)(.*?)(?=^```)", re.DOTALL | re.MULTILINE)
SCRIPT = re.compile(r"(<!-- script: (\w+\.(?:py|toml)) -->\n```\w+\n).*?(?=^```)", re.DOTALL | re.MULTILINE)
IN_THE_CHECKOUT = {
    "$ git ": "true ",
    "$ pip ": "true ",
    "$ make ": f"make --silent -C '{ROOT}' ",
    "$ torchrun ": f"'{sys.executable}' -m torch.distributed.run ",
}
"""What a reader types and this copy of the repository has, or does in another place."""
NEEDS = {"trainer": "transformers", "lightning_fit": "lightning"}
"""Transcripts that stay as they are where a library is not installed."""
PATIENCE_S = 120.0


def run(line: str, directory: Path) -> str:
    """What a shell prints for a line that begins with `$`, on both of its streams."""
    command = next((new + line[len(old) :] for old, new in IN_THE_CHECKOUT.items() if line.startswith(old)), line[2:])
    places = [str(Path(sys.executable).parent), os.environ["PATH"]]
    environment = os.environ | {
        "PATH": os.pathsep.join(places),
        "COLUMNS": "80",
        "OMP_NUM_THREADS": "1",
        "POWERD_QUIET": "",
    }
    # A file and no pipe: the recorder of a training that was killed prints its result there.
    with tempfile.NamedTemporaryFile() as output:
        subprocess.run(
            ["bash", "-c", command], cwd=directory, env=environment, timeout=600, check=False,
            stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip
        given_up = time.monotonic() + PATIENCE_S
        while is_open_elsewhere(output.name) and time.monotonic() < given_up:
            time.sleep(0.05)
        printed = Path(output.name).read_text(encoding="utf-8").replace(f"{ROOT}/", "")
    return "\n".join(row.rstrip() for row in printed.strip("\n").splitlines())


def is_open_elsewhere(path: str) -> bool:
    """Whether another process has a file open."""
    for descriptor in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):  # it has just ended
            if descriptor.parts[2] != str(os.getpid()) and str(descriptor.readlink()) == path:
                return True
    return False


def transcript(text: str, directory: Path) -> str:
    """A block's commands, each with what it prints now."""
    needed = NEEDS.get(directory.name)
    if needed and importlib.util.find_spec(needed) is None:
        print(f"not renewed: {directory.name}, as {needed} is not installed here", file=sys.stderr)
        return text
    lines = [line for line in text.splitlines() if line.startswith("$ ")]
    return "".join(f"{line}\n{printed}\n" if (printed := run(line, directory)) else f"{line}\n" for line in lines)


def set_scene(directory: Path) -> None:
    """Lay the tutorial's scripts where a transcript runs."""
    directory.mkdir(exist_ok=True)
    for script in (*HERE.glob("*.py"), *HERE.glob("*.toml")):
        shutil.copy(script, directory)


def with_scripts(text: str) -> str:
    """A page with the scripts that it shows as they are now."""
    return SCRIPT.sub(lambda m: m[1] + (HERE / m[2]).read_text(encoding="utf-8").split('"""\n\n', 1)[-1], text)


def renewed(text: str, place: Path) -> str:
    """A page with its transcripts and scripts as they are now."""
    for _, name, _ in BLOCK.findall(text):
        set_scene(place / name)
    return BLOCK.sub(lambda m: m[1] + transcript(m[3], place / m[2]), with_scripts(text))


def main(pages: list[Path]) -> None:
    """Renew each page in turn."""
    for page in pages:
        with tempfile.TemporaryDirectory() as place:
            page.write_text(renewed(page.read_text(encoding="utf-8"), Path(place)), encoding="utf-8")


if __name__ == "__main__":
    main([Path(name).resolve() for name in sys.argv[1:]] or PAGES)
