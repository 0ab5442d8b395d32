"""`Function`: operations with a hand-written backward, with PyTorch's context object."""

from __future__ import annotations

import functools
import time
import weakref
from typing import Any, NamedTuple

from resilin._base import trace
from resilin.core import trees
from resilin.core.autograd.grad_mode import _Switch, mode
from resilin.core.autograd.tape import Node, Pick, edge_of, is_differentiable, version_to_save
from resilin.core.batching.active import ACTIVE, Unbatchable, batched_in
from resilin.core.batching.levels import expose, insert, levels_of, union
from resilin.core.state.inplace import adopt, check_writable
from resilin.core.state.size import check_dim
from resilin.core.state.versions import count_of
from resilin.core.tensor import Tensor, wrap


class FunctionCtx:
    """What forward leaves for backward: `save_for_backward`, `saved_tensors`, `needs_input_grad`, any attribute."""

    needs_input_grad: tuple[bool, ...] = ()

    def __init__(self) -> None:
        self._saved: tuple[Tensor | None, ...] = ()
        self._versions: tuple[int, ...] = ()
        self._without_grad: set[int] = set()
        self._dirty: set[int] = set()
        self._materialize = True
        self._freed = False
        self._for_forward: tuple[Tensor | None, ...] | None = None
        self._pushing = False  # jvp is running
        self._recorded = True  # a node will hold what is saved
        self._node: Any = None  # a weak reference
        self._frame: Any = None  # the checkpoint that can bring back what was saved

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Keep tensors for backward; modifying them in place before it is an error there. TypeError for anything else
        but None."""
        for place, value in enumerate(tensors):
            if value is not None and not isinstance(value, Tensor):
                raise TypeError(
                    f"save_for_backward can only save variables, but argument {place} is of type {type(value).__name__}"
                )
        self._saved = tensors
        version = version_to_save if self._recorded else count_of
        self._versions = tuple(0 if t is None else version(t) for t in tensors)

    def save_for_forward(self, *tensors: Tensor | None) -> None:
        """Keep tensors for `jvp`, whose `saved_tensors` they are."""
        self._for_forward = tensors

    def name(self) -> str:
        """That of the Function's node, e.g. "MyFunctionBackward"."""
        found: str = self._of_node().name()
        return found

    @property
    def next_functions(self) -> tuple[Any, ...]:
        """Those of the Function's node."""
        found: tuple[Any, ...] = self._of_node().next_functions
        return found

    @property
    def metadata(self) -> dict[Any, Any]:
        """That of the Function's node."""
        found: dict[Any, Any] = self._of_node().metadata
        return found

    def _of_node(self) -> Any:
        node = None if self._node is None else self._node()
        if node is None:
            raise RuntimeError("this Function has no node in the graph (yet): it is there in backward")
        return node

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """The kept tensors. RuntimeError when they are gone or were modified in place."""
        if self._pushing and self._for_forward is not None:
            return self._for_forward
        if self._freed:
            raise RuntimeError(
                "Trying to backward through the graph a second time: this Function has freed what it saved. "
                "Give retain_graph=True to the first backward if two are wanted"
            )
        if self._frame is not None:
            self._frame.recompute()
        for tensor, version in zip(self._saved, self._versions, strict=True):
            if tensor is not None and count_of(tensor) != version and id(tensor) not in self._dirty:
                raise RuntimeError(
                    "one of the variables needed for gradient computation has been modified by an inplace operation: "
                    f"a tensor of shape {tuple(tensor.shape)} saved at version {version} is at {count_of(tensor)}"
                )
        return self._saved

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        """These outputs get no gradient."""
        self._without_grad.update(id(t) for t in tensors)

    def mark_dirty(self, *tensors: Tensor) -> None:
        """These inputs were modified in place and are returned."""
        self._dirty.update(id(t) for t in tensors)

    def set_materialize_grads(self, value: bool) -> None:
        """Whether backward gets zeros (default) or None for outputs that nothing used."""
        self._materialize = value


class _FunctionOp:
    """What a node wants to know of its op."""

    saves_any = True

    def __init__(self, name: str) -> None:
        self.name = name


