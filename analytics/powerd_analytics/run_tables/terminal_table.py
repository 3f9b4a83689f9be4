"""A run's table for a terminal of 80 columns: for each device its joules, and a tree of its phases with their shares.

What is shown is a choice from `powerd_analytics.run_tables.table`: `joules tables --wide` and every format for programs
have the rest. Shares are of the joules of the group (such as one model at one batch size), from its first phase to its
last.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import hypot
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from powerd_analytics.energy.metrics import J_PER_KWH
from powerd_analytics.output.terminal import hanging_indent
from powerd_analytics.output.text import bar, digits, first_of, seconds, with_u95
from powerd_analytics.run_tables.table import (
    ITERATION,
    LEAST_REST,
    MODELLED,
    NOT_OF_SAMPLES,
    PhaseRow,
    PhaseTable,
    RunRow,
    TotalRow,
    above_idle,
    attribute_text,
    common_settings,
    group_key,
    group_line,
)
from powerd_analytics.runs.nesting import FORWARD, containers
from powerd_analytics.runs.phases import LAYER
from powerd_core.text import printable

MOST_DEVICES = 4
"""Further ones have one line each."""
MOST_ROWS = 20
"""Of a group: of more kinds of phases, those with the most joules."""
MOST_GROUPS = 8
MOST_NOTES = 3
_BAR = 10
_BATCH = "batch_size"
_COLUMNS = ("batch", "phase", "n", "s/batch", "J/batch ± U95", "share", "", "samples/s")
_COLUMNS_OF_ANY = ("batch", "phase", "n", "s each", "J each ± U95", "share", "", "samples/s")
"""Of a run that has no batches, such as a program that is recorded as a whole."""
_PER_TOKEN = "J/token"
_RIGHT = (True, False, True, False, False, True, False, True)


def print_tree(
    table: PhaseTable, console: Console, name: str, *, is_chosen: bool = False, all_notes: bool = False
) -> None:
    """Print the table of the run file ``name``. Unless one device ``is_chosen``, modelled ones have a line each where
    others are measured or simulated."""
    blocks = _blocks(table, is_chosen=is_chosen)
    settings = common_settings([total.group for total in table.totals])
    each = [block.lines(settings) for block in blocks]
    columns = _columns_of(table)
    widths = _widths(columns, [*chain(*each)], console.width)
    title = f"{printable(name)} · {seconds(table.runs[0].time_s)}" if table.runs else printable(name)
    for i, (block, lines) in enumerate(zip(blocks, each, strict=True)):
        lead = f"{title} · " if i == 0 else "\n"
        _print(console, f"{lead}{_heading(block.run)}", "bold")
        if i == 0 and settings and block.run.energy_j is not None:
            _print(console, group_line(settings), "dim")
        for line in ([*columns], *lines) if lines else ():
            _print(console, _joined(line, widths))
        for text in block.outside():
            _print(console, _joined(text, widths))
    for line in _other_devices(table, [block.run for block in blocks]):
        _print(console, line, "bold")
    for line in (*_gpus_together(table.runs), *_layers(table, name)):
        _print(console, line)
    _print_notes(table, blocks, console, all_notes=all_notes)


def _blocks(table: PhaseTable, *, is_chosen: bool) -> list[_Block]:
    """The devices that are printed in full. One without energy has its reason in the heading, and comes last."""
    primary = [r for r in table.runs if r.provenance != MODELLED or is_chosen] or list(table.runs)
    primary = primary if is_chosen else primary[:MOST_DEVICES]
    return [_Block(table, row) for row in sorted(primary, key=lambda row: row.energy_j is None)]


def _other_devices(table: PhaseTable, shown: Sequence[RunRow]) -> list[str]:
    return [f"{_heading(row)} (--device {printable(row.device)})" for row in table.runs if row not in shown]


def _layers(table: PhaseTable, name: str) -> list[str]:
    """A line where there are layers, which have a command of their own."""
    layers = {str(row.group[LAYER]) for row in table.totals if LAYER in row.group}
    return [f"{len(layers)} layers: joules tables --table layers {printable(name)}"] if layers else []


def _columns_of(table: PhaseTable) -> Sequence[str]:
    is_stated = any(_BATCH in row.group for row in table.totals)
    has_batches = is_stated or any(row.is_iteration or row.phase in (ITERATION, FORWARD) for row in table.phases)
    columns = _COLUMNS if has_batches else _COLUMNS_OF_ANY
    return (*columns[:-1], _PER_TOKEN) if _has_tokens(table) else columns


def _has_tokens(table: PhaseTable) -> bool:
    """Joules of a token then stand in place of samples a second."""
    return any(row.tokens_per_batch for row in table.phases)


def _print(console: Console, line: str, style: str = "") -> None:
    console.print(
        Text("\n".join(map(printable, line.split("\n"))).rstrip(), style=style), soft_wrap=True, highlight=False
    )


def _heading(row: RunRow) -> str:
    provenance = row.provenance if row.provenance == "measured" else row.provenance.upper()
    return f"{row.device} {provenance}  {_whole(row)}"


def _whole(row: RunRow | TotalRow) -> str:
    """Joules, watt hours and watts of a total, or that it has none."""
    if row.energy_j is None:
        return f"no energy: {row.note.removeprefix('not resolvable: ')}"
    kwh = row.energy_j / J_PER_KWH
    hours = f"{digits(kwh, 3)} kWh" if abs(kwh) >= 1 else f"{digits(1e3 * kwh, 3)} Wh"
    power = f" · {digits(row.power_w, 3)} W" if row.power_w is not None else ""
    return f"{with_u95(row.energy_j, row.u95_j, 'J', is_lower_bound=row.is_lower_bound)} ({hours}){power}"


# -- the tree of one device --------------------------------------------------------------------------------------------

Line = list[str] | str
"""Cells of the columns, or one text over all of them but the first."""


@dataclass(frozen=True, slots=True)
class _Block:
    """What a table says of one device."""

    table: PhaseTable
    run: RunRow

    def _is_own(self, row: PhaseRow | TotalRow) -> bool:
        same = (row.device, row.provenance) == (self.run.device, self.run.provenance)
        return same and LAYER not in row.group

    @property
    def phases(self) -> list[PhaseRow]:
        return [row for row in self.table.phases if self._is_own(row)]

    @property
    def totals(self) -> list[TotalRow]:
        return [row for row in self.table.totals if self._is_own(row)]

    def lines(self, settings: Mapping[str, Any]) -> list[Line]:
        """The groups one after the other, with what is not among the ``settings`` of all."""
        if self.run.energy_j is None or not self.phases:
            return []
        lines: list[Line] = []
        above = ""
        for total in self.totals[:MOST_GROUPS]:
            rows = [r for r in self.phases if group_key(r.group) == group_key(total.group)]
            own = {k: v for k, v in total.group.items() if k != _BATCH and k not in settings}
            name = group_line(own) if own or total.group else _outer_phase(rows)
            if name and name != above:
                lines.append(name)
            above = name
            lines += self._group(rows, total)
        more = len(self.totals) - MOST_GROUPS
        return [*lines, f"{more} more groups of phases (--wide)"] if more > 0 else lines

    def outside(self) -> Iterator[str]:
        """The joules of the whole that are in none of the groups, unless they are next to none of it."""
        if self.run.energy_j is None:
            return
        whole_j = self.run.energy_j
        for what, part_j in (("repeated alone", self.run.magnified_j), ("outside phases", self.run.rest_j)):
            if part_j and abs(part_j) > LEAST_REST * abs(whole_j):
                share = f" ({part_j / (whole_j or 1.0):.0%})".replace("%", " %")
                yield f"{what} {digits(part_j, 3)} J{share}"

    def _group(self, rows: list[PhaseRow], total: TotalRow) -> Iterator[Line]:
        batch = attribute_text(total.group[_BATCH]) if _BATCH in total.group else ""
        shares = {id(row): _share(row, total) if len(rows) > 1 else None for row in rows}
        largest = {id(row) for row in sorted(rows, key=lambda row: -(shares[id(row)] or 0.0))[:MOST_ROWS]}
        shown = [row for row in rows if id(row) in largest]
        for row, stem, name, parent in _tree(shown):
            if name == _REST:
                own_name = stem + _rest_name(r for r in rows if r.path.startswith(f"{row.path}/"))
                whole_j = (row.j_per_batch or 0.0) * row.iterations if row.holds_others else total.energy_j
                yield from _rest_line(own_name, row.rest_j, row.rest_u95_j, row.iterations, whole_j)
                continue
            has_inner = any(other.path.startswith(row.path + "/") for other in shown)
            rate = _per_token(row) if _has_tokens(self.table) else _samples_per_s(row, parent)
            yield _cells(row, stem + name, parent, batch, shares[id(row)], rate, has_bar=not has_inner)
            batch = ""
        if more := len(rows) - len(shown):
            hidden = sum(share for row in rows if row not in shown and (share := shares[id(row)]) is not None)
            yield f"{more} more kinds of phases, together {_percent(hidden)} (--wide)"
        if total.rest_j is not None:
            yield from _rest_of_group(rows, total, total.rest_j)
        if len(rows) != 1 or rows[0].iterations != 1:
            speed = f" · {digits(total.samples_per_s, 3)} samples/s" if total.samples_per_s is not None else ""
            if total.tokens_per_batch and total.energy_j is not None:
                speed += f" · {digits(total.energy_j / (total.iterations * total.tokens_per_batch), 3)} {_PER_TOKEN}"
            if (batches := total.batches_per_optimizer_step) and total.energy_j is not None:
                speed += f" · {digits(total.energy_j / total.iterations * batches, 3)} J/optimizer step"
            in_s = f" in {seconds(total.time_s)}"
            yield f"total {_whole(total).replace(' · ', in_s + ' · ', 1)}{speed}"
        idle = above_idle(total, self.table.idle)
        if idle["above_idle_j"] is not None:
            above = with_u95(idle["above_idle_j"], idle["above_idle_u95_j"], "J")
            yield f"above idle {above} · idle {digits(idle['idle_w'], 3)} W"


def _outer_phase(rows: Sequence[PhaseRow]) -> str:
    """The phase around all of a group that says nothing of itself, as a warm-up; empty where it is a row of its own."""
    outer = {row.path.partition("/")[0] for row in rows}
    return outer.pop() if len(outer) == 1 and all("/" in row.path for row in rows) else ""


_REST = "(rest)"


def _rest_of_group(rows: Sequence[PhaseRow], total: TotalRow, rest_j: float) -> Iterator[Line]:
    """Of a group's rest what no phase around others has in a line of its own."""
    places = containers({row.place: (row.is_iteration, float(row.iterations)) for row in rows})
    around = [row for row in rows if row.holds_others or row.place in places]
    own_j, n = sum((row.rest_j or 0.0) * row.iterations for row in around), total.iterations or 1
    if rest_j - own_j < 0 <= rest_j:  # phases of two processes overlap: what they have around them counts for both
        return
    u95_j = total.rest_u95_j / n if total.rest_u95_j is not None and not own_j else None
    yield from _rest_line(_rest_name(rows), (rest_j - own_j) / n, u95_j, n, total.energy_j)


