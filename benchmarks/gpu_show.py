"""What rounds on a GPU found, in words: each mode against the plain round of its turn, joules against the counter."""

from __future__ import annotations

import statistics
from typing import Any

from bench_hooks import interval
from gpu_rounds import say
from gpu_training import PHASES


def slower(ms: dict[str, list[float]], mode: str) -> list[float]:
    """Per cent that each round of a mode took longer than the plain one of its turn."""
    return [(b / a - 1) * 100 for a, b in zip(ms["plain"], ms[mode], strict=True)]


def spread(values: list[float], unit: str = " %") -> str:
    middle, low, high = interval(values)
    return f"{middle:+8.2f}{unit} (95 %: {low:+.2f} .. {high:+.2f}; all: {min(values):+.2f} .. {max(values):+.2f})"


def show(result: dict[str, Any]) -> None:
    """One case in words."""
    ms, ours, zeus = result["ms"], result["ours"], result["zeus"]
    plain = statistics.median(ms["plain"])
    say(f"  {result['model']}, batch {result['batch']}: plain {plain:.3f} ms an iteration, {len(ms['plain'])} pairs")
    for mode, text in (("phases", "phases by hand, 8 marks"), ("watch", "watch(), 6 marks"), ("layers", "with layers")):
        say(f"    {text:24} {spread(slower(ms, mode))}")
    marks = result["marks_with_layers"]
    more_us = [(b - a) * 1e3 for a, b in zip(ms["plain"], ms["layers"], strict=True)]
    middle, low, high = interval(more_us)
    say(
        f"    {'':24} {middle:+.1f} us an iteration (95 %: {low:+.1f} .. {high:+.1f}) for {marks:.0f} marks with their "
        f"hooks: {1e3 * middle / marks:.0f} ns a mark ({1e3 * low / marks:.0f} .. {1e3 * high / marks:.0f})"
    )
    if "zeus" in ms:
        _show_zeus(result, plain)
    else:
        say(f"    {'Zeus':24} not measured: {zeus['not_measured']}")
    phases = ours["phases"]
    said = ", ".join(f"{n} {p['resolvable']} of {p['count']}" for n, p in phases.items())
    say(f"    powerd: phases with joules: {said} (timed by {', '.join(ours['timing'])})")
    if ours.get("sum_per_counter") is not None:
        count = phases["iteration"]["count"]
        say(
            f"    powerd: {count} iterations {ours['phases_j']:.1f} J + rest {ours['rest_j']:.1f} J = "
            f"{ours['sum_per_counter']:.4f} of the counter's {ours['counter_j']:.1f} J in {ours['stretch_s']:.2f} s "
            f"(± {ours['u95_j']:.0f} J stated)"
        )
    by_events = " / ".join(_ms(phases[n]["ms"]) for n in PHASES)
    by_waiting = "–" if "zeus" not in ms else " / ".join(_ms(_mean_ms(zeus, n)) for n in PHASES)
    say(f"    forward / backward / update in ms: {by_events} by events; {by_waiting} by Zeus's waiting")
    for name, bound in ours["clocks"].items():
        say(f"    clock {name}: ± {bound['median_us']:.1f} us (median), ± {bound['largest_us']:.1f} us (largest)")
    for text in (*ours["host_only"], *ours["warnings"]):
        say(f"    the run says: {text}")


def _show_zeus(result: dict[str, Any], plain_ms: float) -> None:
    zeus, alone = result["zeus"], result["alone_ms"]
    say(f"    {'Zeus, 3 windows':24} {spread(slower(result['ms'], 'zeus'))}")
    middle = statistics.median(alone["plain"])
    say(
        f"    {'  without powerd':24} {spread(slower(alone, 'zeus'))}; the plain loop takes {middle:.3f} ms there, "
        f"{(plain_ms / middle - 1) * 100:+.2f} % with powerd's readings beside it (not in pairs)"
    )
    zeros = ", ".join(f"{n} {zeus['zeros'].get(n, 0)} of {zeus['windows'][n]}" for n in PHASES)
    say(f"    Zeus: windows of 0 J: {zeros}")
    if zeus["sum_per_counter"] is not None:
        say(
            f"    Zeus: sum of its phases {zeus['sum_j']:.1f} J = {zeus['sum_per_counter']:.4f} of the counter's "
            f"{zeus['counter_j']:.1f} J over the same rounds; "
            f"without powerd {result['alone_zeus']['sum_per_counter']:.4f}"
        )


def _ms(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _mean_ms(zeus: dict[str, Any], name: str) -> float | None:
    return zeus["time_s"][name] / zeus["windows"][name] * 1e3 if zeus["windows"].get(name) else None
