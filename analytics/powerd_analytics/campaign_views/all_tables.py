"""The tables of a campaign, by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from powerd_analytics.campaign_views.campaign_figures import SINGLE, Campaign, is_single
from powerd_analytics.campaign_views.cell_tables import (
    accuracy_table,
    averages_table,
    cells_table,
    efficiency_table,
    gain_table,
    kernels_table,
    phases_table,
    spread_table,
    testbed_table,
    trainings_table,
)
from powerd_analytics.campaign_views.group_tables import (
    floor_table,
    machines_table,
    marginals_table,
    merits_table,
    minima_table,
    optimum_table,
    ranges_table,
    savings_table,
    scaling_table,
    slowdown_table,
)
from powerd_analytics.output.export import Table, with_provenance
from powerd_analytics.runs.ranks import notes_of_runs

_MAKERS: dict[str, Callable[[Campaign], Table]] = {
    "cells": cells_table,
    "phases": phases_table,
    "accuracy": accuracy_table,
    "minima": minima_table,
    "merits": merits_table,
    "ranges": ranges_table,
    "savings": savings_table,
    "scaling": scaling_table,
    "floor": floor_table,
    "machines": machines_table,
    "marginals": marginals_table,
    "optimum": optimum_table,
    "slowdown": slowdown_table,
    "efficiency": efficiency_table,
    "averages": averages_table,
    "gain": gain_table,
    "kernels": kernels_table,
    "testbed": testbed_table,
    "spread": spread_table,
    "trainings": trainings_table,
}
"""By name, in the order of the page."""
OF_THE_BEST = ("minima", "merits", "ranges", "savings", "marginals", "optimum", "slowdown")
"""Those that say what is best, or better, which takes repeats."""
ON_REQUEST = ("merits", "spread", "trainings")
"""Those that are not shown unless they are asked for."""


def campaign_tables(campaign: Campaign, names: Sequence[str] = ()) -> list[Table]:
    """The tables that are asked for, by default all that the campaign has."""
    wanted = names or [name for name in _MAKERS if name not in ON_REQUEST]
    tables = [_MAKERS[name](campaign) for name in wanted]
    if is_single(campaign.history):
        tables = [
            replace(t, rows=(), notes=(SINGLE,), bounds=frozenset()) if t.name in OF_THE_BEST else t for t in tables
        ]
    beside = notes_of_runs(f"{m.item.key}: {m.result.shared}" for m in campaign.runs if m.result.shared)
    shown = [with_provenance(table, set(campaign.provenances)) for table in tables if len(table) or table.name in names]
    return [replace(table, notes=(*table.notes, *beside)) for table in shown]
