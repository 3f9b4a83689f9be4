"""`joules info`, `clock`, `trace` and `top`: one run looked at, recorded or going on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from powerd_analytics.cli.common import (
    Calibration,
    Device,
    Overwrite,
    check_picture,
    open_run,
    refuse_existing,
    stderr,
    write,
)
from powerd_core.text import printable


def info(
    run: Annotated[Path, Parameter(help="A run file.")], *, device: Device = None, calibration: Calibration = None
) -> None:
    """Say what a run file holds: devices, lines and how they compare, clocks, gaps, messages.

    For example: joules info run.h5
    """
    from powerd_analytics.cli.describe import describe_run
    from powerd_analytics.progress import LateProgress

    with LateProgress(stderr()) as progress:
        lines = list(describe_run(open_run(run, calibration, progress), device, progress=progress))
    # Names, causes and messages in a run file are whatever its maker wrote.
    print("\n".join(map(printable, lines)))


def clock(
    run: Annotated[Path, Parameter(help="A run file.")],
    *,
    out: Annotated[Path | None, Parameter(alias="-o", help="Draw them as well (.png, .pdf, .svg).")] = None,
    marker: Annotated[str | None, Parameter(help="A line of edges that --phase moves: check the clock by it.")] = None,
    phase: Annotated[str | None, Parameter(help="With --marker: the phase whose begins and ends move the pin.")] = None,
    json: Annotated[bool, Parameter(negative="", help="Print for programs.")] = False,
    overwrite: Overwrite = False,
) -> None:
    """Say how the boards' clocks and the wall clock went against the host's, and how sure their times are.

    For example: joules clock run.h5 --out clock.png
    """
    from dataclasses import asdict
    from json import dumps

    from powerd_analytics.clocks import clock as clocks
    from powerd_analytics.clocks.marker import compare_marker, describe_marker
    from powerd_analytics.clocks.wall import describe_wall, wall_drifts
    from powerd_analytics.progress import LateProgress
    from powerd_analytics.runs.run import read_run
    from powerd_core.errors import ConfigError

    if (marker is None) != (phase is None):
        raise ConfigError("--marker LINE and --phase NAME go together: the line's edges are compared with the phase's")
    if out is not None:
        check_picture(out)
        refuse_existing(out, overwrite)
    with LateProgress(stderr()) as progress:
        opened = read_run(run, progress=progress)
        traces = clocks.read_traces(opened)
        reports, others = [clocks.report(t) for t in traces], clocks.other_clocks(opened)
        walls = wall_drifts(opened)
        checked = compare_marker(opened, marker, phase) if marker is not None and phase is not None else None
        if out is not None:
            from powerd_analytics.pictures.clock import plot_clocks

            write(out, lambda partial: plot_clocks(opened, traces, partial), overwrite)
    if json:
        document = clocks.to_document(reports, others) | {"wall_clock": [asdict(w) for w in walls]}
        print(dumps(document | ({"marker": asdict(checked)} if checked else {}), indent=1))
        return
    lines = [*clocks.describe(opened, reports, others), *describe_wall(walls)]
    lines += describe_marker(checked) if checked else ()
    print("\n".join(map(printable, lines)))
    if out is not None:
        print(out)


def trace(
    run: Annotated[Path, Parameter(help="A run file.")],
    *,
    output: Annotated[Path, Parameter(alias="-o", help="Trace to write (.json or .json.gz).")],
    profile: Annotated[
        Path | None, Parameter(help="A trace of torch.profiler (export_chrome_trace), .json or .json.gz.")
    ] = None,
    device: Device = None,
    max_points: Annotated[int, Parameter(help="At most so many points a counter; peaks and dips are kept.")] = 100_000,
    whole_run: Annotated[
        bool, Parameter(negative="", help="All of the run, not only what lies beside the profile.")
    ] = False,
    overwrite: Overwrite = False,
) -> None:
    """Put power and phases into a torch.profiler trace, on its timeline, or into a trace of their own.

    For example:

      joules trace run.h5 --profile trace.json -o both.json.gz

      joules trace run.h5 -o power.json
    """
    from powerd_analytics.chrome.trace import TraceOptions, write_trace
    from powerd_analytics.progress import LateProgress
    from powerd_analytics.runs.run import read_run
    from powerd_core.errors import ConfigError

    if not output.name.endswith((".json", ".json.gz")):
        raise ConfigError(f"{output}: a trace is written as .json or .json.gz")
    if max_points < 2:
        raise ConfigError(f"--max-points {max_points}: a counter has at least 2 points")
    refuse_existing(output, overwrite)
    with LateProgress(stderr()) as progress:
        opened = read_run(run, progress=progress)
        written = []

        def make(partial: Path) -> None:
            options = TraceOptions(device, max_points, whole_run=whole_run)
            written.append(write_trace(opened, partial, profile, options, progress=progress))

        write(output, make, overwrite)
    said = f"{_counted(written[0].counters, 'counter')}, {_counted(written[0].phases, 'phase')}"
    print(f"{output}: {said}{', ' + written[0].alignment if profile else ''}")


def top(
    *url: Annotated[str, Parameter(help="Powerds to listen to; those of this machine without it.")],
    run: Annotated[Path | None, Parameter(help="The run file that is being recorded; else the one found here.")] = None,
    keys: Annotated[
        Path | None, Parameter(help="Directory of keys; $POWERD_KEYS, else ~/.config/powerd without it.")
    ] = None,
    once: Annotated[bool, Parameter(negative="", help="Print one line after a second, and end.")] = False,
    json: Annotated[bool, Parameter(negative="", help="Print a JSON object a second.")] = False,
) -> None:
    """Show watts, joules, the current phase and losses while a run goes on. Keys: q, p, s, d.

    For example:

      joules top

      joules top tcp://board:7360 --run run.h5
    """
    from powerd_analytics.live.top import top as show

    show(url, run, keys=keys, once=once, as_json=json)


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
