"""`powerd plan`: prints the arithmetic, and refuses what cannot work."""

from __future__ import annotations

import argparse

from powerd_core.errors import ConfigError
from powerd_core.text import did_you_mean
from powerd_daemon.config import load_config
from powerd_daemon.plan_config import placed, plan_file
from powerd_daemon.plan_text import line_loads_w, plan_text
from powerd_daemon.textfile import read_text


def plan(arguments: argparse.Namespace) -> int:
    """Raises `ConfigError` after printing when a bus or its chips cannot do what is asked of them."""
    plans = plan_file(arguments.file)
    loads_w = dict(arguments.load)
    names = {name for p in plans for b in p.budgets for name in (b.line, b.device)}
    for name in loads_w:
        if name not in names:
            raise ConfigError(f"--load: unknown line or device {name!r}{did_you_mean(name, names)}")
    for p in plans:
        for line, power_w in line_loads_w(p.budgets, loads_w).items():
            if power_w < 0:
                raise ConfigError(f"--load: single lines add up to more than their device: nothing is left for {line}")
        print(plan_text(p, loads_w))
    problems = [(p.bus.where, problem) for p in plans for problem in p.problems]
    if problems:
        where, problem = problems[0]
        more = f" (and {len(problems) - 1} more, see above)" if len(problems) > 1 else ""
        text = read_text(arguments.file, "it has gone")
        raise ConfigError(placed(text, f"{where}: {problem}", str(arguments.file)) + more)
    load_config(arguments.file)
    if not plans:
        print(f"{arguments.file}: no source reads a bus of sensors (kinds ina and sim): nothing to plan")
    return 0
