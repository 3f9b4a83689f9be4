"""A meter whose marks stay in memory, paired as the run file's are."""

from __future__ import annotations

from threading import get_ident

from powerd_client import Meter
from powerd_client.signals.pairing import MODEL_BY_CLASS, PhaseSpans, pair_marks
from powerd_core.marks import Mark


class Tape:
    """Stands where `MarkWriter` does. One tick a mark."""

    def __init__(self):
        self.failure, self.dropped, self.token = None, 0, 0
        self.kinds, self.cuts, self.notes, self.marks = {}, {}, [], []
        self.devices, self.events = [], []
        self.is_closed = False

    def kind(self, name, attributes, timing):
        return self._number((name, tuple(sorted(attributes.items()))))

    def cut(self, kind):
        number = self._number(("", kind))
        self.cuts[number] = kind
        return number

    def _number(self, key):
        return self.kinds.setdefault(key, len(self.kinds))

    def identify(self, devices):
        self.devices = devices

    def note(self, text, level="warning"):
        self.notes.append(text)

    def event(self, name, values, t_ns=None):
        self.events.append((name, dict(values)))

    def has_kind(self, name):
        return any(kind == name for kind, *_ in self.kinds)

    def crowded(self):
        return []

    def mark(self, code, thread=None):
        if not self.is_closed:
            begins = code >= 0
            thread = get_ident() if thread is None else thread
            self.marks.append(Mark(code if begins else ~code, begins, thread, len(self.marks) + 1))

    def close(self):
        self.is_closed = True

    def phases(self):
        phases = PhaseSpans()
        numbers = {number: number for number in self.kinds.values() if number not in self.cuts}
        names = {number: self.label(key) for key, number in self.kinds.items() if number not in self.cuts}
        pair_marks(phases, self.marks, process=0, kinds=numbers, names=names, cuts=self.cuts)
        self.problems = [text for _, text in phases.problems]
        phases.sort()
        return phases, names

    @staticmethod
    def label(key):
        name, attributes = key
        return name + "".join(f":{value}" for key, value in attributes if key != MODEL_BY_CLASS)

    def tree(self, drop=()):
        """The phases as text: ``forward[layer:0 layer:1] backward``, a cut one with ``!``."""
        phases, names = self.phases()

        def children(parent):
            found = (i for i, above in enumerate(phases.parent) if above == parent)
            return " ".join(text for i in found if (text := shown(i)))

        def shown(i):
            inner, name = children(i), names[phases.kind[i]]
            if name in drop:
                return inner
            return name + "!" * phases.cut[i] + (f"[{inner}]" if inner else "")

        return children(-1)


class TapedMeter(Meter):
    """A meter without recorder and powerd."""

    def _open(self, *_, **__):
        self.tape = Tape()
        self._writer, self._mark = self.tape, self.tape.mark
        self._event = lambda name, values: self.tape.events.append((name, dict(values)))

    def tree(self, drop=()):
        return self.tape.tree(drop)
