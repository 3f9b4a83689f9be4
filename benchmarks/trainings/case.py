"""What a case of `bench_trainings` is."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of trainings, and the truth that they are held against."""

    title: str
    judge: Callable[[argparse.Namespace, Path], bool]
    """Makes the trainings, with their run files in a folder, and prints figures; whether all targets are met."""
    options: Mapping[str, Any]
    """By their defaults, as `common.options` takes them."""
    on_gpu: bool = False
