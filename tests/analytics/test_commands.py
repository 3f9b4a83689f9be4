"""What the analytics add to `powerd`: the responses and the gains of GPUs, kept in one file."""

from __future__ import annotations

import os
import tomllib
from argparse import ArgumentParser, Namespace
from dataclasses import replace
from pathlib import Path

import pytest

from powerd_analytics.gpu_calibration.commands import CalibrateGpu, Identify
from powerd_core.calibration import GpuGain, GpuResponse
from powerd_core.errors import ConfigError

RESPONSE = GpuResponse(
    uuid="GPU-1", driver="580.1", field="nvml_samples", family="low-pass", tau_ms=12.76, u95_tau_ms=0.05, window_ms=0.0,
    u95_window_ms=0.0, age_ms=16.1, u95_age_ms=0.1, delay_ms=3.3, u95_delay_ms=0.1, residual_w=2.0,
    taken="2026-11-23T02:00:00Z",
)  # fmt: skip
GAIN = GpuGain("GPU-1", "nvml_samples", 1.05, 0.004, "gpu0.ext_12v", "2026-11-23T02:00:00Z")


def asked(command: type[Identify | CalibrateGpu], *words: str, **more: object) -> Namespace:
    parser = ArgumentParser()
    parser.register("type", "number", float)
    command.add_arguments(parser)
    return Namespace(**{**more, **vars(parser.parse_args(words))})


def identified(monkeypatch: pytest.MonkeyPatch, *found: GpuResponse) -> None:
    monkeypatch.setattr("powerd_analytics.gpu_calibration.random_loads.identify", lambda gpu, seconds, run: list(found))


def test_what_is_found_is_added_to_what_was_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("POWERD_KEYS", str(tmp_path / "keys"))
    path = tmp_path / "keys" / "gpus.toml"
    identified(monkeypatch, RESPONSE)
    Identify.run(asked(Identify, "gpu0"))
    assert f"written to {path}\n" in capsys.readouterr().out
    monkeypatch.setattr("powerd_analytics.gpu_calibration.gpu_gain.gains", lambda gpu, what, **more: [GAIN])
    CalibrateGpu.run(
        asked(
            CalibrateGpu, file=Path("gpu0"), reference="rails", reference_w=None, reference_u=None, seconds=1, out=None
        )
    )
    assert "gpu0.nvml_samples  gain 1.0500 ± 0.78% by gpu0.ext_12v" in capsys.readouterr().out
    identified(monkeypatch, replace(RESPONSE, tau_ms=11.0), replace(RESPONSE, driver="590.1"))
    Identify.run(asked(Identify, "gpu0"))
    document = tomllib.loads(path.read_text())
    assert [(r["driver"], r["tau_ms"]) for r in document["response"]] == [("580.1", 11.0), ("590.1", 12.76)]
    assert [g["gain"] for g in document["gain"]] == [1.05]
    assert path.stat().st_mode & 0o777 == 0o644
    assert os.listdir(path.parent) == ["gpus.toml"]


def test_a_file_of_ones_own_is_said_to_the_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    identified(monkeypatch, RESPONSE)
    Identify.run(asked(Identify, "--out", str(tmp_path / "mine.toml")))
    assert f'calibration = "{tmp_path}/mine.toml"' in capsys.readouterr().out


@pytest.mark.parametrize(("content", "why"), [("[[response]]\nuuid = 3", "uuid"), ("[", "TOML"), (None, "written")])
def test_a_file_that_cannot_be_added_to_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None, why: str
) -> None:
    identified(monkeypatch, RESPONSE)
    path = tmp_path / "gpus.toml"
    path.mkdir() if content is None else path.write_text(content)
    with pytest.raises(ConfigError, match=why):
        Identify.run(asked(Identify, "--out", str(path)))
    assert path.is_dir() if content is None else path.read_text() == content


def test_a_gpu_has_a_reference() -> None:
    with pytest.raises(ConfigError, match="--reference rails, wall or WATTS"):
        CalibrateGpu.run(asked(CalibrateGpu, file=Path("gpu0"), reference=None, reference_w=None))