def _rest_line(name: str, each_j: float | None, u95_j: float | None, n: int, whole_j: float | None) -> Iterator[Line]:
    """The line of what is in none of the phases inside something, joules of each of ``n``, and all as a share of
    ``whole_j``; none where that is next to nothing."""
    share = each_j * n / whole_j if each_j is not None and whole_j else 0.0
    if each_j is not None and abs(share) >= LEAST_REST:
        joules = digits(each_j, 3) if u95_j is None else with_u95(each_j, u95_j)
        yield ["", name, "", "", joules, _percent(share), bar(share, _BAR), ""]


def _rest_name(inner: Iterable[PhaseRow]) -> str:
    return _REST if all(row.is_resolvable for row in inner) else "(rest, n.r.)"


def _tree(rows: Sequence[PhaseRow]) -> Iterator[tuple[PhaseRow, str, str, PhaseRow | None]]:
    """The rows in the order of a tree: each with the lines that lead to it, its name, and the row around it. Behind
    those inside a row it comes once more, named `_REST`."""
    around: dict[int, PhaseRow | None] = {}
    for row in rows:
        outer = [r for r in rows if row.path.startswith(r.path + "/")]
        around[id(row)] = max(outer, key=lambda r: len(r.path), default=None)

    def below(parent: PhaseRow | None, stem: str) -> Iterator[tuple[PhaseRow, str, str, PhaseRow | None]]:
        inner = [row for row in rows if around[id(row)] is parent]
        has_rest = parent is not None and _has_rest(parent, bool(inner))
        for i, row in enumerate(inner):
            is_last = i == len(inner) - 1 and not has_rest
            name = row.phase if parent is None else row.path[len(parent.path) + 1 :]
            if sum(other.path == row.path for other in rows) > 1:
                name += f" ({row.timing})"
            yield row, "" if parent is None else stem + ("└ " if is_last else "├ "), name, parent
            yield from below(row, "" if parent is None else stem + ("  " if is_last else "│ "))
        if parent is not None and has_rest:
            yield parent, stem + "└ ", _REST, parent

    yield from below(None, "")


