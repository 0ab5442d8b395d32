"""What one rank owns: its pieces of every row, and the inner optimizer that updates them and remembers their state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from resilin.core.tensor import Tensor
from resilin.distributed.agreement.options import options_of
from resilin.optim import Optimizer
from resilin.zero.flat_param import FlatParameter, HeldParameters

Group = dict[str, Any]


class LocalOptimizer:
    """An optimizer over this rank's pieces, with groups that mirror those of all parameters.

    `inner` has no hooks of its own: they run around the step of the one that divides.
    """

    def __init__(self, optimizer_class: type[Optimizer], defaults: dict[str, Any], rank: int) -> None:
        self._class, self._defaults, self._rank = optimizer_class, defaults, rank
        self.held: list[HeldParameters] = []
        self._by_param: dict[int, HeldParameters] = {}  # by id: a rank has at most one piece of a parameter
        self.inner: Optimizer | None = None

    def extend(self, groups: Sequence[Group], rows: Sequence[FlatParameter]) -> None:
        """Take this rank's pieces of `rows`, which hold the parameters of `groups`. What an option's check raises
        leaves everything as it was."""
        held = {
            id(row.params[piece.param]): HeldParameters(
                row.params[piece.param], row.numbers[piece.param], piece, row.whole
            )
            for row in rows
            for piece in row.shares[self._rank]
        }
        mine = [[held[id(param)] for param in group["params"] if id(param) in held] for group in groups]
        mirrored = [
            {**options_of(group), "params": [each.proxy for each in members]}
            for group, members in zip(groups, mine, strict=True)
        ]
        if self.inner is None:
            self.inner = self._class(mirrored, **self._defaults)
            self.inner._stepping = True  # inside the outer step for good: no hooks
        else:
            for group in mirrored:
                self.inner.add_param_group(group)
        self._by_param.update(held)
        self.held = sorted((*self.held, *held.values()), key=lambda each: each.number)

    @property
    def optimizer(self) -> Optimizer:
        """The inner optimizer, once there are parameters."""
        assert self.inner is not None, "extend() comes first"
        return self.inner

    def follow(self) -> None:
        """Parameters may lie in other memory than before."""
        for each in self.held:
            each.follow()

    def update(self, gradients: Mapping[int, Tensor | None] | None = None, *, cut: bool = False, **kwargs: Any) -> None:
        """One step of this rank's pieces of the parameters that have a gradient, with the outer groups' options.

        gradients: by id of the parameter, instead of every parameter's own; the others are left alone. cut: they are
        those of this rank's pieces alone.
        """
        touched = [each for each in self.held if each.take_gradient(self._gradient(each, gradients), cut)]
        try:
            self.optimizer.step(**kwargs)
        finally:
            for each in touched:
                each.proxy._grad = None
        for each in touched:
            each.param._bump()

    @staticmethod
    def _gradient(held: HeldParameters, gradients: Mapping[int, Tensor | None] | None) -> Tensor | None:
        return held.param._grad if gradients is None else gradients.get(id(held.param))

    def take_options(self, groups: Sequence[Group]) -> None:
        """The options of the outer groups, which schedulers and users change, go to the inner ones."""
        for mirror, group in zip(self.optimizer.param_groups, groups, strict=True):
            mirror.update(options_of(group))

    def give_options(self, groups: Sequence[Group]) -> None:
        """What the inner optimizer has changed, or filled in, goes to the outer groups."""
        for mirror, group in zip(self.optimizer.param_groups, groups, strict=True):
            group.update(options_of(mirror))

    def load(self, parts: Mapping[Tensor, dict[str, Any]], options: Sequence[Mapping[str, Any]]) -> None:
        """Replace the state by copies of `parts`, given by proxy, and the groups' options."""
        numbers = {id(proxy): number for number, proxy in enumerate(self._proxies())}
        groups, first = [], 0
        for mirror, taken in zip(self.optimizer.param_groups, options, strict=True):
            last = first + len(mirror["params"])
            groups.append({**taken, "params": list(range(first, last))})
            first = last
        whole = {numbers[id(proxy)]: entry for proxy, entry in parts.items()}
        self.optimizer._load({"state": whole, "param_groups": groups})

    def _proxies(self) -> list[Tensor]:
        return [proxy for mirror in self.optimizer.param_groups for proxy in mirror["params"]]

    def elements(self) -> int:
        """Elements of parameters that this rank updates."""
        return sum(each.piece.numel for each in self.held)

    def state_bytes(self) -> int:
        """Bytes of the tensors of the state, counters not counted."""
        tensors = [
            value for state in self.optimizer.state.values() for value in state.values() if isinstance(value, Tensor)
        ]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors if tensor.ndim)
