"""Each package's public names are there, and nothing is exported by accident."""

import importlib

import pytest


@pytest.mark.parametrize(
    "package",
    ["powerd_core", "powerd_client", "powerd_client.compat.codecarbon", "powerd_analytics"],
)
def test_all_names_exist(package):
    module = importlib.import_module(package)
    assert len(set(module.__all__)) == len(module.__all__)
    for name in module.__all__:
        assert getattr(module, name) is not None