def _has_rest(row: PhaseRow, has_inner: bool) -> bool:
    """Whether the line of what is in no phase inside stands below a row."""
    if row.rest_j is None or not row.j_per_batch or not (has_inner or row.holds_others):
        return False
    return abs(row.rest_j) >= LEAST_REST * abs(row.j_per_batch)


def _share(row: PhaseRow, total: TotalRow) -> float | None:
    """Joules of all phases of a kind, as a share of those of its group; None where they are more than these: they
    hold phases of other groups, or overlap each other."""
    if row.j_per_batch is None or not total.energy_j or row.holds_others:
        return None
    share = row.j_per_batch * row.iterations / total.energy_j
    return share if share < 1 + LEAST_REST else None


def _percent(share: float | None) -> str:
    return "" if share is None else "< 1 %" if 0 < share < LEAST_REST else f"{100 * share:.0f} %"


def _n(row: PhaseRow) -> int:
    """Of how many phases a row says something."""
    return row.n or row.iterations


def _cells(
    row: PhaseRow, name: str, parent: PhaseRow | None, batch: str, share: float | None, rate: str, *, has_bar: bool
) -> list[str]:
    joules = "n.r."
    if row.j_per_batch is not None:
        joules = with_u95(row.j_per_batch, row.u95_j, is_lower_bound=row.is_lower_bound)
    return [
        batch,
        printable(name),
        str(_n(row)) if parent is None or _n(parent) != _n(row) else "",
        digits(row.s_per_batch, 3),
        joules,
        _percent(share),
        bar(share or 0.0, _BAR) if has_bar else "",
        rate,
    ]


