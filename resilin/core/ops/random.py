"""Random tensors, from the counter-based generators of `core.rng`. PyTorch's signatures."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from resilin.core import dtype as dtypes
from resilin.core.batching.active import ACTIVE, BATCHED
from resilin.core.device import CPU, default_device, device
from resilin.core.kernels import pack, philox
from resilin.core.kernels.common import compute_dtype
from resilin.core.kernels.loader import kernel
from resilin.core.ops.creation import factory, finish, finish_new, shape_of
from resilin.core.ops.errstate import is_half, quietly
from resilin.core.ops.registry import op
from resilin.core.ops.tracing import named
from resilin.core.rng import Generator, pick
from resilin.core.state.size import given_size
from resilin.core.tensor import Tensor, wrap

_INT64, _FLOAT32, _FLOAT64 = (np.dtype(kind) for kind in (np.int64, np.float32, np.float64))
_MOST_INTEGER = 1 << 63  # what int64 does not reach


def _float(dtype: Any) -> Any:
    target = dtypes.default_np() if dtype is None else dtypes.to_numpy(dtype)
    if target.kind not in "fVc":
        raise RuntimeError(f"random floating point numbers cannot have dtype {target}")
    return target


def _draw(kind: str, generator: Generator | None, shape: tuple[int, ...], dtype: Any) -> Any:
    draw: Any = getattr(pick(generator), kind)
    if dtype.kind != "c":
        return draw(shape, dtype)
    parts = draw((*shape, 2), dtypes.real_of(dtype))
    scale = math.sqrt(0.5) if kind == "normal" else 1.0
    return ((parts[..., 0] + 1j * parts[..., 1]) * scale).astype(dtype)


def _drawn_there(
    kind: str, generator: Generator | None, shape: tuple[int, ...], dtype: Any, dev: device, **numbers: Any
) -> Any:
    """An array that the device `dev` has drawn by itself; None where the host draws."""
    if dev is CPU or ACTIVE or dtype.kind == "c":
        return None
    return dev.backend.draw(kind, pick(generator).take, shape, dtype, dev.index or 0, **numbers)


def _new(
    kind: str, generator: Generator | None, shape: tuple[int, ...], dtype: Any, where: Any, requires_grad: bool
) -> Tensor:
    """A leaf of random numbers."""
    dev = default_device() if where is None else device(where)
    if dev is CPU and dtype.kind == "f" and not requires_grad:  # most calls
        return wrap(getattr(pick(generator), kind)(shape, dtype), CPU)
    drawn = _drawn_there(kind, generator, shape, dtype, dev)
    if drawn is None:
        return finish_new(lambda: _draw(kind, generator, shape, dtype), shape, dtype, dev, requires_grad)
    return wrap(drawn, dev).requires_grad_(requires_grad)


@factory
def rand(
    *sizes: Any,
    size: Any = None,
    generator: Generator | None = None,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Uniform in [0, 1)."""
    shape = shape_of(given_size("rand", sizes, size))
    target = _float(dtype)
    return _new("uniform", generator, shape, target, device, requires_grad)


