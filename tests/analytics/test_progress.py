"""Progress: late, and for people only."""

import io

import pytest
from rich.console import Console

from powerd_analytics.progress import LateProgress


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_log_gets_nothing_of_a_bar(is_terminal):
    text = io.StringIO()
    console = Console(file=text, force_terminal=is_terminal, width=80)
    with LateProgress(console, delay_s=0.0) as progress:
        progress(0.5, "half of it")
    assert ("half of it" in text.getvalue()) is is_terminal
    assert bool(text.getvalue()) is is_terminal