def _samples_per_s(row: PhaseRow, parent: PhaseRow | None) -> str:
    is_shown = parent is None and row.samples_per_s is not None and row.phase not in NOT_OF_SAMPLES
    return digits(row.samples_per_s, 3) if is_shown else ""


def _per_token(row: PhaseRow) -> str:
    is_known = row.tokens_per_batch and row.j_per_batch is not None and row.phase not in NOT_OF_SAMPLES
    return digits((row.j_per_batch or 0.0) / (row.tokens_per_batch or 1.0), 3) if is_known else ""


# -- columns -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Widths:
    """Widths of the columns, and where the decimal points of two of them stand."""

    cells: list[int]
    points: dict[int, tuple[int, int]]
    between: str = " "

    def placed(self, column: int, text: str) -> str:
        """A figure with its decimal point below those of the others, and its uncertainty likewise."""
        if column not in self.points or not _is_figure(text):
            return text
        before, after = self.points[column]
        figure, sign, u95 = text.partition(" ± ")
        whole, point, decimals = figure.partition(".")
        return f"{whole:>{before}}{(point + decimals):<{after}}{sign}{u95}"


def _is_figure(text: str) -> bool:
    return text[:1] in tuple("0123456789-≥")


def _widths(columns: Sequence[str], lines: Iterable[Line], width: int) -> _Widths:
    rows = [line for line in lines if isinstance(line, list)]
    points = {}
    for column in (3, 4):
        figures = [row[column].partition(" ± ")[0] for row in rows if _is_figure(row[column])]
        parts = [figure.partition(".") for figure in figures]
        before, after = (max((len(part[k]) for part in parts), default=0) for k in (0, 2))
        points[column] = (before, after + bool(after))
    aligned = _Widths([], points)
    cells = [
        max([cell_len(heading), *(cell_len(aligned.placed(k, row[k])) for row in rows)])
        for k, heading in enumerate(columns)
    ]
    if not any(row[0] for row in rows):
        cells[0] = 0
    for gap in (2, 1):
        room = width - sum(cells) + cells[1] - gap * (len([c for c in cells if c]) - 1)
        if room >= cells[1]:
            break
    return _Widths([cells[0], max(12, min(cells[1], room)), *cells[2:]], points, " " * gap)


