"""The documentation names every option of the meters and counters, and no other."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from powerd_daemon.sources.nvml import NvmlOptions
from powerd_daemon.sources.rapl import RaplOptions
from powerd_daemon.sources.serial_line import SerialLineOptions
from powerd_daemon.sources.wt310e import Wt310eOptions

TEXT = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()


@pytest.mark.parametrize(
    ("kind", "options"),
    [("wt310e", Wt310eOptions), ("serial-line", SerialLineOptions), ("rapl", RaplOptions), ("nvml", NvmlOptions)],
)
def test_options_are_those_of_the_table(kind, options):
    row = next(line for line in TEXT.splitlines() if line.startswith(f"| `{kind}` |"))
    assert re.findall(r"`(\w+)`", row.split("|")[2]) == [f.name for f in fields(options)]
