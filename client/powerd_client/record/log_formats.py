"""The logs that programs and meters of others write: a declaration each, by which `joules import` knows them.

A format says how its first line looks, which columns hold readings, times and devices, and in which units. How a table
is read (units, dates, counters, failed readings, repeated headings) is the work of `csv_import`. A log that is no CSV
has a pattern of what stands between its cells, or of the names and values in its lines.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import StringIO

from powerd_core.errors import ConfigError
from powerd_core.model import Provenance

Rows = list[tuple[int, list[str]]]
"""Cells with the number of their line."""
_HEAD = 10_000
"""So many letters may stand above the heading, and with it."""


@dataclass(frozen=True, slots=True)
class LogFormat:
    """One kind of log. Patterns are regular expressions, those of columns of their whole headings."""

    name: str
    writer: str
    """What writes it."""
    first: str
    """Matches its heading, or the beginning of its first line where it has none. Lines above are no part of it."""
    readings: tuple[tuple[str, str | None], ...]
    """Patterns of columns, the best first, each with its unit where the heading names none. All that the first one that
    is there matches are read, as devices where they are several. Empty: as in any CSV."""
    times: tuple[str, ...]
    """The columns of the times: date and time may stand in two."""
    time_unit: str | None = None
    date_forms: tuple[str, ...] = ()
    """As `datetime.strptime` has them, where they are not ISO 8601."""
    devices: str | None = None
    """The column of the devices, where it is there."""
    device: str = ""
    """What the readings are of."""
    provenance: Provenance = Provenance.MEASURED
    is_per_interval: bool = False
    has_changes_alone: bool = False
    """It has a row where the value changes, and not in between."""
    separator: str = ""
    """What stands between cells that are no CSV."""
    row: str = ""
    """Of a log of names and values: how a line begins that has some, and the group ``time``."""
    cell: str = ""
    """Of such a log: the groups ``name`` and ``value``, and ``part`` where the name alone tells too little."""
    skipped: str = ""
    """The beginning of lines that hold no readings."""
    only: tuple[str, str] | None = None
    """A column, and what it says in rows that count."""
    valid: tuple[str, str] | None = None
    """A column, and what it says where the reading did not fail."""
    one: str | None = None
    """A column that is the same in all rows of one recording."""
    failed: tuple[str, ...] = ()
    """What stands for a failed reading, beside the words that any CSV may have."""

    def table(self, text: str, error: Callable[[int, str], ConfigError], skipped: list[str]) -> tuple[list[str], Rows]:
        """The heading, and the rows of its text; ``skipped`` gets a line on what is left out."""
        start = re.search(self.first, text, re.MULTILINE)
        if start is None:
            raise error(1, f"nothing in it looks like {self.name}, which {self.writer} writes")
        above, text = text.count("\n", 0, start.start()), text[start.start() :]
        if self.cell:
            heading, rows = self._pairs(text, above, error, skipped)
        else:
            (_, heading), *rows = self._split(text, above)
        return heading, self._checked(heading, rows, error)

    def _split(self, text: str, above: int) -> Rows:
        if not self.separator:
            first, _, _ = text.partition("\n")
            reader = csv.reader(StringIO(text, newline=""), delimiter=max(",;\t", key=first.count))
            return [(reader.line_num + above, [cell.strip() for cell in row]) for row in reader if any(row)]
        lines = enumerate(text.splitlines(), above + 1)
        kept = [(number, line) for number, line in lines if line.strip() and not self._is_skipped(line)]
        return [(number, re.split(self.separator, line.lstrip("# ").rstrip())) for number, line in kept]

    def _is_skipped(self, line: str) -> bool:
        return bool(self.skipped and re.match(self.skipped, line))

    def _pairs(
        self, text: str, above: int, error: Callable[[int, str], ConfigError], skipped: list[str]
    ) -> tuple[list[str], Rows]:
        """A column for each name. A row begins at a new time, and where a name comes again.

        A last line without readings is one that was cut off, and stays a row of one cell.
        """
        found: list[tuple[int, dict[str, str]]] = []
        cut: Rows = []
        others: list[int] = []
        for number, line in enumerate(text.splitlines(), above + 1):
            if not line.strip() or self._is_skipped(line):
                continue
            begin = re.match(self.row, line)
            if begin is None:
                others.append(number)
                continue
            if cut:
                raise error(cut[0][0], f"{cut[0][1][0]!r} has no reading where {self.name} has one")
            at = begin.groupdict().get("time")
            cells = [cell.groupdict() for cell in re.finditer(self.cell, line)]
            if self.row and not cells:
                cut.append((number, [line.strip()]))
            names = [" ".join(part for part in (cell.get("part"), cell["name"]) if part) for cell in cells]
            if len(set(names)) < len(names):
                raise error(number, f"{line.strip()!r} has several readings of one name")
            for name, cell in zip(names, cells, strict=True):
                if not found or name in found[-1][1] or found[-1][1].get("time") != at:
                    found.append((number, {} if at is None else {"time": at}))
                found[-1][1][name] = cell["value"].strip()
        if others:
            skipped.append(f"skipped lines of something else ({numbers_of(others)})")
        heading = list(dict.fromkeys(name for _, row in found for name in row))
        return heading, [(number, [row.get(name, "") for name in heading]) for number, row in found] + cut

    def _checked(self, heading: Sequence[str], rows: Rows, error: Callable[[int, str], ConfigError]) -> Rows:
        """The rows that count, with an empty cell for each reading that failed."""
        if self.only is not None and self.only[0] in heading:
            place, word = heading.index(self.only[0]), self.only[1]
            rows = [(line, row) for line, row in rows if row[place : place + 1] == [word] or row == heading]
        if self.valid is not None and self.valid[0] in heading:
            place, word = heading.index(self.valid[0]), self.valid[1]
            of = {i for i, name in enumerate(heading) if any(re.fullmatch(p, name) for p, _ in self.readings)}
            rows = [
                (line, row if row[place] == word else ["" if i in of else cell for i, cell in enumerate(row)])
                for line, row in rows
            ]
        if self.one is not None and self.one in heading:
            place = heading.index(self.one)
            values = {row[place]: line for line, row in rows if len(row) == len(heading) and row != heading}
            if len(values) > 1:
                raise error(max(values.values()), f"{len(values)} different {self.one}: import the rows of one alone")
        return [(line, ["" if cell in self.failed else cell for cell in row]) for line, row in rows]

    def columns_of_readings(self, heading: Sequence[str]) -> list[str]:
        """The columns to read; empty where there are none."""
        for pattern, _ in self.readings:
            found = [name for name in heading if re.fullmatch(pattern, name)]
            if found:
                return found
        return []

    def unit_of(self, column: str) -> str | None:
        """None for a column whose heading or cells have to say it."""
        return next((unit for pattern, unit in self.readings if re.fullmatch(pattern, column)), None)


_RAIL = r"(?:VDD|VIN|POM)\w*|GPU|CPU|SOC|CV|VDDRQ|SYS5V"

FORMATS = (
    LogFormat(
        "nvidia-smi", "nvidia-smi --query-gpu=timestamp,index,power.draw --format=csv",
        first=r"^(?=.*\btimestamp\b).*\bpower\.draw(\.\w+)? \[W\].*$",
        readings=tuple((rf"power\.draw{of} \[W\]", "W") for of in ("", r"\.average", r"\.instant")),
        times=("timestamp",),
    ),
    LogFormat(
        "nvidia-smi-dmon", "nvidia-smi dmon -s p -o DT",
        first=r"^#\s*(Date\s+)?(Time\s+)?gpu\s.*\bpwr\b",
        readings=(("pwr", "W"),), times=("Date", "Time"), devices="gpu",
        separator=r"\s+", skipped=r"#\s*(YYYYMMDD|HH:MM:SS|Idx)",
    ),
    LogFormat(
        "dcgm", "dcgmi dmon -e 155,156",
        first=r"^#\s?Entity\s.*\b(POWER|TOTEC)\b",
        readings=(("TOTEC", "mJ"), ("POWER", "W")), times=("time",), devices="Entity",
        separator=r"\s{2,}", skipped=r"\s*I[Dd]\b",
    ),
    LogFormat(
        "turbostat", "turbostat --show Time_Of_Day_Seconds,PkgWatt --quiet",
        first=r"^[^,\n]*\bPkgWatt\b[^,\n]*$",
        readings=(("PkgWatt", "W"), (r"(Cor|GFX|RAM|Sys)Watt", "W")),
        times=("Time_Of_Day_Seconds",), time_unit="s", device="cpu0",
        separator=r"\s+", only=("CPU", "-"),
    ),
    LogFormat(
        "perf", "perf stat -a -e power/energy-pkg/ -I 1000 -x,",
        first=r"^\s*\d+\.\d+,([SND]\d+\S*,\d+,)?[^,\n]*,Joules,power/energy-",
        readings=((r"(\S+ )?power/energy-pkg/", "J"), (r"(\S+ )?power/energy-\w+/", "J")),
        times=("time",), time_unit="s", device="cpu0", is_per_interval=True,
        row=r"\s*(?P<time>\d+\.\d+),", skipped="#",
        cell=r"^[^,]*,(?:(?P<part>[SND]\d[^,]*),\d+,)?(?P<value>[^,]*),[^,]*,(?P<name>[^,\d][^,]*),.*$",
        failed=("<not counted>", "<not supported>"),
    ),
    LogFormat(
        "power-gadget", "Intel Power Gadget (PowerLog)",
        first=r"^\"?System Time\"?,\"?RDTSC\"?,\"?Elapsed Time \(sec\)",
        readings=((r"Cumulative Processor Energy_\d+ ?\(Joules\)", "J"), (r"\w+ Power_\d+ ?\(Watt\)", "W")),
        times=("Elapsed Time (sec)",), time_unit="s", device="cpu0",
    ),
    LogFormat(
        "powerstat", "powerstat",
        first=r"^\s*Time\s+User\s+Nice\s+Sys\s+Idle\s+IO\s.*\bWatts\b",
        readings=(("Watts", "W"),), times=("Time",),
        separator=r"\s+", skipped=r"[\s-]+$|-+ |\s*(Average|GeoMean|StdDev|Minimum|Maximum)\s",
    ),
    LogFormat(
        "ipmitool", "ipmitool dcmi power reading, in a loop",
        first=r"^\s*Instantaneous power reading:",
        readings=(("Instantaneous power reading", None),), times=("IPMI timestamp",),
        date_forms=("%a %b %d %H:%M:%S %Y", "%m/%d/%Y %H:%M:%S UTC"),
        cell=r"(?P<name>Instantaneous power reading|IPMI timestamp|Power reading state is):\s*"
        r"(?P<value>\w{3} \w{3} [ \d]\d [\d:]{8} \d{4}|.*?)(?=\s{2}|\s*$)",
        valid=("Power reading state is", "activated"),
    ),
    LogFormat(
        "tegrastats", "tegrastats of a Jetson",
        first=rf"^(\d\d-\d\d-\d{{4}} [\d:]+ )?RAM \d+/\d+MB.* ({_RAIL}) \d+(mW)?/\d",
        # Each of the first measures all that comes in; the rails of a board without one add up to nearly that.
        readings=((r"VDD_IN|POM_5V_IN|VIN", "mW"), (_RAIL, "mW")), times=("time",),
        date_forms=("%m-%d-%Y %H:%M:%S",),
        row=r"(?:(?P<time>\d\d-\d\d-\d{4} [\d:]+) )?RAM ",
        cell=rf"(?<!\S)(?P<name>{_RAIL}) (?P<value>\d+)(?:mW)?/\d+(?:mW)?(?!\S)",
    ),
    LogFormat(
        "rocm-smi", "rocm-smi --showpower --csv, in a loop",
        first=r"^device,.*(Average|Current Socket) Graphics Package Power \(W\)",
        readings=((r"(Average|Current Socket) Graphics Package Power \(W\)", "W"),),
        times=("timestamp",), devices="device",
    ),
    LogFormat(
        "amd-smi", "amd-smi metric --power --csv --watch 1, and amd-smi monitor",
        first=r"^timestamp,gpu,(.*\bsocket_power\b|xcp,power_usage\b)",
        readings=(("socket_power|power_usage", "W"),), times=("timestamp",), time_unit="s", devices="gpu",
    ),
    LogFormat(
        "ptdaemon", "PTDaemon of SPEC and MLPerf Power (spl.txt)",
        first=r"^Time,\d\d-\d\d-\d{4} [\d:.]+,Watts,",
        readings=(("Watts", "W"),), times=("time",), date_forms=("%m-%d-%Y %H:%M:%S.%f",), device="node",
        row=r"Time,(?P<time>[^,]*)", cell=r",(?P<name>Watts),(?P<value>[^,]+),(?=Volts,)",
    ),
    LogFormat(
        "joulescope", "Joulescope's user interface: its statistics (CSV)",
        first=r"^#time,current,voltage,power,charge,energy\s*$",
        readings=(("energy", "J"), ("power", "W")), times=("#time",), time_unit="s",
    ),
    LogFormat(
        "ppk2", "Nordic's Power Profiler Kit II",
        first=r"^Timestamp\(ms\),Current\(uA\)",
        readings=((r"Current\(uA\)", None),), times=("Timestamp(ms)",),
    ),
    LogFormat(
        "monsoon", "Monsoon's Power Monitor (PowerTool's CSV)",
        first=r"^\"?Time \(s\)\"?,.*\bMain Avg (Power \(mW\)|Current \(mA\))",
        readings=((r"Main Avg Power \(mW\)", "mW"), (r"Main Avg Current \(mA\)", None)),
        times=("Time (s)",), time_unit="s",
    ),
    LogFormat(
        "supercloud", "the MIT SuperCloud data set (gpu.csv)",
        first=r"^timestamp,gpu_index,.*\bpower_draw_W\b",
        readings=(("power_draw_W", "W"),), times=("timestamp",), time_unit="s", devices="gpu_index",
    ),
    LogFormat(
        "codecarbon", "CodeCarbon (emissions.csv)",
        first=r"^(task_name,)?timestamp,project_name,run_id,.*\benergy_consumed\b",
        readings=(("energy_consumed", "kWh"), (r"(cpu|gpu|ram)_energy", "kWh")), times=("timestamp",),
        device="node", provenance=Provenance.MODELLED, one="run_id",
    ),
    LogFormat(
        "home-assistant", "Home Assistant (History, Download data)",
        first=r"^\"?entity_id\"?,\"?state\"?,\"?last_changed\"?",
        readings=(("state", None),), times=("last_changed",), devices="entity_id", device="node",
        has_changes_alone=True,
    ),
    LogFormat(
        "tasmota", "a plug with Tasmota: its SENSOR messages",
        first=r"^.*\"Time\":\s*\"[^\"]+\".*\"ENERGY\":\s*\{.*\"Power\":",
        readings=(("Power", "W"), ("Total", "kWh")), times=("time",),
        row=r".*?\"Time\":\s*\"(?P<time>[^\"]+)\".*\"ENERGY\"",
        cell=r"\"(?P<name>Power|Total)\":\s*(?P<value>-?[\d.]+)(?=\s*[,}])",
    ),
    LogFormat(
        "shelly", "a plug or meter of Shelly (since Gen2): its status, in a loop",
        first=r"^.*\"(apower|total_act_power)\":",
        readings=(("apower|total_act_power", "W"),), times=("time",), row=r".*\{",
        cell=r"\"(?P<name>apower|total_act_power)\":\s*(?P<value>-?[\d.]+|null)(?=\s*[,}])",
    ),
    LogFormat(
        "grafana", "Grafana (Inspect, Data, Download CSV)",
        first=r"^\"Time\",\".*\"\s*$",
        readings=(), times=("Time",),
    ),
)  # fmt: skip
"""In the order in which they are tried."""


def numbers_of(lines: Sequence[int]) -> str:
    """The first numbers of some lines."""
    return f"line {', '.join(map(str, lines[:5]))}{', ...' * (len(lines) > 5)}"


def format_of(text: str) -> LogFormat | None:
    """The format whose heading stands in a text's first lines; None for any other CSV."""
    head = text[:_HEAD]
    return next((of for of in FORMATS if re.search(of.first, head, re.MULTILINE)), None)


def named_format(name: str) -> LogFormat:
    """Raises `ConfigError` for a name that is none."""
    found = next((of for of in FORMATS if of.name == name), None)
    if found is None:
        raise ConfigError(f"--format {name}: it must be csv, or one of those that joules import --list shows")
    return found
