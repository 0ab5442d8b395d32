"""Pruning: parts of a parameter held at 0 by a mask. Names of torch.nn.utils.prune.

The parameter becomes `name`_orig, the mask the buffer `name`_mask, and their product is what `name` is before forward.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

import numpy as np

from resilin.core.api.manipulation.joining import cat
from resilin.core.ops import creation
from resilin.core.ops.random import rand_like
from resilin.core.tensor import Tensor, wrap
from resilin.nn.modules.module import Module


class BasePruningMethod(ABC):
    """A way to choose what is pruned; subclasses say how in `compute_mask`, and in PRUNING_TYPE of what.

    PRUNING_TYPE: "unstructured" (entries not yet pruned), "structured" (slices along `dim` not yet pruned whole)
    or "global" (everything).
    """

    PRUNING_TYPE: ClassVar[str] = ""
    _tensor_name: str

    @abstractmethod
    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        """1 where an entry stays and 0 where not, for importances `t`; what `default_mask` prunes stays pruned."""

    def __call__(self, module: Module, inputs: Any) -> None:
        setattr(module, self._tensor_name, self.apply_mask(module))

    def apply_mask(self, module: Module) -> Tensor:
        """The original parameter of `module` times its mask."""
        mask, original = (getattr(module, f"{self._tensor_name}_{part}") for part in ("mask", "orig"))
        pruned: Tensor = mask.to(original.dtype) * original
        return pruned

    @classmethod
    def apply(
        cls, module: Module, name: str, *args: Any, importance_scores: Tensor | None = None, **kwargs: Any
    ) -> BasePruningMethod:
        """Prune parameter `name` of `module`, on top of what is pruned already, and again before each forward."""
        method = cls(*args, **kwargs)
        method._tensor_name = name
        tensor = getattr(module, name)
        if not isinstance(tensor, Tensor):
            raise TypeError(f"prune: {name!r} of {type(module).__name__} must be a Tensor, got {type(tensor).__name__}")
        number = _find(module, name)
        original: Any = tensor if number is None else getattr(module, f"{name}_orig")
        scores = original if importance_scores is None else importance_scores
        if scores.shape != tensor.shape:
            raise ValueError(
                f"prune: importance_scores should have the same shape as parameter {name} of {module}, got "
                f"{tuple(scores.shape)} and {tuple(tensor.shape)}"
            )
        kept = creation.ones_like(original) if number is None else getattr(module, f"{name}_mask")
        mask = _combined(method, scores.detach(), kept.detach()).to(original.dtype)
        if number is None:
            delattr(module, name)
            module.register_parameter(f"{name}_orig", original)
            made = method
        else:
            before: Any = module._forward_pre_hooks.pop(number).call
            made = before if isinstance(before, PruningContainer) else PruningContainer(before)
            made.add_pruning_method(method)
        module.register_buffer(f"{name}_mask", mask)
        setattr(module, name, made.apply_mask(module))
        module.register_forward_pre_hook(made)
        return made

    def prune(self, t: Tensor, default_mask: Tensor | None = None, importance_scores: Tensor | None = None) -> Tensor:
        """`t` pruned, which is no parameter of a module."""
        scores = t if importance_scores is None else importance_scores
        if scores.shape != t.shape:
            raise ValueError(
                f"prune: importance_scores must have the shape {tuple(t.shape)}, got {tuple(scores.shape)}"
            )
        kept = creation.ones_like(t) if default_mask is None else default_mask
        pruned: Tensor = t * self.compute_mask(scores, kept)
        return pruned

    def remove(self, module: Module) -> None:
        """Make the parameter one again, with what is pruned at 0."""
        name = self._tensor_name
        pruned = self.apply_mask(module)
        original = module._parameters[f"{name}_orig"]
        assert original is not None, name
        for part in (name, f"{name}_mask", f"{name}_orig"):
            delattr(module, part)
        original.data = pruned.detach()
        module.register_parameter(name, original)


def _combined(method: BasePruningMethod, t: Tensor, kept: Tensor) -> Tensor:
    """`kept` and what `method` prunes of the part of `t` that its kind looks at."""
    part: Any = (slice(None),) * t.dim()
    if method.PRUNING_TYPE == "unstructured":
        part = kept == 1
    elif method.PRUNING_TYPE == "structured":
        axis = _axis(t, method.dim)  # type: ignore[attr-defined]  # all structured methods have one
        alive = kept.movedim(axis, 0).reshape(kept.shape[axis], -1).sum(1) != 0
        part = (*part[:axis], alive, *part[axis + 1 :])
    elif method.PRUNING_TYPE != "global":
        raise ValueError(f"prune: unknown PRUNING_TYPE {method.PRUNING_TYPE!r} of {type(method).__name__}")
    mask: Tensor = kept.clone()
    mask[part] = method.compute_mask(t[part], kept[part]).to(mask.dtype)
    return mask


class PruningContainer(BasePruningMethod):
    """Several methods, one after the other, on one parameter."""

    def __init__(self, *args: BasePruningMethod) -> None:
        self._pruning_methods: tuple[BasePruningMethod, ...] = ()
        for method in args:
            self._tensor_name = method._tensor_name
            self.add_pruning_method(method)

    def add_pruning_method(self, method: BasePruningMethod) -> None:
        """Add `method`, which must be for the same parameter."""
        if not isinstance(method, BasePruningMethod):
            raise TypeError(f"{type(method)} is not a BasePruningMethod subclass")
        if method._tensor_name != self._tensor_name:
            raise ValueError(f"PruningContainer: expected a method for {self._tensor_name}, got {method._tensor_name}")
        self._pruning_methods += (method,)

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        """What the last method leaves."""
        return _combined(self._pruning_methods[-1], t, default_mask)

    def __len__(self) -> int:
        return len(self._pruning_methods)

    def __iter__(self) -> Iterator[BasePruningMethod]:
        return iter(self._pruning_methods)

    def __getitem__(self, idx: int) -> BasePruningMethod:
        return self._pruning_methods[idx]


class Identity(BasePruningMethod):
    """Prunes nothing; makes mask and original."""

    PRUNING_TYPE = "unstructured"

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        """`default_mask`."""
        return default_mask


class _Amount(BasePruningMethod):
    """Prunes the least important: `amount` of them, or with a float from 0 to 1 that share, rounded."""

    def __init__(self, amount: float) -> None:
        if isinstance(amount, bool) or not isinstance(amount, int | float):
            raise TypeError(f"Invalid type for amount: {amount}. Must be int or float.")
        if amount < 0 or (isinstance(amount, float) and amount > 1):
            raise ValueError(f"amount={amount} should either be a float in the range [0, 1] or a non-negative integer")
        self.amount = amount

    def _least(self, importance: Any) -> Any:
        """The places of the least important."""
        total = importance.size
        if isinstance(self.amount, int) and self.amount > total:
            raise ValueError(f"amount={self.amount} should be smaller than the number of parameters to prune={total}")
        count = self.amount if isinstance(self.amount, int) else round(self.amount * total)
        return np.argsort(importance.ravel(), kind="stable")[:count]


class _Unstructured(_Amount):
    PRUNING_TYPE = "unstructured"

    def _importance(self, t: Tensor) -> Tensor:
        raise NotImplementedError

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        """0 at single entries."""
        kept = default_mask._dev.backend.to_host(default_mask._array).copy()
        kept.ravel()[self._least(t._dev.backend.to_host(self._importance(t)._array))] = 0
        return wrap(default_mask._dev.xp.asarray(kept), default_mask._dev)


class RandomUnstructured(_Unstructured):
    """Single entries at random."""

    def _importance(self, t: Tensor) -> Tensor:
        return rand_like(t)


class L1Unstructured(_Unstructured):
    """The single entries of least absolute value."""

    def _importance(self, t: Tensor) -> Tensor:
        size: Tensor = t.abs()
        return size


class _Structured(_Amount):
    PRUNING_TYPE = "structured"

    def __init__(self, amount: float, dim: int = -1) -> None:
        super().__init__(amount)
        self.dim = dim

    def _importance(self, slices: Tensor) -> Tensor:
        raise NotImplementedError

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        """0 at whole slices along `dim`."""
        if t.dim() <= 1:
            raise ValueError(
                f"Structured pruning can only be applied to multidimensional tensors. Found tensor of shape "
                f"{tuple(t.shape)} with {t.dim()} dims"
            )
        axis = _axis(t, self.dim)
        importance = self._importance(t.movedim(axis, 0).flatten(1))
        mask: Tensor = default_mask.clone()
        places = creation.tensor(self._least(t._dev.backend.to_host(importance._array)), device=mask.device)
        mask[(slice(None),) * axis + (places,)] = 0
        return mask


class RandomStructured(_Structured):
    """Whole slices along `dim` at random."""

    def _importance(self, slices: Tensor) -> Tensor:
        return rand_like(slices[:, 0])


class LnStructured(_Structured):
    """The slices along `dim` of least n-norm."""

    def __init__(self, amount: float, n: Any, dim: int = -1) -> None:
        super().__init__(amount, dim)
        self.n = n

    def _importance(self, slices: Tensor) -> Tensor:
        norms: Tensor = slices.norm(p=self.n, dim=1)
        return norms


class CustomFromMask(BasePruningMethod):
    """What `mask` says."""

    PRUNING_TYPE = "global"

    def __init__(self, mask: Tensor) -> None:
        self.mask = mask

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        """`default_mask` and the own one."""
        if default_mask.shape != self.mask.shape:
            raise ValueError(
                f"CustomFromMask: expected a mask {tuple(default_mask.shape)}, got {tuple(self.mask.shape)}"
            )
        both: Tensor = default_mask * self.mask.to(default_mask.dtype)
        return both


def _axis(t: Tensor, dim: int) -> int:
    if not -t.dim() <= dim < t.dim():
        raise IndexError(f"prune: invalid dim {dim} for a tensor of shape {tuple(t.shape)}")
    return dim % t.dim()


def _find(module: Module, name: str) -> int | None:
    for number, entry in module._forward_pre_hooks.items():
        if isinstance(entry.call, BasePruningMethod) and entry.call._tensor_name == name:
            return number
    return None


def identity(module: Module, name: str) -> Module:
    """Make mask and original of a parameter, pruning nothing; gives `module` back, as all these functions."""
    Identity.apply(module, name)
    return module


def random_unstructured(module: Module, name: str, amount: float) -> Module:
    """Prune `amount` (a count, or a float for a share) of the entries at random."""
    RandomUnstructured.apply(module, name, amount)
    return module


def l1_unstructured(module: Module, name: str, amount: float, importance_scores: Tensor | None = None) -> Module:
    """Prune `amount` of the entries: those of least absolute value, in the parameter or in `importance_scores`."""
    L1Unstructured.apply(module, name, amount, importance_scores=importance_scores)
    return module


def random_structured(module: Module, name: str, amount: float, dim: int) -> Module:
    """Prune `amount` of the slices along `dim` at random."""
    RandomStructured.apply(module, name, amount, dim)
    return module


def ln_structured(
    module: Module, name: str, amount: float, n: Any, dim: int, importance_scores: Tensor | None = None
) -> Module:
    """Prune `amount` of the slices along `dim`: those of least `n`-norm."""
    LnStructured.apply(module, name, amount, n, dim, importance_scores=importance_scores)
    return module


def custom_from_mask(module: Module, name: str, mask: Tensor) -> Module:
    """Prune where `mask` is 0."""
    CustomFromMask.apply(module, name, mask)
    return module


def global_unstructured(
    parameters: Iterable[tuple[Module, str]],
    pruning_method: type[BasePruningMethod],
    importance_scores: dict[tuple[Module, str], Tensor] | None = None,
    **kwargs: Any,
) -> None:
    """Prune parameters, given as (module, name), as if they were one: some may lose more entries than others."""
    every = list(parameters)
    if pruning_method.PRUNING_TYPE != "unstructured":
        raise TypeError(f"global_unstructured: expected an unstructured method, got {pruning_method.__name__}")
    if not every:
        raise ValueError("global_unstructured: expected (module, name) pairs, got none")
    scores, masks = [], []
    for module, name in every:
        tensor = getattr(module, f"{name}_orig" if _find(module, name) is not None else name)
        scores.append((importance_scores or {}).get((module, name), tensor).detach().flatten())
        masks.append(getattr(module, f"{name}_mask", creation.ones_like(tensor)).detach().flatten())
    mask = _combined(pruning_method(**kwargs), cat(scores), cat(masks))
    for (module, name), part in zip(every, mask.split([part.numel() for part in masks]), strict=True):
        custom_from_mask(module, name, part.reshape(getattr(module, name).shape))


def remove(module: Module, name: str) -> Module:
    """Make pruning of a parameter permanent: mask and original go, entries stay 0. ValueError if it is not pruned."""
    number = _find(module, name)
    if number is None:
        raise ValueError(f"Parameter '{name}' of module {module} has to be pruned before pruning can be removed")
    method: Any = module._forward_pre_hooks.pop(number).call
    method.remove(module)
    return module


def is_pruned(module: Module) -> bool:
    """Whether a parameter of the module or of one below it is pruned."""
    return any(
        isinstance(entry.call, BasePruningMethod)
        for below in module.modules()
        for entry in below._forward_pre_hooks.values()
    )
