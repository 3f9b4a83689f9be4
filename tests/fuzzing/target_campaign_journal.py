"""A campaign's journal of any contents: its tables and sentences, or one line that says what is damaged."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path

from fuzzing.picker import Picker, expect, spoiled
from powerd_analytics.campaign_views.all_tables import campaign_tables
from powerd_analytics.campaign_views.campaign_figures import Campaign, counted_runs
from powerd_analytics.campaign_views.campaign_page import describe_campaign
from powerd_analytics.campaign_views.findings import findings
from powerd_analytics.campaigns.campaign_file import design_of
from powerd_analytics.campaigns.design import Design
from powerd_analytics.campaigns.journal import NAME, Discard, Journal, read_history
from powerd_analytics.campaigns.runner import Blocks, Runner, begin
from powerd_analytics.campaigns.simulated import Simulated
from powerd_core.errors import PowerdError

_FOLDER = Path(tempfile.gettempdir()) / f"fuzz-campaign-journal-{os.getpid()}"
_DOCUMENT = {
    "campaign": {"name": "c", "command": ["train", "{batch_size}"]},
    "factors": {"batch_size": [32, 64], "power_cap_w": [150, 200]},
    "order": {"reference": {"power_cap_w": 200}},
    "repeats": {"min": 2},
    "work": {"samples": 640},
    "simulation": {"network": "vgg16", "iterations": 10, "rows": [{"phases": {"forward": [3, 1], "update": [1, 1]},
                   "results": {"loss": 0.5}}]},
}  # fmt: skip


def one(data: bytes) -> None:
    picker = Picker(data)
    shutil.rmtree(_FOLDER, ignore_errors=True)
    _FOLDER.mkdir()
    try:
        (_FOLDER / NAME).write_bytes(_spoiled_lines(picker) if picker.flip() else picker.rest())
        history = read_history(_FOLDER)
        design = design_of(_DOCUMENT)
        design = design.with_levels(history.levels) if history.fingerprint else design
        describe_campaign(Campaign(design, history))
        assert Blocks(design).planned(history) >= 0
        if counted_runs(design, history):
            campaign_tables(Campaign(design, history))
            findings(Campaign(design, history))
    except PowerdError as error:
        expect(len(str(error)) < 1000 and "\n" not in str(error), error)
    finally:
        shutil.rmtree(_FOLDER)


def _spoiled_lines(picker: Picker) -> bytes:
    lines = [json.loads(line) for line in _good()]
    for _ in range(1 + picker.below(3)):
        at = picker.below(len(lines))
        how = picker.below(4)
        if how == 1:
            lines.insert(at, lines[picker.below(len(lines))])
        elif how == 2:
            del lines[at]
        else:
            lines[at] = spoiled(lines[at], picker)
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


@cache
def _good() -> tuple[str, ...]:
    """A campaign of eight runs, of which one was given up."""
    with tempfile.TemporaryDirectory() as name, Journal(Path(name), is_synced=False) as journal:
        design: Design = design_of(_DOCUMENT)
        simulated = Simulated.named(design, "sim:rtx6000")
        design = begin(design, simulated, journal)
        Runner(design, Blocks(design), Simulated(design, simulated.card), journal).run()
        cell = design.cells()[0]
        journal.write(
            "discarded",
            item=f"{cell.id}-7",
            reason=Discard("failed").reason,
            text="status 1",
            file=f"runs/{cell.id}-7-1.h5",
        )
        journal.write("given-up", item=f"{cell.id}-7")
        journal.write("left", cell=cell.id, reason="failed", text="status 1")
        return tuple((Path(name) / NAME).read_text().splitlines())
