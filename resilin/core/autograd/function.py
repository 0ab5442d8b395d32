"""`Function`: operations with a hand-written backward, with PyTorch's context object."""

from __future__ import annotations

from typing import Any

from resilin.core.autograd.grad_mode import _Switch, mode
from resilin.core.autograd.tape import Node, Pick, edge_of, is_differentiable, version_to_save
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
        self._frame: Any = None  # the checkpoint that can bring back what was saved

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Keep tensors for backward; modifying them in place before it is an error there."""
        self._saved = tensors
        self._versions = tuple(version_to_save(t) for t in tensors)

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """The kept tensors. RuntimeError when they are gone or were modified in place."""
        if self._freed:
            raise RuntimeError(
                "Trying to backward through the graph a second time: this Function has freed what it saved. "
                "Give retain_graph=True to the first backward if two are wanted"
            )
        if self._frame is not None:
            self._frame.recompute()
        for tensor, version in zip(self._saved, self._versions, strict=True):
            if tensor is not None and tensor._version != version and id(tensor) not in self._dirty:
                raise RuntimeError(
                    "one of the variables needed for gradient computation has been modified by an inplace operation: "
                    f"a tensor of shape {tuple(tensor.shape)} saved at version {version} is at {tensor._version}"
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
        result = self.cls.backward(ctx, *gradients)
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

    def strip(self, frame: Any) -> None:
        """Keep nothing of what `save_for_backward` was given: `frame`, a checkpoint, will bring it back."""
        self.ctx._saved, self.ctx._versions, self.ctx._frame = (), (), frame

    def take(self, twin: Node) -> None:
        """Save what the same Function saved when it ran again."""
        self.check_twin(twin)
        mine, other = self.ctx, twin.ctx  # type: ignore[attr-defined]
        mine._saved, mine._versions, mine._dirty, mine._frame = other._saved, other._versions, other._dirty, None

    def free(self) -> None:
        """Drop what the context saved."""
        self.ctx._frame = None
        self.ctx._freed = True
        self.ctx._saved = ()
        self.ctx._versions = ()


class Function:
    """A differentiable operation with its own backward. Subclass it, write two static methods, call `apply`.

    forward(ctx, *args) runs unrecorded; backward(ctx, *grads) gives one gradient (or None) per argument of forward.
    Or, when `setup_context(ctx, inputs, output)` is written too, forward(*args) computes only, and setup_context
    leaves in the context what backward needs.
    """

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

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        """Run `forward` and record it."""
        ctx = FunctionCtx()
        is_tensor = tuple(isinstance(a, Tensor) for a in args)
        needs = tuple(isinstance(a, Tensor) and a.requires_grad for a in args)
        ctx.needs_input_grad = needs
        recorded = mode.grad and any(needs)
        edges = tuple(edge_of(a) for a in args if isinstance(a, Tensor)) if recorded else ()
        with _Switch(False):
            if cls.setup_context is Function.setup_context:
                result = cls.forward(ctx, *args, **kwargs)
            else:
                result = cls.forward(*args, **kwargs)
                cls.setup_context(ctx, args, result)
        if not recorded:
            return result
        outputs = result if isinstance(result, tuple) else (result,)
        tensors = [a for a in args if isinstance(a, Tensor)]
        outs = cls._record(ctx, outputs, tensors, edges, is_tensor)
        return outs if isinstance(result, tuple) else outs[0]

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
        node.shapes = [
            (out._array.shape, out._array.dtype) if isinstance(out, Tensor) else ((), "float32") for out in outputs
        ]
        made = list(outputs)
        for place in places:
            out = outputs[place]
            if id(out) in ctx._without_grad or not is_differentiable(out._array):
                continue
            dirty = id(out) in ctx._dirty
            target = out if dirty or (not any(out is t for t in inputs) and out._node is None) else out.detach()
            if dirty:
                target._bump()
            target._node = node if len(outputs) == 1 else Pick(node, place)
            target._rg = True
            made[place] = target
        if mode.frame is not None:
            mode.frame.recorded(node)
        return tuple(made)


def once_differentiable(fn: Any) -> Any:
    """Mark a backward as not differentiable itself: its gradients are constants."""

    def wrapper(ctx: Any, *args: Any) -> Any:
        with _Switch(False):
            return fn(ctx, *args)

    return wrapper