class FunctionNode(Node):
    """The node of a `Function`: runs its backward."""

    __slots__ = ("cls", "ctx", "shapes")
    cls: type[Function]
    ctx: FunctionCtx
    shapes: list[tuple[tuple[int, ...], Any]]

    def name(self) -> str:
        """E.g. "MyFunctionBackward"."""
        return f"{self.cls.__name__}Backward"

    def __getattr__(self, name: str) -> Any:
        """`saved_tensors`, `needs_input_grad` and whatever `forward` kept: the node has what the context has."""
        return getattr(object.__getattribute__(self, "ctx"), name)

    def run(self, g: Any) -> Any:
        """Gradients of the tensor inputs as arrays."""
        single = not isinstance(g, list)
        given = [g] if single else g
        tensors = [None if part is None else wrap(part, self.dev) for part in given]
        return [None if part is None else part._array for part in self._call(tensors)]

    def run_recorded(self, xp: Any, g: Any) -> Any:
        """Gradients of the tensor inputs as recorded tensors."""
        return self._call(g if isinstance(g, list) else [g])

    def _call(self, gradients: list[Tensor | None]) -> list[Tensor | None]:
        ctx = self.ctx
        if ctx._materialize:
            gradients = [
                wrap(self.dev.xp.zeros(shape, dtype), self.dev) if g is None else g
                for g, (shape, dtype) in zip(gradients, self.shapes, strict=True)
            ]
        result = _rule_of(self.cls)(ctx, *gradients)
        parts = list(result) if isinstance(result, tuple | list) else [result]
        count = len(ctx.needs_input_grad)
        if len(parts) < count or any(part is not None for part in parts[count:]):
            raise RuntimeError(
                f"function {self.name()} returned an incorrect number of gradients (expected {count}, got {len(parts)})"
            )
        kept = [part for part, is_tensor in zip(parts, self.params, strict=False) if is_tensor]
        for part in kept:
            if part is not None and not isinstance(part, Tensor):
                raise TypeError(f"{self.name()}: expected a Tensor or None as gradient, got {type(part).__name__}")
        return kept

    def push(self, given: list[Any]) -> Any:
        """The tangents of the outputs by the Function's own `jvp`, for those of the tensors it was given."""
        rest = iter(given)
        tangents = [next(rest) if is_tensor else None for is_tensor in self.params]
        self.ctx._pushing = True
        try:
            found = self.cls.jvp(self.ctx, *tangents)
        finally:
            self.ctx._pushing = False
        parts = found if isinstance(found, tuple) else (found,)
        if len(parts) != self.outputs:
            raise RuntimeError(
                f"{self.cls.__name__}.jvp returned an incorrect number of tangents (expected {self.outputs}, got "
                f"{len(parts)})"
            )
        return list(parts) if self.outputs > 1 else parts[0]

    def strip(self, frame: Any) -> None:
        """Keep nothing of what `save_for_backward` was given: `frame`, a checkpoint, will bring it back."""
        self.ctx._saved, self.ctx._versions, self.ctx._frame = (), (), frame

    def take(self, twin: Node) -> None:
        """Save what the same Function saved when it ran again."""
        mine, other = self.ctx, twin.ctx
        mine._saved, mine._versions, mine._dirty, mine._frame = other._saved, other._versions, other._dirty, None

    def free(self) -> None:
        """Drop what the context saved."""
        self.ctx._frame = None
        self.ctx._freed = True
        self.ctx._saved = ()
        self.ctx._versions = ()


class VmapInfo(NamedTuple):
    """What `Function.vmap` is told: the number of samples, and vmap's word on random numbers."""

    batch_size: int
    randomness: str


