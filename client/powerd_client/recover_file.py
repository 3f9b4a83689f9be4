"""A new run file out of a damaged one: every chunk that is whole, and a word on each that is not."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import h5py

from powerd_client import recover_rows
from powerd_client.datasets import DIGEST, digest, own_name, write_documents
from powerd_client.fileshape import FARTHEST_NS, read_json, texts_of
from powerd_client.filetables import GROUPS, TEXTS
from powerd_client.findings import LEVELS
from powerd_client.recover_clocks import recover_clocks
from powerd_client.recover_gaps import agrees, recover_gaps, recover_parts
from powerd_client.recover_lines import Clocks, LineRecovery, recover_line
from powerd_client.recover_phases import LOST_KIND, RecoveredPhases, mend_kinds, recover_phases
from powerd_client.recover_rows import BROKEN, members, open_damaged
from powerd_client.tables import FORMAT, seal, write_device, write_gaps, write_head
from powerd_core.errors import RunFileError
from powerd_core.model import CLOCK_NAME

_HEAD: dict[str, Any] = {
    "run_id": "unknown",
    "created_utc": "",
    "powerd_version": "",
    "host_clock": CLOCK_NAME,
    "t_start_ns": 0,
    "t_stop_ns": 0,
    "complete": 0,
    "rebuilt": 0,
    "command": "[]",
    "environment": "{}",
    "reception": "{}",
}


class FileRecovery:
    """Copies what is left of one damaged run file into a new one; ``lost`` says what was not."""

    def __init__(self, path: Path, out: h5py.File, progress: Callable[[float, str], None]) -> None:
        self.lost: list[str] = []
        self._path, self._out, self._progress = path, out, progress
        self._copied: recover_rows.Copies = {}

    def run(self) -> None:
        """Do it. Raises `RunFileError` when the file cannot even be opened, or is no run."""
        with open_damaged(self._path) as (source, missing):
            if missing:
                self.lost.append(f"the last {missing} bytes of the file, which was cut off")
            root = members(source, self.lost)
            self._recover(source, root)

    def _recover(self, source: h5py.File, root: dict[str, Any]) -> None:
        self._copied = recover_rows.copies(root)
        named = recover_rows.attributes(source, ("format",), self._copied).get("format")
        if named != FORMAT and "lines" not in root:
            raise RunFileError(f"{self._path} is an HDF5 file, but no powerd run")
        head = self._head(source)
        clocks = recover_clocks(root.get("clocks"), self._out, self._copied, self.lost)
        phases, kinds = self._phases(root)
        limits = (head["t_start_ns"], head["t_stop_ns"])
        lines = self._lines(root.get("lines"), clocks, limits)
        self._devices(root.get("devices"), {line.name for line in lines})
        phases.write(self._out, kinds)
        gaps, is_whole = recover_gaps(root.get("gaps"), self._out["lines"], self.lost)
        if is_whole:
            recover_parts(root.get("parts"), self._out, lines, self.lost)
        write_gaps(self._out, [gap for line in lines for gap in line.gaps] + gaps)
        if "parts" in self._out and not agrees(self._out):
            del self._out["parts"]
            self.lost.append("the count of what was received, which does not fit what is left")
        messages = self._texts(root, "messages")
        reach = [self._reach(), *([phases.reach_ns] if phases.reach_ns else [])]
        head["t_start_ns"] = head["t_start_ns"] or min(first for first, _ in reach)
        head["t_stop_ns"] = max(head["t_start_ns"], head["t_stop_ns"] or max(last for _, last in reach))
        if self.lost:
            head["complete"] = 0
        self._say_left_out(root)
        said = f"recovered from the damaged file {self._path.name}"
        messages += [{"t_ns": head["t_stop_ns"], "level": "warning", "text": f"lost: {text}"} for text in self.lost]
        messages.append({"t_ns": head["t_stop_ns"], "level": "warning", "text": said})
        write_documents(self._out, "messages", sorted(messages, key=lambda m: m["t_ns"]))
        write_head(self._out, head)
        seal(self._out)

    def _say_left_out(self, root: dict[str, Any]) -> None:
        """What is not taken over even when it is whole. Made of runs, it makes none incomplete."""
        for name in root:
            if name == "tables":
                self.lost.append("/tables, which are not taken over: `joules tables --into` makes them again")
            elif name not in (*GROUPS, *TEXTS):
                self.lost.append(f"/{name}, which is no part of a run that this release knows")

    def _head(self, source: h5py.File) -> dict[str, Any]:
        found = recover_rows.attributes(source, (*_HEAD, DIGEST), self._copied)
        with suppress(*BROKEN):
            if not self._copied and DIGEST in found and found[DIGEST] != digest(source):
                self.lost.append("certainty about the attributes: at least one is not what it was")
        head = {}
        for name, usual in _HEAD.items():
            try:
                value = type(usual)(found[name])
                if isinstance(usual, str) and usual[:1] in ("[", "{"):
                    value = json.dumps(type(read_json(usual))(read_json(value)))
                elif isinstance(usual, int) and abs(value) > FARTHEST_NS:
                    raise ValueError("no such time")
                head[name] = value
            except BROKEN:
                self.lost.append(f"attribute {name!r} of the run")
                head[name] = usual
        return head | {"complete": int(head["complete"] == 1), "rebuilt": int(head["rebuilt"] == 1)}

    def _lines(self, group: h5py.Group | None, clocks: Clocks, limits: tuple[int, int]) -> list[LineRecovery]:
        out, found = self._out.create_group("lines"), []
        inside = members(group, self.lost)
        for number, (name, line) in enumerate(inside.items()):
            self._progress(number / len(inside), f"recovering {name}")
            if not isinstance(line, h5py.Group):
                continue
            made = recover_line(line, out, clocks, limits, self._copied, self.lost)
            if made is None:
                continue
            found.append(made)
            for count, what in (
                (made.dropped, "are gone"),
                (made.flagged, "have lost a column: they are flagged, and no values"),
                (made.retimed, "have been given times anew"),
            ):
                if count:
                    self.lost.append(f"line {name!r}: {count} readings {what}")
        return found

    def _devices(self, group: h5py.Group | None, lines: set[str]) -> None:
        out = self._out.create_group("devices")
        for name, device in members(group, self.lost).items():
            try:
                head = recover_rows.attributes(device, ("feeds", "description", "uuid", "pci"), self._copied)
                feeds, description = texts_of(head["feeds"]), str(head.get("description", ""))
                uuid, pci = str(head.get("uuid", "")), str(head.get("pci", ""))
            except BROKEN as error:
                self.lost.append(f"device {name!r} ({error})")
                continue
            gone = [feed for feed in feeds if feed not in lines]
            if gone:
                # Under its own name the sum of what is left would pass for the device's power.
                self.lost.append(f"device {name!r} is without {', '.join(gone)}, and named so")
                name = f"{name} without {', '.join(gone)}"[:200]  # noqa: PLW2901
            if own_name(name) not in out:
                write_device(out, name, [feed for feed in feeds if feed in lines], description, uuid, pci)

    def _phases(self, root: dict[str, Any]) -> tuple[RecoveredPhases, list[dict[str, Any]]]:
        group = members(root.get("phases"), self.lost)
        kinds = self._texts(group, "kinds", LOST_KIND)
        mend_kinds(kinds)
        processes = self._texts(root, "processes", {})
        phases = recover_phases(group, kinds, len(processes), self.lost)
        write_documents(self._out, "processes", processes)
        return phases, kinds

    def _texts(self, group: dict[str, Any], name: str, instead: dict[str, Any] | None = None) -> list[dict[str, Any]]:
        """A table of objects; ``instead`` stands for each that is lost, which is left out without it."""
        found, claimed = recover_rows.objects(group.get(name))
        if instead is None:
            found = {row: d for row, d in found.items() if _is_message(d)}
        if len(found) < claimed:
            self.lost.append(f"{claimed - len(found)} of {claimed} {name}")
        if name not in group:
            self.lost.append(f"the table of {name}")
        if instead is None:
            return list(found.values())
        return [found.get(row, dict(instead)) for row in range(claimed)]

    def _reach(self) -> tuple[int, int]:
        edges = [(int(t[0]), int(t[-1])) for line in self._out["lines"].values() if len(t := line["t_ns"])]
        return (min(e[0] for e in edges), max(e[1] for e in edges)) if edges else (0, 0)


def _is_message(document: dict[str, Any]) -> bool:
    t_ns = document.get("t_ns")
    return (
        isinstance(t_ns, int)
        and abs(t_ns) < FARTHEST_NS
        and document.get("level") in LEVELS
        and isinstance(document.get("text"), str)
    )
