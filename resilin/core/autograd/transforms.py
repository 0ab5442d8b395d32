"""Derivatives as functions of functions: `grad`, `vjp`, `jvp`, `jacrev`, `jacfwd`, `hessian`, as in torch.func.

They run the function on tensors of their own, which stand at a new place in the graph, and walk back to these. What
they return is outside the graph, unless something else than these tensors, outside of the transform, needs it.
Forward mode is two backwards: the first gives the vjp as a function of its cotangent, which is linear, and the second
is that function's own vjp, which is the jvp.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from resilin.core import trees
from resilin.core.autograd import tangents
from resilin.core.autograd.batched_vjp import pull
from resilin.core.autograd.grad_mode import enable_grad, mode
from resilin.core.autograd.tape import Node, edge_of
from resilin.core.autograd.vmap import vmap
from resilin.core.batching.levels import current, full, hide, inner, levels_of, union
from resilin.core.ops.creation import zeros_like
from resilin.core.ops.shape import moveaxis, reshape
from resilin.core.tensor import Tensor, wrap

Fn = Callable[..., Any]


class _Place:
    """The inputs of one transform, as new tensors in the graph; `outside` says whether results stay in it."""

    def __init__(self, where: str, leaves: list[Any]) -> None:
        self.where = where
        self._recorded = mode.grad  # what the caller has
        for leaf in leaves:
            if not isinstance(leaf, Tensor):
                raise RuntimeError(f"{where}: expected Tensors as inputs, got {type(leaf).__name__}")
            if leaf._array.dtype.kind not in "fVc":
                raise RuntimeError(f"{where}: inputs must be floating point or complex tensors, got {leaf.dtype}")
        self.inputs = [new_place(leaf) for leaf in leaves]
        self._edges = {edge_of(inner(t)) for t, leaf in zip(self.inputs, leaves, strict=True) if not leaf.requires_grad}
        self._outer = len(self._edges) < len(leaves)

    def outside(self, tensors: Any) -> bool:
        """Whether what `tensors` were computed from reaches beyond the inputs, for a caller who records."""
        return self._recorded and depends_on_more(tensors, self.inputs)

    def pull(self, outs: Any, ins: Any, seeds: Any, create_graph: bool) -> list[Tensor]:
        """The gradients, zeros where nothing flows."""
        pairs = [(o, s) for o, s in zip(outs, seeds, strict=True) if o.requires_grad]
        found: list[Any] = [None] * len(ins)
        if pairs:
            outs, seeds = [o for o, _ in pairs], [s for _, s in pairs]
            found = pull(outs, ins, seeds, retain_graph=True, create_graph=create_graph)
        return [zeros_like(t) if g is None else g for g, t in zip(found, ins, strict=True)]


def new_place(tensor: Tensor) -> Tensor:
    """The same values at a place of their own, one for each sample of every vmap around."""
    levels = current()
    whole = full(tensor, levels) if levels else tensor
    if whole.requires_grad:
        return hide(reshape.call(whole, whole._array.shape), levels)
    return hide(whole.detach().requires_grad_(), levels)


def depends_on_more(tensors: Any, places: Any) -> bool:
    """Whether `tensors` were computed from anything that requires gradients beside `places`."""
    if any(inner(place)._node is not None for place in places):
        return True
    return _reaches([edge_of(inner(t)) for t in tensors], {edge_of(inner(place)) for place in places})


def _reaches(edges: list[Any], ends: set[Any]) -> bool:
    """Whether a way back from `edges` leads to a leaf that is not one of `ends`."""
    seen: set[Any] = set()
    while edges:
        edge = edges.pop()
        if edge is None or edge in seen or edge in ends:
            continue
        if not isinstance(edge, Node):
            return True
        seen.add(edge)
        edges.extend(edge.edges)
    return False


def _released(tensors: Any, stay: bool) -> list[Tensor]:
    return [t if stay or not t.requires_grad else t.detach() for t in tensors]


def _released_tree(value: Any, stay: bool) -> Any:
    return trees.transform(lambda t: _released([t], stay)[0] if isinstance(t, Tensor) else t, value)


class _Picked:
    """The arguments that `argnums` names, apart from the others."""

    def __init__(self, where: str, argnums: Any, args: tuple[Any, ...]) -> None:
        self._args, self.single = args, isinstance(argnums, int)
        numbers = (argnums,) if isinstance(argnums, int) else argnums
        if not isinstance(numbers, tuple) or not all(isinstance(n, int) for n in numbers) or not numbers:
            raise RuntimeError(f"{where}: argnums must be an int or a non-empty tuple of ints, got {argnums!r}")
        for number in numbers:
            if not -len(args) <= number < len(args):
                raise RuntimeError(f"{where}: got argnum={number}, but only {len(args)} positional inputs")
        self._numbers = [number % len(args) for number in numbers]
        if len(set(self._numbers)) < len(self._numbers):
            raise RuntimeError(f"{where}: argnums elements must be unique, got {argnums!r}")
        chosen = tuple(args[number] for number in self._numbers)
        self.leaves, self.tree = trees.flatten(chosen[0] if self.single else chosen)

    def replaced(self, leaves: Any) -> list[Any]:
        """All arguments, with these leaves in the chosen ones."""
        made = trees.unflatten(leaves, self.tree)
        args = list(self._args)
        for number, value in zip(self._numbers, (made,) if self.single else made, strict=True):
            args[number] = value
        return args


def _with_aux(where: str, result: Any, has_aux: bool) -> tuple[Any, Any]:
    if not has_aux:
        return result, None
    if not isinstance(result, tuple) or len(result) != 2:
        raise RuntimeError(
            f"{where}: output of function f should be a tuple: (output, aux) if has_aux is True, got "
            f"{type(result).__name__}"
        )
    return result


def _outputs(where: str, value: Any) -> tuple[list[Tensor], trees.Tree]:
    outs, tree = trees.flatten(value)
    for out in outs:
        if not isinstance(out, Tensor):
            raise RuntimeError(f"{where}: Expected f to return Tensors only, got {type(out).__name__}")
    return outs, tree


def grad_and_value(func: Fn, argnums: Any = 0, has_aux: bool = False) -> Fn:
    """A function that gives (gradient, value) of `func`, which gives one number (or, with `has_aux`, it and more).

    argnums: with respect to which arguments, an int or a tuple of them; each may be a nested structure of tensors.
    With `has_aux` the result is (gradient, (value, aux)). Composes with itself and with vmap.
    """

    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        where = "grad_and_value"
        picked = _Picked(where, argnums, args)
        place = _Place(where, picked.leaves)
        with enable_grad():
            value, aux = _with_aux(where, func(*picked.replaced(place.inputs), **kwargs), has_aux)
            if not isinstance(value, Tensor):
                raise RuntimeError(f"{where}: Expected f to return a Tensor, got {type(value).__name__}")
            if value._array.ndim:
                raise RuntimeError(f"{where}: Expected f to return a scalar tensor, got {value._array.ndim} dims")
            if value._array.dtype.kind not in "fV":
                raise RuntimeError(f"{where}: Expected f to return a real number, got {value.dtype}")
            stay = place.outside([value])
            found = place.pull([value], place.inputs, [None], stay)
        gradient = trees.unflatten(_released(found, stay), picked.tree)
        value = _released([value], stay)[0]
        return (gradient, (value, _released_tree(aux, stay))) if has_aux else (gradient, value)

    return wrapper


def grad(func: Fn, argnums: Any = 0, has_aux: bool = False) -> Fn:
    """A function that gives the gradient of `func`; see `grad_and_value`. With `has_aux`: (gradient, aux)."""
    both = grad_and_value(func, argnums, has_aux)

    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        gradient, value = both(*args, **kwargs)
        return (gradient, value[1]) if has_aux else gradient

    return wrapper


def vjp(func: Fn, *primals: Any, has_aux: bool = False) -> Any:
    """(func(*primals), vjp_fn), and aux with `has_aux`: vjp_fn(cotangents), of the structure of the output, gives
    a tuple of one gradient per primal. It may be called often, and vmapped."""
    leaves, tree = trees.flatten(primals)
    place = _Place("vjp", leaves)
    with enable_grad():
        value, aux = _with_aux("vjp", func(*trees.unflatten(place.inputs, tree)), has_aux)
    outs, out_tree = _outputs("vjp", value)
    stay = place.outside(outs)

    def vjp_fn(cotangents: Any, retain_graph: bool = True, create_graph: bool | None = None) -> Any:
        seeds, seed_tree = trees.flatten(cotangents)
        if seed_tree != out_tree:
            raise RuntimeError(f"vjp_fn: expected cotangents of the structure {out_tree!r}, got {seed_tree!r}")
        later = stay or any(isinstance(seed, Tensor) and seed.requires_grad for seed in seeds)
        create = (later and mode.grad) if create_graph is None else create_graph
        return trees.unflatten(_released(place.pull(outs, place.inputs, seeds, create), create), tree)

    value = trees.unflatten(_released(outs, stay), out_tree)
    return (value, vjp_fn, _released_tree(aux, stay)) if has_aux else (value, vjp_fn)


class _Linear:
    """A function at one point, as its value and its jvp there."""

    def __init__(self, where: str, func: Fn, leaves: list[Any], args: Callable[[Any], Any], has_aux: bool) -> None:
        self._where, self._place = where, _Place(where, leaves)
        with enable_grad():
            value, aux = _with_aux(where, func(*args(self._place.inputs)), has_aux)
            self._outs, self.tree = _outputs(where, value)
            self._by_nodes = tangents.needed(self._outs)
            if not self._by_nodes:
                levels = union(self._place.inputs)
                self._dummies = [zeros_with(out, levels).requires_grad_() for out in self._outs]
                self._first = self._place.pull(self._outs, self._place.inputs, self._dummies, True)
        self.stay = self._place.outside(self._outs)
        self.value = trees.unflatten(_released(self._outs, self.stay), self.tree)
        self.aux = _released_tree(aux, self.stay)

    def jvp(self, directions: list[Any], strict: bool = False) -> list[Tensor]:
        """The derivatives of the outputs in the direction of `directions`."""
        _check_tangents(self._where, self._place.inputs, directions)
        if strict and not all(out.requires_grad for out in self._outs):
            raise RuntimeError(f"{self._where}: an output is independent of the inputs, which strict=True refuses")
        create = (self.stay or any(t.requires_grad for t in directions)) and mode.grad
        if self._by_nodes:
            pushed = tangents.push(self._outs, self._place.inputs, directions)
            found = [zeros_like(out) if t is None else t for t, out in zip(pushed, self._outs, strict=True)]
            return _released(found, create)
        with enable_grad():
            found = self._place.pull(self._first, self._dummies, directions, create)
        return _released(found, create)


def zeros_with(out: Tensor, levels: Any) -> Tensor:
    """Zeros like `out`, batched as it is and at `levels`."""
    own = levels_of(out)
    every = tuple(sorted({*levels, *own}, key=lambda level: level.number))
    whole = full(out, every) if every else out
    return hide(wrap(whole._dev.xp.zeros(whole._array.shape, whole._array.dtype), whole._dev), every)


def _check_tangents(where: str, primals: list[Tensor], tangents: list[Any]) -> None:
    if len(primals) != len(tangents):
        raise RuntimeError(f"{where}: expected one tangent per primal, got {len(tangents)} for {len(primals)}")
    for primal, tangent in zip(primals, tangents, strict=True):
        if not isinstance(tangent, Tensor):
            raise RuntimeError(f"{where}: tangents must be Tensors, got {type(tangent).__name__}")
        if tuple(primal.shape) != tuple(tangent.shape):
            raise RuntimeError(
                f"{where}: a tangent has shape {tuple(tangent.shape)}, its primal has {tuple(primal.shape)}"
            )


def jvp(func: Fn, primals: Any, tangents: Any, *, strict: bool = False, has_aux: bool = False) -> Any:
    """(func(*primals), J @ tangents), and aux with `has_aux`: the derivative in one direction.

    Cost: a forward and two backwards (see the module's text). `strict` refuses outputs that do not depend on inputs.
    """
    if not isinstance(primals, tuple):
        raise RuntimeError(f"jvp: expected primals to be a tuple, got {type(primals).__name__}")
    if not isinstance(tangents, tuple):
        raise RuntimeError(f"jvp: expected tangents to be a tuple, got {type(tangents).__name__}")
    leaves, tree = trees.flatten(primals)
    directions, other = trees.flatten(tangents)
    if other != tree:
        raise RuntimeError(f"jvp: tangents have the structure {other!r}, primals have {tree!r}")
    linear = _Linear("jvp", func, leaves, lambda made: trees.unflatten(made, tree), has_aux)
    found = trees.unflatten(linear.jvp(directions, strict), linear.tree)
    return (linear.value, found, linear.aux) if has_aux else (linear.value, found)


def linearize(func: Fn, *primals: Any) -> tuple[Any, Fn]:
    """(func(*primals), jvp_fn): jvp_fn(*tangents) is the derivative there, without running `func` again."""
    leaves, tree = trees.flatten(primals)
    linear = _Linear("linearize", func, leaves, lambda made: trees.unflatten(made, tree), False)

    def jvp_fn(*tangents: Any) -> Any:
        directions, other = trees.flatten(tangents)
        if other != tree:
            raise RuntimeError(f"linearize: tangents have the structure {other!r}, primals have {tree!r}")
        return trees.unflatten(linear.jvp(directions), linear.tree)

    return linear.value, jvp_fn


def _basis(tensor: Tensor) -> Tensor:
    """(n, *shape): tensors with a single 1, in row-major order of its place."""
    count = tensor.numel()
    eye = tensor._dev.xp.eye(count, dtype=tensor._array.dtype)
    return wrap(eye.reshape((count, *tensor._array.shape)), tensor._dev)


def jacrev(
    func: Fn,
    argnums: Any = 0,
    *,
    has_aux: bool = False,
    chunk_size: int | None = None,
    _preallocate_and_copy: bool = False,
) -> Fn:
    """A function that gives the Jacobian of `func`: per output and chosen argument out.shape + in.shape, nested as they
    are. By one vmapped backward per output, of at most `chunk_size` rows at a time."""

    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        picked = _Picked("jacrev", argnums, args)
        place = _Place("jacrev", picked.leaves)
        with enable_grad():
            value, aux = _with_aux("jacrev", func(*picked.replaced(place.inputs), **kwargs), has_aux)
        outs, tree = _outputs("jacrev", value)
        stay = place.outside(outs)
        blocks = [trees.unflatten(_rows(place, out, stay, chunk_size), picked.tree) for out in outs]
        found = trees.unflatten(blocks, tree)
        return (found, _released_tree(aux, stay)) if has_aux else found

    return wrapper


def _rows(place: _Place, out: Tensor, stay: bool, chunk_size: int | None) -> list[Tensor]:
    basis = _basis(out)
    shapes = [(*out._array.shape, *t._array.shape) for t in place.inputs]
    if not out.numel():
        return [t.new_zeros(shape) for t, shape in zip(place.inputs, shapes, strict=True)]

    def row(cotangent: Tensor) -> tuple[Tensor, ...]:
        return tuple(place.pull([out], place.inputs, [cotangent], stay))

    found = vmap(row, randomness="same", chunk_size=chunk_size)(basis)
    return [part.reshape(shape) for part, shape in zip(_released(found, stay), shapes, strict=True)]


def jacfwd(func: Fn, argnums: Any = 0, has_aux: bool = False, *, randomness: str = "error") -> Fn:
    """`jacrev`'s result by columns: one forward, and a vmapped jvp per chosen argument."""

    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        picked = _Picked("jacfwd", argnums, args)
        named = functools.partial(func, **kwargs)
        linear = _Linear("jacfwd", named, picked.leaves, picked.replaced, has_aux)
        columns = [_columns(linear, picked.leaves, i, randomness) for i in range(len(picked.leaves))]
        blocks = [trees.unflatten(list(parts), picked.tree) for parts in zip(*columns, strict=True)]
        found = trees.unflatten(blocks, linear.tree)
        return (found, linear.aux) if has_aux else found

    return wrapper


def _columns(linear: _Linear, leaves: list[Tensor], i: int, randomness: str) -> list[Tensor]:
    """For every output the block of input `i`."""
    zeros = [zeros_like(leaf) for leaf in leaves]

    def column(tangent: Tensor) -> tuple[Tensor, ...]:
        return tuple(linear.jvp([tangent if k == i else zero for k, zero in enumerate(zeros)]))

    size, shape = leaves[i].numel(), leaves[i]._array.shape
    if not size:
        outs = trees.flatten(linear.value)[0]
        return [out.new_zeros((*out._array.shape, *shape)) for out in outs]
    found = vmap(column, randomness=randomness)(_basis(leaves[i]))
    return [moveaxis.call(part, 0, part._array.ndim - 1).reshape((*part._array.shape[1:], *shape)) for part in found]


def hessian(func: Fn, argnums: Any = 0) -> Fn:
    """A function that gives the second derivatives of `func`: `jacfwd(jacrev(func))`, nested twice as arguments are."""
    return jacfwd(jacrev(func, argnums), argnums)
