"""One fuzzing target under atheris: python benchmarks/fuzz/fuzz.py TARGET [libFuzzer options] [corpus directories]

    python benchmarks/fuzz/fuzz.py wire -max_total_time=60
    python benchmarks/fuzz/fuzz.py wire crash-0123      replay one input

The targets are in tests/fuzzing, where the ordinary tests replay what they ever found. Needs `pip install atheris`.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TARGETS = tuple(sorted(p.stem.removeprefix("target_") for p in (ROOT / "tests" / "fuzzing").glob("target_*.py")))


def main() -> None:
    """Fuzz until libFuzzer's limits, or until the first input that breaks the target."""
    if len(sys.argv) < 2 or sys.argv[1] not in TARGETS:
        sys.exit(f"usage: fuzz.py TARGET [options]; targets: {', '.join(TARGETS)}")
    try:
        import atheris
    except ImportError:
        sys.exit("fuzzing needs atheris: pip install atheris (Python 3.11 to 3.13)")
    # The tree that this file is in, whatever is installed.
    sys.path[:0] = [str(ROOT / folder) for folder in ("tests", "powerd", "client", "analytics", "firmware")]
    packages = ["powerd_core", "powerd_daemon", "powerd_client", "powerd_analytics", "powernode"]
    with atheris.instrument_imports(include=packages):
        target = importlib.import_module(f"fuzzing.target_{sys.argv[1]}")
    atheris.Setup([sys.argv[0], *sys.argv[2:]], target.one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
