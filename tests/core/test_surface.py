"""Each package's public names are there, and nothing is exported by accident."""

import importlib

import pytest


@pytest.mark.parametrize(
    "package",
    [
        "powerd_core",
        "powerd_core.model",
        "powerd_core.wire",
        "powerd_client",
        "powerd_daemon",
        "powerd_daemon.config",
        "powerd_analytics",
    ],
)
def test_all_names_exist(package):
    module = importlib.import_module(package)
    names = getattr(module, "__all__", [])
    assert sorted(names) == list(dict.fromkeys(sorted(names)))
    for name in names:
        assert getattr(module, name) is not None
