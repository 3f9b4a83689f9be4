"""All fuzzing targets, one after the other: python benchmarks/fuzz/run.py --minutes 60

Prints for each target how much was run and how far it reached, and every way in which it broke. Inputs that broke
something are kept under the working directory; the smallest of each kind belongs into tests/fuzz_corpus/TARGET/, where
`make test` replays it for ever.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from fuzz import ROOT, TARGETS

_INPUT_SECONDS = 10
_MEMORY_MIB = 1024
_INPUT_BYTES = 2048
_AGAIN_S = 5.0
"""With less time left than this a target that broke is not begun again."""


@dataclass(slots=True)
class Outcome:
    """What one target did in its share of the time."""

    target: str
    seconds: float = 0.0
    executions: int = 0
    features: int = 0
    inputs: int = 0
    broken: dict[str, str] = field(default_factory=dict)
    """First line of the traceback's end by the kind of failure, with the input's file."""


def fuzz(target: str, seconds: float, work: Path) -> Outcome:
    """Run one target for a time, from its kept corpus and what earlier runs found worth keeping."""
    outcome, begun = Outcome(target), time.monotonic()
    grown, found = work / "corpus" / target, work / "broken" / target
    kept = ROOT / "tests" / "fuzz_corpus" / target
    for folder in (grown, found):
        folder.mkdir(parents=True, exist_ok=True)
    while (left := seconds - (time.monotonic() - begun)) > (_AGAIN_S if outcome.executions else 0):
        command = [
            sys.executable, str(Path(__file__).with_name("fuzz.py")), target, f"-max_total_time={max(1, round(left))}",
            f"-timeout={_INPUT_SECONDS}", f"-rss_limit_mb={_MEMORY_MIB}", f"-max_len={_INPUT_BYTES}",
            "-print_final_stats=1", f"-artifact_prefix={found}/", str(grown), *([str(kept)] if kept.is_dir() else []),
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        _read(outcome, done.stdout + done.stderr)
        if done.returncode == 0:
            break
        kind = _kind(done.stdout + done.stderr)
        (found / "last.log").write_text(done.stdout + done.stderr)
        if kind in outcome.broken:
            break  # the same again at once: it hides whatever lies behind it
        outcome.broken[kind] = _artifact(done.stderr)
    outcome.seconds = time.monotonic() - begun
    outcome.inputs = sum(1 for _ in grown.iterdir())
    return outcome


def _read(outcome: Outcome, said: str) -> None:
    if found := re.search(r"number_of_executed_units:\s*(\d+)", said):
        outcome.executions += int(found[1])
    elif found := re.findall(r"^#(\d+)", said, re.MULTILINE):
        outcome.executions += int(found[-1])
    if found := re.findall(r"\bft: (\d+)", said):
        outcome.features = max(outcome.features, int(found[-1]))


def _kind(said: str) -> str:
    """What broke, short: the exception and the line of ours in which it was raised."""
    if "libFuzzer: timeout" in said:
        return f"an input that takes more than {_INPUT_SECONDS} s"
    if "libFuzzer: out-of-memory" in said:
        return f"an input that takes more than {_MEMORY_MIB} MiB"
    places = re.findall(r'File ".*/([^/"]+\.py)", line (\d+)', said)
    error = re.search(r"Uncaught Python exception: ===\s*\n\s*(.*)", said)
    where = ":".join(places[-1]) if places else "?"
    return f"{error[1][:120] if error else said.strip()[-200:]} ({where})"


def _artifact(said: str) -> str:
    found = re.search(r"Test unit written to (\S+)", said)
    return found[1] if found else "no input was written"


def main() -> int:
    """Status 1 when anything broke."""
    parser = argparse.ArgumentParser(description="Fuzz every place where bytes come in from outside.")
    parser.add_argument("--minutes", type=float, default=10.0, help="for all targets together")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "fuzz", help="grown corpus and broken inputs")
    parser.add_argument("targets", nargs="*", choices=[[], *TARGETS], help="all without any")
    arguments = parser.parse_args()
    targets = arguments.targets or TARGETS
    seconds = arguments.minutes * 60 / len(targets)
    print(f"{len(targets)} targets, {seconds:.0f} s each", flush=True)
    print(f"{'target':<16} {'seconds':>7} {'executions':>11} {'per second':>10} {'features':>8} {'inputs':>6}  broken")
    broken = 0
    for target in targets:
        o = fuzz(target, seconds, arguments.work.absolute())
        rate = o.executions / max(o.seconds, 1e-9)
        print(
            f"{target:<16} {o.seconds:7.0f} {o.executions:11,} {rate:10,.0f} {o.features:8,} {o.inputs:6}  "
            f"{len(o.broken) or '-'}",
            flush=True,
        )
        for kind, artifact in o.broken.items():
            print(f"    {kind}\n        {artifact}", flush=True)
        broken += len(o.broken)
    return int(broken > 0)


if __name__ == "__main__":
    sys.exit(main())
