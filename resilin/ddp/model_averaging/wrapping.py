"""An optimizer around another one."""

from __future__ import annotations

from typing import Any

from resilin.optim.optimizer import Closure, Group, Optimizer


class WrappingOptimizer(Optimizer):
    """Shares the groups, defaults and state of `optim`, so that schedulers and `elastic.State` see those; its own
    hooks run around its own `step`.
    """

    def __init__(self, optim: Optimizer) -> None:
        if not isinstance(optim, Optimizer):
            raise TypeError(f"{type(self).__name__}: expected an Optimizer, got {type(optim).__name__}")
        self.optim = optim
        self._make_hooks()

    @property
    def param_groups(self) -> list[Group]:  # type: ignore[override]
        """Those of the wrapped optimizer."""
        return self.optim.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        """That of the wrapped optimizer."""
        return self.optim.state

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        """Those of the wrapped optimizer."""
        return self.optim.defaults

    @property
    def _kind(self) -> Optimizer:
        return self.optim._kind

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As the wrapped optimizer's."""
        self.optim.zero_grad(set_to_none)

    def add_param_group(self, param_group: Group) -> None:
        """As the wrapped optimizer's."""
        self.optim.add_param_group(param_group)

    def step(self, closure: Closure | None = None) -> Any:
        """A step of the wrapped optimizer, then what the subclass does."""
        loss = self.optim.step(closure)
        self._after_step()
        return loss

    def _after_step(self) -> None:
        raise NotImplementedError(f"{type(self).__name__} must define _after_step()")

    def __repr__(self) -> str:
        return f"{type(self).__name__} of {self.optim!r}"
