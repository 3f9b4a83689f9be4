"""`joules record`, `import`, `info` and `top`: one run, recorded and looked at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from json import dumps
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from powerd_analytics.cli import shared
from powerd_analytics.output.terminal import LateProgress, print_lines
from powerd_analytics.output.text import parse_number
from powerd_core.errors import ConfigError, RunFileError
from powerd_core.keys import control_url
from powerd_core.text import printable

if TYPE_CHECKING:
    from powerd_client.record.csv_import import Imported


def record(
    *command: Annotated[str, Parameter(help="The command to record, after --.", allow_leading_hyphen=True)],
    url: Annotated[
        list[str] | None,
        Parameter(negative="", help="A running powerd, as in tcp://board:7360 or board; a local one without it."),
    ] = None,
    output: Annotated[
        Path | None, Parameter(alias="-o", help="Run file to write; run.h5, run-2.h5, ... without it.")
    ] = None,
    overwrite: shared.Overwrite = False,
    keys: shared.Keys = None,
    quiet: Annotated[bool, Parameter(negative="", help="Print nothing of our own.")] = False,
    baseline: Annotated[float | None, Parameter(help="Measure idle power so many seconds before and after.")] = None,
    power_cap: Annotated[str, Parameter(help="Hold the GPUs at so many watts, or min, max, default, 60%.")] = "",
    sm_clock: Annotated[str, Parameter(help="Hold the SM clock at so many MHz, or min, max, 60%.")] = "",
    mem_clock: Annotated[str, Parameter(help="Hold the memory clock, likewise.")] = "",
    package_power: Annotated[str, Parameter(help="Hold the processors' packages at so many watts, likewise.")] = "",
    devices: Annotated[str, Parameter(help="What is held: gpu0,gpu1; by default the GPUs that may be used.")] = "",
    optimise_power: Annotated[
        str, Parameter(help="Choose the cap while a watched training goes on, by e, edp or ed2p, and hold it.")
    ] = "",
    max_slowdown: Annotated[
        float | None, Parameter(help="By how much that cap may slow iterations down, a share (0.05).")
    ] = None,
    set: Annotated[
        list[str] | None, Parameter(negative="", help="NAME=VALUE: what else the run says of itself. May be repeated.")
    ] = None,
) -> int:
    """Record any command, and the phases that it marks.

    Exits with the command's status; with 1 where the command went well, but its
    recording did not. Of a list of levels each is a run of its own.

    For example:

      joules record -- python train.py

      joules record --url board --url tcp://node:7360 -o run.h5 -- python train.py

      joules record --power-cap 150,200,max -o caps.h5 -- python train.py

      joules record --optimise-power edp -- python train.py

      joules record --set project=p7 --set trial=3 -- python train.py
    """
    from powerd_client.knobs.cap_search import CapSearch
    from powerd_client.knobs.control import Sweep
    from powerd_client.record.recording import record_command

    if not command:
        raise ConfigError("nothing to record: give the command after --, as in `joules record -- python train.py`")
    optimise: dict[str, Any] | None = None
    if max_slowdown is not None and not optimise_power:
        raise ConfigError("--max-slowdown is for a cap that is chosen: give --optimise-power e, edp or ed2p, too")
    if optimise_power:
        optimise = {"metric": optimise_power, "max_slowdown": 0.05 if max_slowdown is None else max_slowdown}
        CapSearch(1.0, 2.0, **optimise)  # what is wrong is said at once
        if power_cap:
            raise ConfigError("--power-cap holds a cap, and --optimise-power chooses one: give one of them")
    attributes = _attributes(set or [])
    levels = {"power_cap_w": power_cap, "sm_clock_mhz": sm_clock, "mem_clock_mhz": mem_clock,
              "package_power_w": package_power}  # fmt: skip
    status = 0
    for hold, out in Sweep(levels, devices).holds(output):
        status = record_command(
            command, url=url, out=out, overwrite=overwrite, quiet=quiet, keys=keys, baseline_s=baseline, hold=hold,
            optimise=optimise, attributes=attributes,
        )  # fmt: skip
        if status:
            break
    return status


def _attributes(said: Sequence[str]) -> dict[str, str | float]:
    """What ``--set`` says, by name; what reads like a number is one. Raises `ConfigError`."""
    attributes: dict[str, str | float] = {}
    for text in said:
        name, separator, value = text.partition("=")
        if not separator or not name.isidentifier():
            raise ConfigError(f"--set {printable(text, limit=80)}: write NAME=VALUE, with a name of letters and digits")
        number = parse_number(value)
        attributes[name] = value if number is None else number
    return attributes


def import_(
    power: Annotated[
        Path | None, Parameter(help="Log of times and of watts, or of a counter of joules: a CSV, or one of --list.")
    ] = None,
    /,
    *,
    output: Annotated[Path | None, Parameter(alias="-o", help="Run file to write.")] = None,
    format: Annotated[
        str | None, Parameter(help="A name of --list, where the heading is not to tell; csv: any CSV.")
    ] = None,
    list: Annotated[bool, Parameter(negative="", help="Print the formats that are known by their heading.")] = False,
    phases: Annotated[
        Path | None, Parameter(help="CSV with name, begin and end of phases; other columns are attributes.")
    ] = None,
    column: Annotated[str | None, Parameter(help="The column of the readings, where there are several.")] = None,
    columns: Annotated[str | None, Parameter(help="Several of them, A,B,...: each is a device of one run.")] = None,
    unit: Annotated[str | None, Parameter(help="Of the readings, where no heading says it: W, mW, J, kWh, ...")] = None,
    volts: Annotated[float | None, Parameter(help="Of readings that are amperes.")] = None,
    time_column: Annotated[
        str | None, Parameter(help="The column of the times, where no heading says it; Date,Time of two.")
    ] = None,
    time_unit: Annotated[
        Literal["ns", "us", "ms", "s", "min", "h", "d"] | None,
        Parameter(help="Of times that are numbers, where no heading says it; of both files."),
    ] = None,
    interval_s: Annotated[float | None, Parameter(help="Seconds from row to row of a log without times.")] = None,
    device_column: Annotated[
        str | None, Parameter(help="The column that tells several devices apart; index, uuid, ... are found.")
    ] = None,
    day_first: Annotated[bool, Parameter(negative="", help="Dates are day, month, year: 1.3.2026.")] = False,
    time_zone: Annotated[
        str | None, Parameter(help="Of dates that name none: Europe/Madrid, +01:00, ...; UTC without it.")
    ] = None,
    spread: Annotated[bool, Parameter(negative="", help="Rows that share a whole second are of one device.")] = False,
    decimal_comma: Annotated[bool, Parameter(negative="", help="Numbers are written 0,5; columns end in ; or tab.")] = (
        False
    ),
    device: Annotated[
        str | None, Parameter(help="What was measured: gpu0, cpu0, node, ...; of several without the number.")
    ] = None,
    line: Annotated[str, Parameter(help="Name of the sensor, as in gpu0.ext_12v.")] = "meter",
    provenance: Annotated[
        Literal["measured", "modelled", "simulated"] | None,
        Parameter(help="How the readings came about; as the format says, or measured."),
    ] = None,
    u_gain: Annotated[float, Parameter(help="Relative standard uncertainty: the manual's ± limit over 1.73.")] = 0.01,
    u_offset_w: Annotated[float, Parameter(help="Standard uncertainty of the zero in watts.")] = 0.0,
    step_w: Annotated[float, Parameter(help="Smallest step of the power in watts.")] = 0.0,
    step_j: Annotated[
        float | None, Parameter(help="Step of a counter in joules, where it is not that of the file.")
    ] = None,
    bits: Annotated[int | None, Parameter(help="A counter begins again at so many bits of its unit.")] = None,
    per_interval: Annotated[bool, Parameter(negative="", help="Energies are those since the row before.")] = False,
    window_ms: Annotated[float, Parameter(help="A reading is the mean over so long; 0: from one to the next.")] = 0.0,
    response_ms: Annotated[float, Parameter(help="Time constant of the sensor's low-pass.")] = 0.0,
    clock_ms: Annotated[float, Parameter(help="So far the clocks of the two files may be apart.")] = 0.0,
    overwrite: shared.Overwrite = False,
) -> None:
    """Make a run file of a log that another meter or program wrote.

    Logs of nvidia-smi, turbostat, perf, ipmitool and others are known by their
    heading (--list). What follows is about any other CSV.

    One column holds the times of the readings: numbers in the unit that its
    heading names (time_ms, t [µs]), or dates as nvidia-smi and ISO 8601 write them
    (UTC). Another holds watts, or joules of a counter that only grows, in the unit
    of its heading. Case counts: [MJ] is a million joules. An empty cell, [N/A] and
    the like are readings that failed. A column index or uuid, or a column each
    (GPU0, GPU1), tells several devices apart. Repeated headings, a footer and a
    last line that is cut off are skipped, and told. Times of both files are of one
    clock. What is not understood is refused.

    For example:

      joules import power.csv --phases phases.csv -o run.h5

      joules import wall.csv --unit Wh --time-unit ms --u-gain 0.005 -o run.h5

      joules import nvidia-smi.csv --time-zone Europe/Madrid -o run.h5

      joules import dcgm.txt --interval-s 0.1 -o run.h5
    """
    from powerd_client.record.csv_import import SCALES, Columns, SensorCard, import_csv, log_format_of, zone_of
    from powerd_client.record.log_formats import FORMATS
    from powerd_core.model import Accuracy, Provenance

    if list:
        print_lines(f"{of.name:<16} {of.writer}" for of in FORMATS)
        return
    if power is None or output is None:
        raise ConfigError("give the log and the run file to write, as in `joules import LOG -o run.h5`, or --list")
    figures = (u_gain, u_offset_w, step_w, window_ms, response_ms, clock_ms)
    if not all(0 <= figure < 1e9 for figure in figures) or device == "" or not line:
        raise ConfigError("--device and --line need a name; what is said of the sensor in numbers cannot be negative")
    if unit is not None and unit not in SCALES:
        raise ConfigError(f"--unit {unit}: it must be one of {', '.join(SCALES)}; case counts")
    window_ns, response_ns, clock_ns = (round(ms * 1e6) for ms in (window_ms, response_ms, clock_ms))
    origin = "as joules import was told"
    accuracy = Accuracy(u_gain, u_offset_w, step_w, window_ns, origin=origin, filter_ns=response_ns)
    if column is not None and columns is not None:
        raise ConfigError("--column names one column, --columns several: give one of them")
    if not (step_j is None or 0 < step_j < 1e12) or not (bits is None or 0 < bits <= 64):
        raise ConfigError("--step-j must be above 0, and --bits between 1 and 64")
    if volts is not None and not 0 < volts < 1e6:
        raise ConfigError("--volts must be above 0")
    if interval_s is not None and (not 0 < interval_s < 1e9 or time_column is not None):
        raise ConfigError("--interval-s is above 0, and of a log without --time-column")
    asked = Columns(
        readings=column, unit=unit, volts=volts, times=time_column, time_unit=time_unit, devices=device_column,
        several=tuple(columns.split(",")) if columns else (), has_decimal_comma=decimal_comma,
        has_day_first=day_first, time_zone=None if time_zone is None else zone_of(time_zone),
        interval_s=interval_s, step_j=step_j, bits=bits, is_per_interval=per_interval, is_spread=spread,
    )  # fmt: skip
    shared.refuse_existing(output, overwrite, [power, *([phases] if phases else [])], is_hdf5=True)
    log_format = log_format_of(power, format)
    provenance = provenance or (log_format.provenance.value if log_format else "measured")
    if log_format is not None and column is None and columns is None:
        device = device or log_format.device
    card = SensorCard(device or "", line, Provenance(provenance), accuracy, clock_ns)
    imported = import_csv(power, phases, output, card, asked, log_format=log_format, overwrite=overwrite)
    _print_imported(output, imported)


def _print_imported(output: Path, imported: Imported) -> None:
    made = f"{imported.readings} readings, {imported.phases} phase{'' if imported.phases == 1 else 's'}"
    print(
        f"{output}: {made}, a reading every {imported.period_s:.4g} s; see it with: joules tables {quote(str(output))}"
    )
    for note in imported.notes:
        print(printable(f"  {note}", limit=400))
    if imported.devices:
        names = ", ".join(f"{name} ({label})" for name, label in imported.devices.items())
        count = f"{len(imported.devices)} device{'' if len(imported.devices) == 1 else 's'}"
        print(printable(f"  {count} by {imported.device_column}: {names}"))


def info(
    *runs: Annotated[Path, Parameter(help="Run files.")],
    device: shared.Device = None,
    calibration: shared.Calibration = None,
    check: Annotated[
        bool, Parameter(negative="", help="Check everything that must hold in them, and how the clocks went.")
    ] = False,
    marker: Annotated[
        str | None, Parameter(help="With --check: a line of edges that --phase moves, to check the clock by.")
    ] = None,
    phase: Annotated[str | None, Parameter(help="With --marker: the phase whose begins and ends move the pin.")] = None,
    format: shared.TextOrJson = "text",
) -> int:
    """Say what a run file holds.

    Devices, lines and how they compare, clocks, gaps, messages.

    With --check the exit status is 1 where anything does not hold. OK holds, WRONG
    does not, and -- cannot be told: the release that wrote the file did not store
    what is needed. Below stand the clocks of the boards, against the host's, and
    how sure their times are.

    For example:

      joules info run.h5

      joules info run.h5 --check
    """
    if not runs:
        raise RunFileError("no run file is named, as in joules info run.h5")
    if (marker is None) != (phase is None):
        raise ConfigError("--marker LINE and --phase NAME go together: the line's edges are compared with the phase's")
    if check and (device is not None or calibration is not None):
        raise ConfigError("--check is of the file as it is: leave --device and --calibration out")
    if check:
        return _check(runs, None if marker is None or phase is None else (marker, phase), format)
    if marker is not None:
        raise ConfigError("--marker and --phase are for --check: give that too")
    _describe(runs, device, calibration, format)
    return 0


def _describe(runs: Sequence[Path], device: str | None, calibration: Path | None, format: str) -> None:
    from powerd_analytics.cli.info import describe_run, run_document

    documents = []
    for run in runs:
        with LateProgress() as progress:
            document = run_document(shared.open_run(run, calibration, progress), device, progress=progress)
        documents.append(document)
        if format == "text":
            print_lines(describe_run(document))
    if format == "json":
        print(dumps(documents[0] if len(documents) == 1 else documents, indent=1))


def _check(runs: Sequence[Path], marked: tuple[str, str] | None, format: str) -> int:
    """Findings as they come; 1 where any is wrong."""
    from powerd_analytics.run_tables.verification import verify_run

    marks = {"ok": "OK", "wrong": "WRONG", "unknown": "--"}
    documents: list[dict[str, Any]] = []
    for run in runs:
        findings = []
        if format == "text":
            print(printable(str(run)))
        with LateProgress() as progress:
            for finding in verify_run(run, progress):
                findings.append(finding)
                if format == "text":
                    print_lines([f"  {marks[finding.state]:5}  {finding.check}: {finding.text}"])
        is_good = all(finding.state != "wrong" for finding in findings)
        clocks = _clocks(run, marked, format) if is_good else {}
        document = {"run": str(run), "good": is_good, "checks": [asdict(finding) for finding in findings]}
        documents.append(document | clocks)
    if format == "json":
        print(dumps(documents, indent=1))
    return 0 if all(document["good"] for document in documents) else 1


def _clocks(run: Path, marked: tuple[str, str] | None, format: str) -> dict[str, Any]:
    """How the clocks of a good run went, for a document; printed where people read it."""
    from powerd_analytics.runs import clock_report

    with LateProgress() as progress:
        opened = shared.open_run(run, None, progress)
        reports = [clock_report.clock_report(trace) for trace in clock_report.read_traces(opened)]
        others = clock_report.other_clocks(opened)
        edges = None if marked is None else clock_report.compare_marker(opened, *marked)
    if format == "text":
        print_lines(clock_report.describe_clocks(opened, reports, others))
        print_lines(clock_report.describe_marker(edges) if edges else ())
    document = {"clocks": [asdict(r) for r in reports], "others": [asdict(o) for o in others]}
    return document | ({"marker": asdict(edges)} if edges else {})


def top(
    *url: Annotated[str, Parameter(help="Powerds to listen to; those of this machine without it.")],
    run: Annotated[Path | None, Parameter(help="The run file that is being recorded; else the one found here.")] = None,
    keys: shared.Keys = None,
    once: Annotated[bool, Parameter(negative="", help="Print one line after a second, and end.")] = False,
    format: Annotated[
        Literal["text", "json"], Parameter(help="What to show it as; json is an object a second.")
    ] = "text",
) -> None:
    """Show watts, joules and the current phase while a run goes on.

    Losses too. The key q ends it.

    For example:

      joules top

      joules top tcp://board:7360 --run run.h5
    """
    from powerd_analytics.run_tables.top import top as show

    urls = [text if text.endswith(".h5") else control_url(text) for text in url]  # a run file has an answer of its own
    show(urls, run, keys=keys, once=once, as_json=format == "json")