def _joined(line: Line, widths: _Widths) -> str:
    if isinstance(line, str):
        return " " * (widths.cells[0] + len(widths.between) if widths.cells[0] else 0) + line
    cells = []
    for k, (text, width) in enumerate(zip(line, widths.cells, strict=True)):
        if width:
            placed = widths.placed(k, text)
            if cell_len(placed) > width:  # a long name
                placed = set_cell_size(placed, width - 1) + "…"
            cells.append(" " * (width - cell_len(placed)) + placed if _RIGHT[k] else set_cell_size(placed, width))
    return widths.between.join(cells)


# -- several GPUs, and notes -------------------------------------------------------------------------------------------


def _gpus_together(shown: Sequence[RunRow]) -> Iterator[str]:
    """A line for the GPUs of a run together: different sensors, off independently of each other."""
    for provenance in dict.fromkeys(row.provenance for row in shown):
        gpus = [r for r in shown if r.provenance == provenance and r.device.startswith("gpu")]
        if len(gpus) > 1 and all(row.energy_j is not None for row in gpus):
            u95_j = [row.u95_j for row in gpus]
            u95 = None if None in u95_j else hypot(*(u or 0.0 for u in u95_j))
            is_bound = any(row.is_lower_bound for row in gpus)
            whole = with_u95(sum(row.energy_j or 0.0 for row in gpus), u95, "J", is_lower_bound=is_bound)
            yield f"{first_of([row.device for row in gpus], ' + ', 4)} together: {whole}"


_NUMBER = re.compile(r"[-+±]?\s*\d[\d.e+-]*\s*(%|[mµnk]?s\b|[mk]?J\b|[mk]?W\b)?")


def _print_notes(table: PhaseTable, blocks: Sequence[_Block], console: Console, *, all_notes: bool) -> None:
    """The notes of all rows that are shown, those of one cause together; what shows no number comes first, then
    what was lost and why, then what was repeated alone."""
    has_devices = len(blocks) > 1
    # By cause the first text, the rows that have it, and those that have it with other figures.
    causes: dict[tuple[str, str], tuple[str, list[str], list[str]]] = {}
    for block in blocks:
        if block.run.energy_j is None:
            continue
        rows = [("", block.run.note, False)]
        rows += [("total", row.note, row.energy_j is None) for row in block.totals]
        rows += [(row.phase, row.note, not row.is_resolvable) for row in block.phases]
        rows += [("idle", row.note, False) for row in table.idle if row.device == block.run.device]
        for name, note, is_unresolved in rows:
            texts = note.split("; ")
            if is_unresolved:  # why nothing was folded either is one reason more
                texts = [f"n.r., {(note if all_notes else texts[0]).removeprefix('not resolvable: ')}"]
            for text in filter(None, texts):
                key = (block.run.device, text if all_notes else _NUMBER.sub("", text))
                first, same, others = causes.setdefault(key, (text, [], []))
                names = same if text == first else others
                if name not in same + others and "" not in same:  # what is said of the run holds for all of it
                    names.append(name)
    notes: dict[tuple[str, str], list[str]] = {}
    for (device, _), (text, same, others) in causes.items():
        also = f" (and, with other figures, {first_of(others, ', ', 4)})" if others else ""
        whose = first_of(list(filter(None, same)), ", ", 60 if all_notes else 6)
        notes.setdefault((whose, text + also), []).append(device)
    first_ones = ("another program", "n.r.", "missing ", "magnified", "not magnified")
    ordered = sorted(notes.items(), key=lambda note: [not note[0][1].startswith(s) for s in first_ones])
    shown = ordered if all_notes else ordered[:MOST_NOTES]
    for (whose, text), devices in shown:
        about = " ".join(filter(None, (first_of(devices, ", ", 4) if has_devices else "", whose)))
        line = printable(f"{about}: {text}" if about else text)
        _print(console, hanging_indent(f" {line}", min(console.width, 100)), "dim")
    hidden = len(ordered) - len(shown)
    more = f"; {hidden} more note{'s' * (hidden > 1)}: --notes" if hidden else ""
    _print(console, f" ± U95: half of the 95 % interval; all columns: --wide{more}", "dim")
