"""`vmap`: a function of one sample as one of a batch.

The function runs once, on tensors that hide the batch's dimension (`resilin/core/batching`). Where it asks for what
only a single sample can tell (a sort, a random draw of its own), it runs again for one sample after the other.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from resilin.core import rng, trees
from resilin.core.batching import dispatch, rules_index, rules_products, rules_shape  # noqa: F401 - they declare rules
from resilin.core.batching.active import Unbatchable
from resilin.core.batching.levels import Level, entered, expose, insert, levels_of
from resilin.core.ops.index import getitem
from resilin.core.ops.shape import concat, split_parts, squeeze, stack
from resilin.core.state.size import check_dim
from resilin.core.tensor import Tensor

Fn = Callable[..., Any]


def vmap(
    func: Fn, in_dims: Any = 0, out_dims: Any = 0, randomness: str = "error", *, chunk_size: int | None = None
) -> Fn:
    """`func`, written for one sample, as a function of a batch.

    in_dims: which dimension of each input holds the samples: an int, None for an input that all share, or nested like
        the inputs (a beginning of their structure is enough). out_dims: where they are put in the outputs.
    randomness: "error" refuses random operations inside, "different" draws for each sample, "same" once for all.
    chunk_size: at most so many samples at a time; None takes all.

    Inputs and outputs may be nested tuples, lists and dicts. Composes with itself and with grad, vjp, jvp, jacrev and
    jacfwd. Ops without a rule for batches, and functions that must look at numbers (sort, unique, ...), go sample by
    sample: slower, with equal results; in the second case `func` is called once more for every sample.
    Raises: ValueError for dims that do not fit the inputs; RuntimeError where `func` reads numbers (item(), if).
    """
    if randomness not in ("error", "different", "same"):
        raise RuntimeError(f"Only allowed values for randomness are 'error', 'different', or 'same'. Got {randomness}")
    if chunk_size is not None and chunk_size <= 0:
        raise ValueError(f"vmap: chunk_size should be None or greater than 0. (got {chunk_size})")
    name = getattr(func, "__name__", type(func).__name__)

    @functools.wraps(func)
    def batched(*args: Any, **kwargs: Any) -> Any:
        mapped = _Mapped(func, name, in_dims, out_dims, args, kwargs, randomness)
        return mapped.whole() if chunk_size is None else mapped.in_chunks(chunk_size)

    return batched


class _Mapped:
    """One call of a vmapped function."""

    def __init__(
        self, func: Fn, name: str, in_dims: Any, out_dims: Any, args: Any, kwargs: Any, randomness: str
    ) -> None:
        self.func, self.name, self.out_dims, self.randomness = func, name, out_dims, randomness
        if not isinstance(in_dims, int | tuple | list | None.__class__) or isinstance(in_dims, bool):
            raise ValueError(f"vmap({name}, in_dims={in_dims}, ...)(<inputs>): expected `in_dims` to be int or a tuple")
        if not args:
            raise ValueError(f"vmap({name})(<inputs>): got no inputs. Maybe you forgot to add inputs, or in_dims")
        self.leaves, self.tree = trees.flatten(args)
        prefix = tuple(in_dims) if isinstance(in_dims, list) else in_dims
        dims = trees.spread(prefix, args, f"vmap({name})(<inputs>): in_dims")
        self.dims = [self._dim(leaf, dim) for leaf, dim in zip(self.leaves, dims, strict=True)]
        keys, self.kwargs_tree = trees.flatten(kwargs)
        self.leaves += keys  # keyword arguments are mapped over their first dimension, as in PyTorch
        self.dims += [0 if isinstance(leaf, Tensor) and leaf._array.ndim else None for leaf in keys]
        self.count_args = len(self.leaves) - len(keys)
        self.size = self.size_of_all = self._size()

    def _dim(self, leaf: Any, dim: Any) -> int | None:
        where = f"vmap({self.name}, in_dims={dim!r})(<inputs>)"
        if dim is None:
            return None
        if not isinstance(dim, int):
            raise ValueError(f"{where}: expected in_dims to be made of ints and None, got {type(dim).__name__}")
        if not isinstance(leaf, Tensor):
            raise ValueError(
                f"{where}: Got in_dim={dim} for an input but the input is of type {type(leaf).__name__}. We cannot "
                "vmap over non-Tensor arguments, please use None as the respective in_dim"
            )
        if not -leaf._array.ndim <= dim < leaf._array.ndim:
            raise ValueError(
                f"{where}: Got in_dim={dim} for some input, but that input is a Tensor of dimensionality "
                f"{leaf._array.ndim} so expected in_dim to satisfy -{leaf._array.ndim} <= in_dim < {leaf._array.ndim}."
            )
        return check_dim(dim, leaf._array.ndim)

    def _size(self) -> int:
        sizes = {leaf._array.shape[d] for leaf, d in zip(self.leaves, self.dims, strict=True) if d is not None}
        if not sizes:
            raise ValueError(f"vmap({self.name}): at least one input must be mapped: in_dims are None for all of them")
        if len(sizes) > 1:
            raise ValueError(
                f"vmap: Expected all tensors to have the same size in the mapped dimension, got sizes {sorted(sizes)} "
                "for the mapped dimension"
            )
        return int(sizes.pop())

    def _call(self, leaves: list[Any]) -> Any:
        args = trees.unflatten(leaves[: self.count_args], self.tree)
        kwargs = trees.unflatten(leaves[self.count_args :], self.kwargs_tree)
        return self.func(*args, **kwargs)

    def whole(self) -> Any:
        """All samples at once, or where that is impossible one after the other."""
        state = rng.default_generator().clone_state()
        level = Level(self.size, self.randomness, dispatch.call)
        try:
            with entered(level):
                return self._finished(level, self._call(self._batched(level)))
        except Unbatchable:
            if self.randomness != "error":
                rng.default_generator().restore(state)
        return self._one_by_one()

    def _batched(self, level: Level) -> list[Any]:
        return [
            leaf if dim is None else insert(leaf, level, dim) for leaf, dim in zip(self.leaves, self.dims, strict=True)
        ]

    def _finished(self, level: Level, result: Any) -> Any:
        outs, tree = trees.flatten(result)
        dims = self._out_dims(result, outs)
        return trees.unflatten([_out(o, level, d, self.name) for o, d in zip(outs, dims, strict=True)], tree)

    def _out_dims(self, result: Any, outs: list[Any]) -> list[Any]:
        for out in outs:
            if not isinstance(out, Tensor):
                raise ValueError(
                    f"vmap({self.name}, ...): `{self.name}` must only return Tensors, got type {type(out).__name__}. "
                    "Did you mean to set out_dims= to None for output?"
                )
        prefix = self.out_dims
        if isinstance(prefix, tuple) and len(prefix) == 1 and isinstance(result, Tensor):
            prefix = prefix[0]
        found = trees.spread(prefix, result, f"vmap({self.name}, ...): out_dims")
        for out, dim in zip(outs, found, strict=True):
            if dim is not None and (not isinstance(dim, int) or isinstance(dim, bool)):
                raise ValueError(
                    f"vmap({self.name}, ..., out_dims={self.out_dims!r}): `out_dims` must be an int, None or a nested "
                    f"structure of them, got {type(dim).__name__}"
                )
            if dim is not None:
                check_dim(dim, out._array.ndim + 1)
        return found

    def _one_by_one(self) -> Any:
        """The same, sample by sample."""
        if not self.size:
            raise RuntimeError(f"vmap({self.name}): this function cannot run on an empty batch")
        found, start = [], rng.default_generator().clone_state()
        parts = [None if d is None else _parts(leaf, d) for leaf, d in zip(self.leaves, self.dims, strict=True)]
        for i in range(self.size):
            if self.randomness == "same":
                rng.default_generator().restore(start)
            leaves = [leaf if part is None else part[i] for leaf, part in zip(self.leaves, parts, strict=True)]
            with entered(Level(1, self.randomness, dispatch.call, single=True)):
                found.append(self._call(leaves))
        return self._joined(found, lambda column, dim: stack.call(column, check_dim(dim, column[0]._array.ndim + 1)))

    def in_chunks(self, chunk_size: int) -> Any:
        """`whole` for at most `chunk_size` samples at a time."""
        found, start, leaves = [], rng.default_generator().clone_state(), self.leaves
        for begin in range(0, self.size, chunk_size):
            if self.randomness == "same":
                rng.default_generator().restore(start)
            self.leaves = [
                leaf if d is None else getitem.call(leaf, (slice(None),) * d + (slice(begin, begin + chunk_size),))
                for leaf, d in zip(leaves, self.dims, strict=True)
            ]
            self.size = min(chunk_size, self.size_of_all - begin)
            found.append(self.whole())
        return self._joined(found, _concatenated) if found else self.whole()

    def _joined(self, found: list[Any], join: Fn) -> Any:
        """Several results as one, by `join(leaves, out_dim)`."""
        outs = [trees.flatten(result)[0] for result in found]
        dims = self._out_dims(found[0], outs[0])
        columns = zip(*outs, strict=True)
        joined = [c[0] if d is None else join(list(c), d) for c, d in zip(columns, dims, strict=True)]
        return trees.unflatten(joined, trees.flatten(found[0])[1])


def _concatenated(column: list[Tensor], dim: int) -> Tensor:
    axis = check_dim(dim, column[0]._array.ndim)
    return concat.call(column, axis, tuple(part._array.shape[axis] for part in column))  # type: ignore[no-any-return]


def _parts(leaf: Tensor, dim: int) -> list[Tensor]:
    """The samples along `dim`."""
    parts = split_parts.call(leaf, dim, (1,) * leaf._array.shape[dim])
    return [squeeze.call(part, dim) for part in parts]


def _out(out: Tensor, level: Level, dim: Any, name: str) -> Tensor:
    if dim is not None:
        return expose(out, level, check_dim(dim, out._array.ndim + 1))
    if level in levels_of(out):
        raise ValueError(
            f"vmap({name}, ...): `{name}` can not return a BatchedTensor when out_dim is None: this output depends on "
            "the sample"
        )
    return out
