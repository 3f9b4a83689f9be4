"""Accelerators without events that can be used: waited for before every mark, and said."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from powerd_client import Meter, open_run
from powerd_client.accelerator import Synchronized, choose_timing
from powerd_client.markwriter import MarkWriter
from powerd_core.errors import ConfigError
from support.fake_torch import FakeTorch

NO_CUDA = SimpleNamespace(is_available=lambda: False)


def accelerator(kind: str | None, waits: list[str]) -> SimpleNamespace:
    """`torch.accelerator`, from 2.6 on."""
    return SimpleNamespace(
        is_available=lambda: kind is not None,
        current_accelerator=lambda: SimpleNamespace(type=kind) if kind else None,
        synchronize=lambda: waits.append(str(kind)),
    )


def imported(monkeypatch: pytest.MonkeyPatch, **members: Any) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(**{"cuda": NO_CUDA, **members}))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["mps", "xpu", "npu"])
@pytest.mark.parametrize("device", ["auto", "accelerator"])
def test_an_accelerator_without_cuda_is_waited_for_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch, kind: str, device: str
) -> None:
    waits: list[str] = []
    imported(monkeypatch, accelerator=accelerator(kind, waits))
    timing = choose_timing(device)
    assert (timing.name, timing.torch) == ("host-synchronised", None)
    assert timing.said == f"every mark waits for {kind} to be done (synchronize), and is timed by the host"
    assert timing.was_asked_for == (device == "accelerator")
    assert timing.synchronize is not None
    timing.synchronize()
    assert waits == [kind]


def test_releases_before_torch_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[str] = []
    mps = SimpleNamespace(synchronize=lambda: waits.append("mps"))
    backends = SimpleNamespace(mps=SimpleNamespace(is_available=lambda: True))
    xpu = SimpleNamespace(is_available=lambda: False, synchronize=lambda: waits.append("xpu"))
    imported(monkeypatch, mps=mps, xpu=xpu, backends=backends)
    timing = choose_timing("auto")
    assert timing.synchronize is not None
    timing.synchronize()
    assert waits == ["mps"]
    assert "mps" in timing.said


def test_without_an_accelerator_the_host_times_and_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    imported(monkeypatch, accelerator=accelerator(None, []))
    assert choose_timing("auto") == choose_timing("host")
    assert (choose_timing("auto").name, choose_timing("auto").said) == ("host", "")
    with pytest.raises(ConfigError, match="no accelerator here"):
        choose_timing("accelerator")
    monkeypatch.delitem(sys.modules, "torch")
    assert choose_timing("auto").name == "host"
    with pytest.raises(ConfigError, match="was not imported"):
        choose_timing("accelerator")


def test_a_driver_that_is_half_there_does_not_stop_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> bool:
        raise RuntimeError("driver and library do not match")

    imported(monkeypatch, accelerator=SimpleNamespace(is_available=broken))
    assert choose_timing("auto").name == "host"


def test_cuda_comes_first_and_the_users_own_function_before_all(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = FakeTorch()
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert choose_timing("auto").torch is torch
    assert choose_timing("auto").name == "device"
    assert choose_timing("host").name == "host"
    assert choose_timing("cuda", print).synchronize is print


def test_a_forked_child_leaves_the_device_alone(tmp_path: Path) -> None:
    waits: list[int] = []
    writer = MarkWriter(tmp_path)
    mark = Synchronized(lambda: waits.append(1), writer)
    mark(0)
    child = os.fork()
    if child == 0:
        mark(~0)
        os._exit(len(waits))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    mark(~0)
    assert waits == [1, 1]
    writer.close()


def test_the_run_and_the_user_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    waits: list[str] = []
    imported(monkeypatch, accelerator=accelerator("mps", waits))
    with Meter(out=tmp_path / "run.h5") as meter, meter.phase("forward"):
        pass
    assert waits == ["mps", "mps"]
    text = "every mark waits for mps to be done (synchronize), and is timed by the host"
    assert capfd.readouterr().err == f"powerd: {text}; Meter(device='host') would not wait\n"
    with open_run(tmp_path / "run.h5") as file:
        assert json.loads(file["phases/kinds"].asstr()[0])["timing"] == "host-synchronised"
        assert text in [json.loads(m)["text"] for m in file["messages"].asstr()]
