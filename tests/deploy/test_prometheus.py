"""Rules, alerts and the dashboard that lie beside the exporter."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from powerd_client.accounting.exporter import Exporter

FOLDER = Path(__file__).parents[2] / "powerd/deploy/prometheus"
_METRIC = re.compile(r"\b(?:device:|phase:)?powerd_\w+(?::\w+)?")


def named(text: str) -> set[str]:
    return set(_METRIC.findall(text))


def known() -> set[str]:
    """Names of all samples of the exporter, and what the rules record."""
    families = list(Exporter(["tcp://127.0.0.1:9"]).collect())
    samples = {f"{family.name}_total" if family.type == "counter" else family.name for family in families}
    return samples | set(re.findall(r"record: (\S+)", (FOLDER / "rules.yml").read_text()))


def test_rules_and_dashboard_ask_for_what_there_is() -> None:
    panels = json.loads((FOLDER / "dashboard.json").read_text())["panels"]
    asked = {name for panel in panels for target in panel["targets"] for name in named(target["expr"])}
    asked |= {name for expression in re.findall(r"expr: (.*)", (FOLDER / "rules.yml").read_text())
              for name in named(expression)}  # fmt: skip
    assert len(asked) > 10
    assert asked <= known()
    # A device's lines measure the same power by other means.
    assert not any(name.startswith("powerd_energy_joules") for name in asked)
    families = Exporter(["tcp://127.0.0.1:9"]).collect()
    (of_lines,) = (family for family in families if family.name == "powerd_energy_joules")
    assert "never add them" in of_lines.documentation


@pytest.mark.parametrize("words", [["check", "rules", "rules.yml"], ["test", "rules", "rules_test.yml"]])
def test_prometheus_takes_the_rules_and_each_alert_goes_off(words: list[str]) -> None:
    if shutil.which("promtool") is None:
        pytest.skip("there is no promtool (Debian: prometheus)")
    done = subprocess.run(["promtool", *words], cwd=FOLDER, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_is_tried() -> None:
    alerts = set(re.findall(r"alert: (\w+)", (FOLDER / "rules.yml").read_text()))
    assert alerts == set(re.findall(r"alertname: (\w+)", (FOLDER / "rules_test.yml").read_text()))
