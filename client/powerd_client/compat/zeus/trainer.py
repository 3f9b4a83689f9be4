"""Zeus' power limit optimizer as a callback of Hugging Face's Trainer; apart, as it needs transformers."""

from __future__ import annotations

from typing import Any

import transformers  # type: ignore[import-not-found]

from powerd_client.compat.zeus.power_limit import GlobalPowerLimitOptimizer


class HFGlobalPowerLimitOptimizer(transformers.TrainerCallback):  # type: ignore[misc]
    """``Trainer(..., callbacks=[HFGlobalPowerLimitOptimizer(monitor)])``; takes what `GlobalPowerLimitOptimizer`
    takes."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.optimizer = GlobalPowerLimitOptimizer(*arguments, **options)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.optimizer.on_epoch_end()

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.optimizer.on_step_begin()