def run_batched(name: str, rule: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> Any:
    """What `rule(info, in_dims, *args, **kwargs)` says of batched arguments, shown with the innermost level's samples.

    RuntimeError, which begins with `name`, where it gives no pair of an output and its dimensions.
    """
    leaves, tree = trees.flatten(args)
    level = union(leaves)[-1]
    dims = [0 if level in levels_of(value) else None for value in leaves]
    shown = [expose(value, level) if dim == 0 else value for value, dim in zip(leaves, dims, strict=True)]
    info = VmapInfo(level.size, level.randomness)
    result = rule(info, trees.unflatten(dims, tree), *trees.unflatten(shown, tree), **(kwargs or {}))
    if not isinstance(result, tuple) or len(result) != 2:
        raise RuntimeError(f"{name}: expected a tuple (output, out_dims), got {type(result).__name__}")
    outs, tree = trees.flatten(result[0])
    dims = trees.spread(result[1], result[0], f"{name}: out_dims")
    hidden = [o if d is None else insert(o, level, check_dim(d, o.ndim)) for o, d in zip(outs, dims, strict=True)]
    return trees.unflatten(hidden, tree)


class Function:
    """A differentiable operation with its own backward. Subclass it, write two static methods, call `apply`.

    forward(ctx, *args) runs unrecorded; backward(ctx, *grads) gives one gradient (or None) per argument of forward.
    Or, when `setup_context(ctx, inputs, output)` is written too, forward(*args) computes only, and setup_context
    leaves in the context what backward needs.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """RuntimeError: Functions have no instances."""
        name = type(self).__name__
        raise RuntimeError(f"Legacy autograd function: {name} has no instances to call, use {name}.apply(...)")

    @staticmethod
    def forward(ctx: Any, *args: Any, **kwargs: Any) -> Any:
        """Compute the outputs from the arguments."""
        raise NotImplementedError("You must implement the forward function for custom autograd.Function.")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Fill the context after a `forward` without one."""
        raise NotImplementedError("setup_context is not implemented.")

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        """Compute the gradients of the arguments from those of the outputs."""
        raise NotImplementedError("You must implement the backward function for custom autograd.Function.")

    @staticmethod
    def vjp(ctx: Any, *grad_outputs: Any) -> Any:
        """`backward` by its other name: write one of the two."""
        raise NotImplementedError("You must implement the backward function for custom autograd.Function.")

    @staticmethod
    def jvp(ctx: Any, *grad_inputs: Any) -> Any:
        """The tangents of the outputs for those of the arguments (None where there is none). Without it, derivatives
        in forward mode come from `backward`, which must be differentiable for them."""
        raise NotImplementedError("You must implement the jvp function for custom autograd.Function to use it")

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> Any:
        """The function of a batch: gives (output, out_dims) for arguments whose samples lie along `in_dims`."""
        raise NotImplementedError("You must implement the vmap staticmethod of this Function, or leave it out.")

    generate_vmap_rule = False  # accepted as in PyTorch; without a vmap staticmethod samples go one by one either way

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        """Run `forward` and record it. Inside vmap: run `vmap`, or without one go sample by sample."""
        if ACTIVE and batched_in(args):
            return cls._apply_to_batch(args)
        ctx, recorder = FunctionCtx(), trace.recorder
        if recorder is None:
            return cls._run(ctx, args, kwargs)
        begun_ns = time.monotonic_ns()
        try:
            return cls._run(ctx, args, kwargs)
        finally:
            node = None if ctx._node is None else ctx._node()
            link = -1 if node is None else node.seq
            recorder.complete(cls.__name__, trace.SpanKind.OP, begun_ns, time.monotonic_ns(), link)

    @classmethod
    def _run(cls, ctx: FunctionCtx, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        is_tensor = tuple(isinstance(a, Tensor) for a in args)
        needs = tuple(isinstance(a, Tensor) and a.requires_grad for a in args)
        ctx.needs_input_grad = needs
        recorded = ctx._recorded = mode.grad and any(needs)
        edges = tuple(edge_of(a) for a in args if isinstance(a, Tensor)) if recorded else ()
        with _Switch(False):
            if cls.setup_context is Function.setup_context:
                result = cls.forward(ctx, *args, **kwargs)
            else:
                result = cls.forward(*args, **kwargs)
                cls.setup_context(ctx, args, result)
        outputs = result if isinstance(result, tuple) else (result,)
        if ctx._dirty.difference(map(id, outputs)):
            raise RuntimeError(
                "Some elements marked as dirty during the forward method were not returned as output. The inputs that "
                "are modified inplace must all be outputs of the Function."
            )
        if not recorded:
            return result
        tensors = [a for a in args if isinstance(a, Tensor)]
        outs = cls._record(ctx, outputs, tensors, edges, is_tensor)
        return outs if isinstance(result, tuple) else outs[0]

    @classmethod
    def _apply_to_batch(cls, args: tuple[Any, ...]) -> Any:
        if cls.vmap is Function.vmap:
            raise Unbatchable
        if cls.generate_vmap_rule:
            raise RuntimeError(
                f"{cls.__name__}: found both generate_vmap_rule=True and a vmap staticmethod: set one of them only"
            )
        return run_batched(f"{cls.__name__}.vmap", cls.vmap, args)

    @classmethod
    def _record(
        cls, ctx: FunctionCtx, outputs: Any, inputs: list[Tensor], edges: Any, is_tensor: Any
    ) -> tuple[Any, ...]:
        metas = tuple(
            None if edge is None else (t._array.shape, t._array.dtype) for t, edge in zip(inputs, edges, strict=True)
        )
        places = [i for i, out in enumerate(outputs) if isinstance(out, Tensor)]
        dev = outputs[places[0]]._dev if places else inputs[0]._dev
        op = _FunctionOp(cls.__name__)
        node = FunctionNode(op, None, dev, edges, metas, tuple(e is not None for e in edges), is_tensor)
        node.cls, node.ctx, node.outputs = cls, ctx, len(outputs)
        ctx._node = weakref.ref(node)
        node.shapes = [
            (out._array.shape, out._array.dtype) if isinstance(out, Tensor) else ((), "float32") for out in outputs
        ]
        made = list(outputs)
        for place in places:
            out = outputs[place]
            if id(out) in ctx._without_grad or not is_differentiable(out._array):
                if id(out) not in ctx._dirty and any(out is t for t in inputs):
                    made[place] = out.detach()
                continue
            source = node if len(outputs) == 1 else Pick(node, place)
            if id(out) in ctx._dirty:
                _write(out, source)
                continue
            target = out if not any(out is t for t in inputs) and out._node is None else out.detach()
            target._move(source)
            target._rg = True
            made[place] = target
        if mode.frame is not None:
            mode.frame.recorded(node)
        return tuple(made)


def _rule_of(cls: type[Function]) -> Any:
    """What computes a Function's gradients: its `backward` or its `vjp`. RuntimeError if there are both."""
    if cls.vjp is Function.vjp:
        return cls.backward
    if cls.backward is not Function.backward:
        raise RuntimeError(
            f"{cls.__name__}: implementing both 'backward' and 'vjp' for a custom Function is not allowed: keep one"
        )
    return cls.vjp


def _write(tensor: Tensor, source: Any) -> None:
    """Have `tensor`, which a Function wrote to, come from `source`, and so the tensor that it is a view of."""
    check_writable(tensor)
    result = wrap(tensor._array, tensor._dev)
    result._move(source)
    result._rg = True
    adopt(tensor, result)


def has_own_jvp(cls: type[Function]) -> bool:
    """Whether a Function says its own rule of forward mode."""
    return cls.jvp is not Function.jvp


class _Once(Function):
    """The identity, whose backward says that there is none."""

    @staticmethod
    def forward(ctx: Any, *tensors: Any) -> Any:
        """The tensors themselves, at a new place."""
        return tuple(t.detach() if isinstance(t, Tensor) else t for t in tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """RuntimeError."""
        raise RuntimeError("trying to differentiate twice a function that was marked with @once_differentiable")


def once_differentiable(fn: Any) -> Any:
    """Mark a backward as not differentiable itself: RuntimeError where somebody tries."""

    @functools.wraps(fn)
    def wrapper(ctx: Any, *args: Any) -> Any:
        with _Switch(False):
            found = fn(ctx, *args)
        if not mode.grad or not any(isinstance(a, Tensor) and a.requires_grad for a in args):
            return found
        many = isinstance(found, tuple)
        parts = [p.detach().requires_grad_() if isinstance(p, Tensor) else p for p in (found if many else (found,))]
        made = _Once.apply(*parts)
        return made if many else made[0]

    return wrapper
