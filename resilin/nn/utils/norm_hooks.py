"""weight_norm and spectral_norm as hooks before forward: PyTorch's older form, for models and states of that form."""

from __future__ import annotations

from typing import Any

from resilin.core.api.nn.neural import normalize, widened
from resilin.core.autograd.grad_mode import no_grad
from resilin.core.tensor import Parameter, Tensor
from resilin.nn.modules.module import Module
from resilin.nn.parameter import is_lazy
from resilin.nn.utils.parametrizations import _WeightNorm, divided_by_norm


class _WeightNormHook:
    """name = name_g * name_v / norm(name_v)."""

    kind = "weight_norm"

    def __init__(self, name: str, dim: int | None) -> None:
        self.name = name
        self._norm = _WeightNorm(dim)

    def compute(self, module: Module, training: bool) -> Tensor:
        """The weight."""
        weight: Tensor = self._norm(getattr(module, f"{self.name}_g"), getattr(module, f"{self.name}_v"))
        return weight

    def start(self, module: Module, weight: Parameter) -> None:
        """Register what the weight is made of."""
        lengths, direction = self._norm.right_inverse(weight.detach())
        module.register_parameter(f"{self.name}_g", Parameter(lengths))
        module.register_parameter(f"{self.name}_v", Parameter(direction))
        setattr(module, self.name, self.compute(module, False))

    def forget(self, module: Module) -> None:
        """Remove it again."""
        delattr(module, f"{self.name}_g")
        delattr(module, f"{self.name}_v")

    def __call__(self, module: Module, inputs: Any) -> None:
        setattr(module, self.name, self.compute(module, module.training))


class _SpectralNormHook(_WeightNormHook):
    """name = name_orig / sigma, with sigma = name_u^T name_orig name_v, both vectors from the power method."""

    kind = "spectral_norm"

    def __init__(self, name: str, iterations: int, dim: int, eps: float) -> None:
        if iterations <= 0:
            raise ValueError(f"spectral_norm: n_power_iterations must be positive, got {iterations}")
        self.name, self.iterations, self.dim, self.eps = name, iterations, dim, eps

    def compute(self, module: Module, training: bool) -> Tensor:
        """The weight, after a step of the power method in training."""
        weight: Tensor = getattr(module, f"{self.name}_orig")
        u, v = getattr(module, f"{self.name}_u"), getattr(module, f"{self.name}_v")
        matrix = self._matrix(weight)
        if training:
            with no_grad():
                wide = widened(matrix)
                for _ in range(self.iterations):
                    v.copy_(normalize(wide.t().mv(widened(u)), dim=0, eps=self.eps))
                    u.copy_(normalize(wide.mv(widened(v)), dim=0, eps=self.eps))
        return divided_by_norm(weight, matrix, u, v)

    def _matrix(self, weight: Tensor) -> Tensor:
        matrix: Tensor = weight.movedim(self.dim, 0).flatten(1)
        return matrix

    def start(self, module: Module, weight: Parameter) -> None:
        """Register what the weight is made of."""
        if weight.dim() < 2:
            raise ValueError(f"spectral_norm: expected a weight of at least 2 dimensions, got {tuple(weight.shape)}")
        module.register_parameter(f"{self.name}_orig", weight)
        setattr(module, self.name, weight.data)
        for vector, size in zip(("u", "v"), self._matrix(weight.detach()).shape, strict=True):
            drawn = normalize(weight.new_empty(size).normal_(0, 1), dim=0, eps=self.eps)
            module.register_buffer(f"{self.name}_{vector}", drawn)

    def forget(self, module: Module) -> None:
        """Remove it again."""
        for part in ("orig", "u", "v"):
            delattr(module, f"{self.name}_{part}")


def weight_norm(module: Module, name: str = "weight", dim: int | None = 0) -> Module:
    """Length and direction of each slice of a weight along `dim` become parameters `name`_g and `name`_v.

    PyTorch deprecates it in favour of `parametrizations.weight_norm`. dim None: one length for all.
    """
    return _add(module, _WeightNormHook(name, dim))


def remove_weight_norm(module: Module, name: str = "weight") -> Module:
    """Make the weight one parameter again, of its present value. ValueError without `weight_norm`."""
    return _remove(module, name, "weight_norm")


def spectral_norm(
    module: Module, name: str = "weight", n_power_iterations: int = 1, eps: float = 1e-12, dim: int | None = None
) -> Module:
    """Divide a weight by its largest singular value; the weight itself is `name`_orig, beside buffers `name`_u and _v.

    `parametrizations.spectral_norm` is its newer form. dim None: 0, and 1 for transposed convolutions.
    """
    if dim is None:
        dim = 1 if type(module).__name__.startswith("ConvTranspose") else 0
    return _add(module, _SpectralNormHook(name, n_power_iterations, dim, eps))


def remove_spectral_norm(module: Module, name: str = "weight") -> Module:
    """Make the divided weight a parameter again. ValueError without `spectral_norm`."""
    return _remove(module, name, "spectral_norm")


def _add(module: Module, hook: _WeightNormHook) -> Module:
    name = hook.name
    if _find(module, name, hook.kind) is not None:
        raise RuntimeError(f"Cannot register two {hook.kind} hooks on the same parameter {name}")
    weight = module._parameters.get(name)
    if weight is None:
        raise ValueError(f"{hook.kind}: {type(module).__name__} has no parameter {name!r}")
    if is_lazy(weight):
        raise ValueError(f"{hook.kind}: parameter {name!r} is uninitialized; call the module with an input first")
    delattr(module, name)
    try:
        hook.start(module, weight)
    except ValueError:
        module.register_parameter(name, weight)
        raise
    module.register_forward_pre_hook(hook)
    return module


def _find(module: Module, name: str, kind: str) -> int | None:
    for number, entry in module._forward_pre_hooks.items():
        if isinstance(entry.call, _WeightNormHook) and entry.call.kind == kind and entry.call.name == name:
            return number
    return None


def _remove(module: Module, name: str, kind: str) -> Module:
    number = _find(module, name, kind)
    if number is None:
        raise ValueError(f"{kind} of '{name}' not found in {module}")
    hook: Any = module._forward_pre_hooks.pop(number).call
    with no_grad():
        weight = hook.compute(module, False)
    hook.forget(module)
    delattr(module, name)
    module.register_parameter(name, Parameter(weight.detach()))
    return module