@factory
def randn(
    *sizes: Any,
    size: Any = None,
    generator: Generator | None = None,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Standard normal."""
    shape = shape_of(given_size("randn", sizes, size))
    target = _float(dtype)
    return _new("normal", generator, shape, target, device, requires_grad)


@factory
def randint(
    *bounds: Any,
    low: Any = None,
    high: Any = None,
    size: Any = None,
    generator: Generator | None = None,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """`randint(high, size)` or `randint(low, high, size)`, each by place or name: integers in [low, high), int64."""
    values = bounds if low is high is size is None else (*bounds, *(v for v in (low, high, size) if v is not None))
    if len(values) == 2 and low is None:
        values = (0, *values)
    if len(values) != 3 or (len(bounds) > 1 and low is not None):
        raise TypeError("randint() takes (high, size) or (low, high, size)")
    if values[0] >= values[1]:
        raise RuntimeError(f"random_ expects 'from' to be less than 'to', but got from={values[0]} >= to={values[1]}")
    least, most, shape = int(values[0]), int(values[1]), shape_of((values[2],))
    if dtype is None and least >= -_MOST_INTEGER and most <= _MOST_INTEGER:
        return _new_integers(lambda: pick(generator).integers(least, most, shape), shape, device, requires_grad)
    target = _INT64 if dtype is None else dtypes.to_numpy(dtype)
    _check_span("randint", least, most, target)
    drawn = lambda: pick(generator).integers(least, most, shape).astype(target, copy=False)  # noqa: E731
    return finish_new(drawn, shape, target, device, requires_grad)


def _new_integers(draw: Callable[[], Any], shape: tuple[int, ...], where: Any, requires_grad: bool) -> Tensor:
    """A leaf of what `draw` gives, an array of int64."""
    return finish_new(draw, shape, _INT64, where, requires_grad, quiet=False)


@factory
def randperm(
    n: int,
    *,
    generator: Generator | None = None,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """The integers 0 to n - 1 in random order, int64."""
    if n < 0:
        raise RuntimeError(f"randperm: n must not be negative, got {n}")
    if dtype is None:
        return _new_integers(lambda: pick(generator).permutation(n), (n,), device, requires_grad)
    target = dtypes.to_numpy(dtype)
    if n - 1 > _integers_of(target)[1]:
        raise RuntimeError(f"randperm: {dtypes.from_numpy(target)} does not hold all integers below {n}")
    drawn = lambda: pick(generator).permutation(n).astype(target, copy=False)  # noqa: E731
    return finish_new(drawn, (n,), target, device, requires_grad)


@factory
def rand_like(
    input: Tensor,
    *,
    generator: Generator | None = None,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """`rand` of the input's shape, dtype and device."""
    return rand(
        input._array.shape,
        generator=generator,
        dtype=dtype or input.dtype,
        device=device or input._dev,
        requires_grad=requires_grad,
    )


@factory
def randn_like(
    input: Tensor,
    *,
    generator: Generator | None = None,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """`randn` of the input's shape, dtype and device."""
    return randn(
        input._array.shape,
        generator=generator,
        dtype=dtype or input.dtype,
        device=device or input._dev,
        requires_grad=requires_grad,
    )


@factory
def randint_like(
    input: Tensor,
    *bounds: Any,
    low: Any = None,
    high: Any = None,
    generator: Generator | None = None,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """`randint` of the input's shape, dtype and device."""
    return randint(
        *bounds,
        low=low,
        high=high,
        size=input._array.shape,
        generator=generator,
        dtype=dtype or input.dtype,
        device=device or input._dev,
        requires_grad=requires_grad,
    )


@named("aten::normal")
def normal(
    mean: Any,
    std: Any = 1.0,
    size: Any = None,
    *,
    generator: Generator | None = None,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Normal with this mean and standard deviation (numbers, with a `size`, or tensors that broadcast).

    `device` is for numbers: tensors say where they are.
    """
    tensors = [v for v in (mean, std) if isinstance(v, Tensor)]
    if size is None and not tensors:
        raise TypeError("normal(): mean and std are numbers, so a size is needed, as in normal(0.0, 1.0, (2, 3))")
    for value in tensors:
        need_floats("normal", value)
    known = isinstance(std, Tensor) and std.numel() and std._dev.xp.elements
    lowest = std if not isinstance(std, Tensor) else std.min().item() if known else 0
    if not lowest >= 0:
        raise RuntimeError(f"normal expects std >= 0.0, but found std {lowest}")
    if size is None:
        shapes = [v._array.shape for v in tensors]
        if len(shapes) == 2 and len(
            {n for n in zip(*map(reversed, shapes), strict=False) if 1 not in n and n[0] != n[1]}
        ):
            raise RuntimeError(f"normal: the shapes {shapes[0]} of mean and {shapes[1]} of std cannot be broadcast")
        size = np.broadcast_shapes(*shapes)
    where = tensors[0]._dev if tensors else device
    kind = tensors[0].dtype if tensors and dtype is None else dtype
    drawn = randn(tuple(size), generator=generator, dtype=kind, device=where) * std + mean
    return drawn.requires_grad_() if requires_grad else drawn


@named("aten::bernoulli")
@quietly
def bernoulli(input: Tensor, p: float | None = None, *, generator: Generator | None = None) -> Tensor:
    """1 with the probability that `input` holds (or `p`), else 0."""
    if p is not None and not 0 <= p <= 1:
        raise RuntimeError(f"bernoulli: expected p to be in [0, 1], got {p}")
    if not input._dev.xp.elements:
        return wrap(input._dev.xp.empty_like(input._array), input._dev)
    given = {"chance": input._array} if p is None else {"p": float(np.float32(p))}  # numpy's numbers are float32
    made = _drawn_there("bernoulli", generator, input._array.shape, input._array.dtype, input._dev, **given)
    if made is not None:
        return wrap(made, input._dev)
    shape, kind = input._array.shape, input._array.dtype
    chance: Any = p if p is not None else input._dev.xp.to_host(input._array)
    if p is None and is_half(chance):
        chance = pack.astype(chance, _FLOAT32)  # in which it is compared anyway
    if p is None and chance.size and not (float(chance.min()) >= 0 and float(chance.max()) <= 1):
        raise RuntimeError("bernoulli: expected probabilities between 0 and 1")
    return finish(pack.astype(pick(generator).uniform(shape) < chance, kind), input._dev)


_MOST_KINDS = 1 << 24  # PyTorch's


@named("aten::multinomial")
def multinomial(
    input: Tensor, num_samples: int, replacement: bool = False, *, generator: Generator | None = None
) -> Tensor:
    """Indices drawn with the probabilities that the rows hold (they need not sum to 1)."""
    if not input.is_floating_point():
        raise RuntimeError(f"multinomial only supports floating-point dtypes for input, got: {input.dtype}")
    if input._array.ndim not in (1, 2):
        raise RuntimeError(f"multinomial: prob_dist must be 1 or 2 dim, got shape {tuple(input.shape)}")
    if num_samples <= 0:
        raise RuntimeError(f"cannot sample n_sample <= 0 samples, got {num_samples}")
    kinds = input._array.shape[-1]
    if kinds > _MOST_KINDS:
        raise RuntimeError(f"multinomial: number of categories cannot exceed 2^24, got {kinds}")
    if not kinds:
        raise RuntimeError(f"multinomial: there is nothing to sample from in a tensor of shape {tuple(input.shape)}")
    shape = (*input._array.shape[:-1], num_samples)
    if not input._dev.xp.elements:
        return wrap(input._dev.xp.empty(shape, np.int64), input._dev)
    weights = np.atleast_2d(input._dev.xp.to_host(input._array).astype(np.float64))
    if not _are_chances(weights):
        raise RuntimeError("probability tensor contains either inf, nan or element < 0, or a row that sums to 0")
    if not replacement and num_samples > 1 and num_samples > int((weights > 0).sum(-1).min(initial=kinds)):
        raise RuntimeError(
            f"multinomial: a row has fewer than {num_samples} elements above 0 to draw without replacement"
        )
    source = pick(generator)
    if replacement:
        edges = np.cumsum(weights, -1)
        drawn = source.uniform((len(weights), num_samples), np.dtype(np.float64)) * edges[:, -1:]
        lines = [np.searchsorted(e, d, "right") for e, d in zip(edges, drawn, strict=True)]
        found = np.array(lines, np.int64).reshape(drawn.shape)
        found = np.minimum(found, weights.shape[1] - 1)
    else:  # the largest of -Exp(1) / weight, in order: Efraimidis and Spirakis, "Weighted random sampling" (2006)
        with np.errstate(divide="ignore"):
            keys = np.log1p(-source.uniform(weights.shape, np.dtype(np.float64))) / weights
        if num_samples == 1:
            found = np.fmax(keys, -np.inf, out=keys).argmax(-1)  # what a sort has first; NaN, 0 / 0, is last
        else:
            found = np.argsort(-keys, axis=-1, kind="stable")[:, :num_samples]
    return finish(found.reshape(shape).astype(np.int64), input._dev)


def _are_chances(weights: Any) -> bool:
    """Whether no number is negative or not finite, and no row sums to 0."""
    if not weights.min(initial=0) >= 0:  # NaN is one, too
        return False
    totals = weights.sum(-1)
    if not totals.min(initial=1) > 0:
        return False
    return bool(np.isfinite(totals).all() or np.isfinite(weights).all())  # a sum alone may be infinite


@named("aten::uniform_")
def fill_uniform(self: Tensor, from_: float = 0, to: float = 1, *, generator: Generator | None = None) -> Tensor:
    """Write uniform numbers of [from, to) into this tensor."""
    need_floats("uniform_", self)
    if not from_ <= to:
        raise RuntimeError(f"uniform_ expects to return a [from, to) range, but found from={from_} > to={to}")
    if to - from_ == 1 and from_ == 0 and _draws_alone(self):
        return self.copy_(wrap(pick(generator).uniform(self._array.shape, self._array.dtype), CPU))
    return _fill(self, lambda: _draw_for(self, "uniform", generator), to - from_, from_)


def _draws_alone(tensor: Tensor) -> bool:
    """Whether what is drawn for a tensor is an array of numpy that nothing has to be done to."""
    return tensor._dev is CPU and (tensor._array.dtype is _FLOAT32 or tensor._array.dtype is _FLOAT64)


@named("aten::normal_")
def fill_normal(self: Tensor, mean: float = 0, std: float = 1, *, generator: Generator | None = None) -> Tensor:
    """Write normal numbers into this tensor."""
    need_floats("normal_", self)
    if not std >= 0:
        raise RuntimeError(f"normal_ expects std >= 0.0, but found std {std}")
    if std == 1 and mean == 0 and _draws_alone(self):
        return self.copy_(wrap(pick(generator).normal(self._array.shape, self._array.dtype), CPU))
    return _fill(self, lambda: _draw_for(self, "normal", generator), std, mean)


def _draw_for(tensor: Tensor, kind: str, generator: Generator | None) -> Any:
    """Numbers of the tensor's shape and dtype, on its device where that draws what it also scales as numpy does."""
    shape, dtype = tensor._array.shape, tensor._array.dtype
    there = _drawn_there(kind, generator, shape, dtype, tensor._dev) if dtype.itemsize >= 4 else None
    return _draw(kind, generator, shape, dtype) if there is None else there


@named("aten::bernoulli_")
def fill_bernoulli(self: Tensor, p: Any = 0.5, *, generator: Generator | None = None) -> Tensor:
    """Write 1 with probability `p` (a number, or a tensor that broadcasts), else 0, into this tensor."""
    need_floats("bernoulli_", self, "fVbiu")
    if isinstance(p, Tensor) and not p._dev.xp.elements:
        return _fill(self, lambda: p, 1, 0)
    chance = np.asarray(p._dev.backend.to_host(p._array), np.float64) if isinstance(p, Tensor) else np.float64(p)
    if not ((chance >= 0) & (chance <= 1)).all():
        raise RuntimeError(f"bernoulli_ expects p to be in [0, 1], but got p={p}")
    shape, dtype = self._array.shape, self._array.dtype
    if not isinstance(p, Tensor):
        there = _drawn_there("bernoulli", generator, shape, dtype, self._dev, p=float(p))
        if there is not None:
            return _fill(self, lambda: there, 1, 0)
    return _fill(self, lambda: pick(generator).uniform(shape) < chance, 1, 0)


@named("aten::random_")
def fill_integers(self: Tensor, *bounds: int | None, generator: Generator | None = None, **named: Any) -> Tensor:
    """`random_(to)`, `random_(from, to)`, `random_(to=...)`: random integers of [from, to) into this tensor.

    Without `to`: of all from 0, or `from`, to the largest (floats: as far as all integers are exact), inclusive.
    """
    need_floats("random_", self, "fVbiu")
    if set(named) - {"to"} or len(bounds) + len(named) > 2:
        raise TypeError("random_() takes (to), (from, to) or no bounds, and a generator")
    low, high = (0, *bounds, None)[:2] if len(bounds) < 2 else bounds
    high = named.get("to", high)
    low = bounds[0] if bounds and named else low
    most = _integers_of(self._array.dtype)[1]
    low, high = 0 if low is None else int(low), most + 1 if high is None else int(high)
    if low >= high:
        raise RuntimeError(f"random_ expects 'from' to be less than 'to', but got from={low} >= to={high}")
    _check_span("random_", low, high, self._array.dtype)
    return _fill(self, lambda: pick(generator).integers(low, high, self._array.shape), 1, 0)


_EXACT_BITS = {2: 11, 4: 24, 8: 53}  # below 2 to this power, floats of so many bytes hold every integer


def _integers_of(kind: Any) -> tuple[int, int]:
    """The smallest and the largest integer of a dtype; of floats, between which all integers are exact."""
    if kind.kind == "b":
        return 0, 1
    if kind.kind in "iu":
        return int(np.iinfo(kind).min), int(np.iinfo(kind).max)
    if kind.kind == "c":
        raise NotImplementedError(
            f"integers are not drawn as {dtypes.from_numpy(kind)}: draw real ones and convert them"
        )
    top = 1 << (8 if kind.kind == "V" else _EXACT_BITS[kind.itemsize])
    return -top, top


def _check_span(where: str, low: int, high: int, kind: Any) -> None:
    """RuntimeError for integers of [low, high) that the dtype has not, not even rounded."""
    name = dtypes.from_numpy(kind)
    if kind.kind in "fV":
        most = dtypes.finfo(name).max
        least: float = -most
    else:
        least, most = _integers_of(kind)
    if not (least <= low and high - 1 <= most):
        wrong = "from" if low < least else "to - 1"
        raise RuntimeError(f"{where}: {wrong} is out of bounds for {name}, got from={low} and to={high}")


def need_floats(name: str, tensor: Tensor, kinds: str = "fVc") -> None:
    """NotImplementedError for a tensor of a dtype that `name` is not for."""
    if tensor._array.dtype.kind not in kinds:
        raise NotImplementedError(f"{name}(): not implemented for {tensor.dtype}")


@named("aten::exponential_")
def fill_exponential(self: Tensor, lambd: float = 1.0, *, generator: Generator | None = None) -> Tensor:
    """Write exponentially distributed numbers with rate `lambd` into this tensor."""
    _need_continuous("Exponential", self)
    if not lambd > 0:
        raise RuntimeError(f"exponential_ expects lambda > 0.0, but found lambda={lambd}")
    shape, double = self._array.shape, np.dtype(np.float64)
    return _fill(self, lambda: -np.log1p(-pick(generator).uniform(shape, double)), 1 / lambd, 0)


def _need_continuous(name: str, tensor: Tensor) -> None:
    if tensor._array.dtype.kind not in "fV":
        raise RuntimeError(
            f"{name} distribution is a continuous probability distribution. dtype must be a floating point but you "
            f"specified {tensor.dtype}"
        )


@quietly
def _fill(self: Tensor, draw: Callable[[], Any], scale: float, shift: float) -> Tensor:
    """Write what `draw` gives, times `scale` plus `shift`, into this tensor. Nothing is drawn for the meta device."""
    if not self._dev.xp.elements:
        return self.copy_(self.detach())
    drawn = draw()
    if scale != 1 or shift != 0:
        drawn = drawn * scale + shift
    there = wrap(drawn) if isinstance(drawn, np.ndarray | np.generic) else wrap(drawn, self._dev)
    return self.copy_(there if self._dev is CPU else there.to(self._dev))


@op(
    complex=True,
    samples=lambda r: [(r(3, 4), np.array([[0.0, 2, 2, 0]] * 3))],
    kernel=kernel("looped")(np.multiply, "multiply", True),
)
def apply_mask(xp, x, mask=None):
    """x * mask for a constant mask of factors."""
    return x * mask


@apply_mask.vjp
def _(xp, g, _y, _x, mask=None):
    return g * xp.constant(mask, g)


def check_probability(where: str, p: Any) -> None:
    """TypeError for what is no real number, ValueError for one outside [0, 1]."""
    if not isinstance(p, int | float) and (not hasattr(p, "__float__") or getattr(p, "ndim", False)):
        raise TypeError(f"{where}(): argument 'p' must be Number, not {type(p).__name__}")
    if not 0 <= p <= 1:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Each element is 0 with probability `p`, else divided by 1 - p. The mask is keyed by the generator's state."""
    check_probability("dropout", p)
    if not training or p == 0:
        return input
    kind = compute_dtype(input._array.dtype)
    mask = draw_mask(input._array.shape, p, input._dev)
    if mask.dtype != kind:
        mask = mask.astype(kind)
    out: Tensor = apply_mask.call(input, on_device(mask, input._dev))
    return input.copy_(out) if inplace else out


def on_device(mask: Any, dev: device) -> Any:
    """A mask, which the host has drawn, on `dev`."""
    if type(mask) in BATCHED:
        return type(mask)(dev.xp.asarray(mask.inner), mask.levels)
    return dev.xp.asarray(mask)


def draw_mask(shape: tuple[int, ...], p: float, dev: device) -> Any:
    """The factors of one dropout for tensors on `dev`: 0 with probability p, else 1 / (1 - p)."""
    if not dev.xp.elements:
        return dev.xp.empty(shape, np.float32)
    if ACTIVE:
        return ACTIVE[-1].drawn(shape, lambda whole: _draw_mask(whole, p))
    there = _drawn_there("dropout_mask", None, shape, np.dtype(np.float32), dev, p=p)
    return _draw_mask(shape, p) if there is None else there


def _draw_mask(shape: tuple[int, ...], p: float) -> Any:
    seed, stream, offset = pick(None).take(math.prod(shape))
    return philox.dropout_mask(seed, stream, offset, shape, p)
