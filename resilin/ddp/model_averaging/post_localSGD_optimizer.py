"""An optimizer with a model averager after each step (Lin et al. 2018, post-local SGD)."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from resilin.ddp.model_averaging.averagers import ModelAverager
from resilin.ddp.model_averaging.wrapping import WrappingOptimizer
from resilin.optim.optimizer import Optimizer


class PostLocalSGDOptimizer(WrappingOptimizer):
    """`optim.step()`, then `averager.average_parameters()`. Goes with `post_localSGD_hook`.

    `warmup_steps` of the averager must be the hook's `start_localSGD_iter`. In `elastic.State`, commit only after steps
    in which all ranks averaged (their parameters are equal then), with snapshot=True: a collective runs between the
    optimizer's writes and the commit.
    """

    def __init__(self, optim: Optimizer, averager: ModelAverager) -> None:
        super().__init__(optim)
        if not isinstance(averager, ModelAverager):
            raise TypeError(f"PostLocalSGDOptimizer: expected a ModelAverager, got {type(averager).__name__}")
        self.averager = averager

    def _after_step(self) -> None:
        self.averager.average_parameters(self.param_groups)

    def state_dict(self) -> dict[str, Any]:
        """That of `optim`, with the averager's "step", so that it does not warm up again."""
        return {**self.optim.state_dict(), "step": self.averager.step}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over both; a state without "step" starts the averager at 0, with a warning."""
        self.optim.load_state_dict({name: value for name, value in state_dict.items() if name != "step"})
        if "step" not in state_dict:
            warnings.warn("PostLocalSGDOptimizer: the state has no step of an averager: it starts at 0", stacklevel=2)
        self.averager.step = int(state_dict.get("step", 0))
