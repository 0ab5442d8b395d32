"""An optimizer with a model averager after each step (Lin et al. 2018, post-local SGD)."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from resilin.ddp.model_averaging.averagers import ModelAverager
from resilin.ddp.model_averaging.saved import count_of
from resilin.ddp.model_averaging.wrapping import WrappingOptimizer
from resilin.optim.optimizer import Optimizer, check_state_dict


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
        """Take over both, or nothing; a state without "step" starts the averager at 0, with a warning.

        Raises as `optim.load_state_dict`, and UsageError for a "step" that is no whole number.
        """
        step = self._step_of(state_dict)
        if "step" not in state_dict:
            warnings.warn("PostLocalSGDOptimizer: the state has no step of an averager: it starts at 0", stacklevel=2)
        self.optim.load_state_dict({name: value for name, value in state_dict.items() if name != "step"})
        self.averager.step = step

    def check_loadable(self, state_dict: Mapping[str, Any]) -> None:
        """What `load_state_dict` raises for a state that does not fit, before anything is changed."""
        self._step_of(state_dict)
        self.optim.check_loadable(state_dict)

    def _step_of(self, state_dict: Mapping[str, Any]) -> int:
        check_state_dict(self, state_dict)
        return count_of(f"{type(self).__name__}.load_state_dict", state_dict, "step") if "step" in state_dict else 0
