"""The tape: one `Node` per recorded operation, with edges to the nodes (or leaves) of its inputs.

Nodes are numbered in creation order; an edge always leads to a lower number, so descending order is a valid and
deterministic order for backward.
"""

from __future__ import annotations

import itertools
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from resilin.core.autograd import node_names
from resilin.core.autograd.grad_mode import mode
from resilin.core.autograd.nodes import METADATA, NODE_HOOKS, GradientEdge, NodeHooks, node_of
from resilin.core.autograd.rule_inputs import Meta, is_wide, wide, wide_recorded
from resilin.core.dtype import NpDtype
from resilin.core.ops.errstate import is_half, widened
from resilin.core.state.hooks import RemovableHandle, add_hook
from resilin.core.state.versions import InferenceCount, View, share_version
from resilin.core.tensor import Tensor, wrap

next_seq = itertools.count().__next__


class CheckpointError(RuntimeError):
    """A checkpointed function did not do the same when it ran again."""


_CORE = str(Path(__file__).parents[1])


def _stack() -> list[str]:
    """The lines that lead here, down to the one that called into resilin.core."""
    frames = traceback.extract_stack()
    while frames and frames[-1].filename.startswith(_CORE):
        frames.pop()
    return frames.format()


class Node:
    """A recorded operation.

    `op` is the op's declaration (`vjp(xp, needs, g, y, *inputs, *params)` gives one gradient per tensor input) and
    `impl` the implementation that ran. `saved` holds the inputs its rule reads (None for the others), `versions` their
    version counters at that time; both are dropped as backward passes.
    """

    __slots__ = (
        "__weakref__",
        "_pre",
        "dev",
        "edges",
        "frame",
        "freed",
        "impl",
        "metas",
        "needs",
        "op",
        "outputs",
        "params",
        "residual",
        "saved",
        "seq",
        "trace",
        "versions",
        "y",
    )

    def __init__(self, op: Any, impl: Any, dev: Any, edges: Any, metas: Any, needs: Any, params: Any) -> None:
        self.seq = next_seq()
        self.op = op
        self.impl = impl
        self.dev = dev
        self.edges: tuple[Node | Tensor | None, ...] = edges
        self.metas: tuple[tuple[tuple[int, ...], NpDtype] | None, ...] = metas
        self.needs: tuple[bool, ...] = needs
        self.params = params
        self.saved: Any = None
        self.versions: Any = None
        self.y: Any = None
        self.residual: Any = None
        self.freed = False
        self.frame: Any = None  # the checkpoint that can bring back what it saved
        self.outputs = 1
        self._pre: dict[int, Any] | None = None
        self.trace = _stack() if mode.anomaly else None

    def __repr__(self) -> str:
        return f"<{self.name()} object at {id(self):#x}>"

    @property
    def metadata(self) -> dict[Any, Any]:
        """A dict for whatever its user wants to keep with the node."""
        return METADATA.setdefault(self, {})

    def name(self) -> str:
        """PyTorch's name, e.g. "MulBackward0"."""
        return node_names.of(str(self.op.name), self.params, self.edges, self.metas)

    def pre_hooks(self) -> dict[int, Any]:
        """Hooks that see the gradient of this node's output before the rule does."""
        if self._pre is None:
            self._pre = {}
        return self._pre

    @property
    def next_functions(self) -> tuple[tuple[Any, int], ...]:
        """The nodes its gradients go to, each with the number of its output; (None, 0) for inputs that need none."""
        return tuple((node_of(edge), edge.index if isinstance(edge, Pick) else 0) for edge in self.edges)

    def register_prehook(self, fn: Callable[[tuple[Any, ...]], Any]) -> RemovableHandle:
        """Call fn(grad_outputs) before this node's backward; a tuple that it returns takes their place."""
        return add_hook(NODE_HOOKS.setdefault(self, NodeHooks()).before, fn)

    def register_hook(self, fn: Callable[[tuple[Any, ...], tuple[Any, ...]], Any]) -> RemovableHandle:
        """Call fn(grad_inputs, grad_outputs) after this node's backward; a tuple that it returns takes the place of
        grad_inputs. The node must stay referred to, as by a tensor of the graph."""
        return add_hook(NODE_HOOKS.setdefault(self, NodeHooks()).after, fn)

    def __getattr__(self, name: str) -> Any:
        """`_saved_self`, `_saved_other`: what was saved of the first tensor and the second; `_saved_result`: of the
        result; parameters by their names. AttributeError for what the rule does not read."""
        if name.startswith("_saved_") and hasattr(self.op, "arguments"):
            found = self._saved_by_name().get(name.removeprefix("_saved_"))
            if found is not None:
                return found
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _saved_by_name(self) -> dict[str, Any]:
        self.arrays()  # raises when they are gone or were written
        result = self._saved_output()
        return {
            **dict(zip(self.op.arguments[max(self.op.n, 0) :], self.params, strict=False)),
            **dict(zip(("self", "other"), self.saved, strict=False)),
            "result": None if result is None else wrap(result, self.dev),
        }

    def arrays(self) -> list[Any]:
        """The saved inputs as arrays. RuntimeError when one was modified in place, or when they are gone."""
        if self.freed:
            raise _already_freed(self)
        if self.frame is not None:
            self.frame.recompute()
        out = []
        for value, version, meta in zip(self.saved, self.versions, self.metas, strict=True):
            if isinstance(value, Tensor):
                vc = value._vc
                if vc is not None and vc[0] != version:
                    raise _modified(self, value, version)
                array = value._array
                if meta is not None and array.shape != meta[0]:
                    raise RuntimeError(
                        f"{self.name()} saved a tensor of shape {tuple(meta[0])}, whose data was replaced by one of "
                        f"shape {tuple(array.shape)} before backward"
                    )
                out.append(array)
            elif value is None and meta is not None:
                out.append(Meta(*meta))
            else:
                out.append(value)
        return out

    def run(self, g: Any) -> Any:
        """Gradients of the inputs, as arrays, for the gradient array `g` of the output."""
        arrays = self.arrays()
        y = self._saved_output()
        impl = self.impl
        if impl.wide and (is_half(g) or (type(g) is list and any(map(is_half, g)))) and is_wide(impl.wide, g):
            g = list(map(widened, g)) if type(g) is list else widened(g)
            y, arrays = widened(y), list(map(wide, arrays))
        if impl.residual:
            return impl.vjp(self.dev.xp, self.needs, g, y, self.residual, *arrays, *self.params)
        return impl.vjp(self.dev.xp, self.needs, g, y, *arrays, *self.params)

    def run_adding(self, g: Any, before: Any) -> Any:
        """`run` by a rule that adds `before` to the first input's gradient (`Impl.adds`)."""
        kept = (self.residual,) if self.impl.residual else ()
        given = (g, self._saved_output(), *kept, *self.arrays(), *self.params)
        return self.impl.vjp(self.dev.xp, self.needs, *given, before=before)

    def run_recorded(self, xp: Any, g: Tensor) -> Any:
        """Gradients of the inputs as tensors that are themselves recorded, by the op's generic rule."""
        arrays = self.arrays()
        inputs = [
            kept if isinstance(kept, Tensor) else other for kept, other in zip(self.saved or (), arrays, strict=True)
        ]
        array = self._saved_output()
        y: Tensor | None = None
        if array is not None:
            y = wrap(array, self.dev)
            y._node, y._rg = self, True
        before = getattr(self.impl, "before_rule", None)
        if before is not None:
            before()
        how = self.op.generic.wide
        if how and isinstance(g, Tensor) and is_half(g._array) and is_wide(how, g._array):
            g, y, *inputs = (wide_recorded(xp, value) for value in (g, y, *inputs))
        return self.op.generic.vjp(xp, self.needs, g, y, *inputs, *self.params)

    def _saved_output(self) -> Any:
        kept = self.y
        if kept is None:
            return None
        array, vc, version = kept
        if vc[0] != version:
            raise _modified(self, array, version)
        return array

    def strip(self, frame: Any) -> None:
        """Keep nothing: `frame`, a checkpoint, will bring it back."""
        self.saved = self.versions = self.y = self.residual = None
        self.frame = frame

    def take(self, twin: Node) -> None:
        """Save what `twin`, the same operation run again, saved; its inputs stand at their places in this graph."""
        self.saved = [_placed(value, edge) for value, edge in zip(twin.saved, self.edges, strict=True)]
        self.versions, self.y, self.residual, self.frame = twin.versions, twin.y, twin.residual, None

    def check_twin(self, twin: Node) -> None:
        """CheckpointError unless `twin` is the same operation on inputs of the same shapes and dtypes."""
        if not isinstance(twin, Node) or twin.name() != self.name() or list(twin.metas) != list(self.metas):
            now = f"{twin.name()} of {_described(twin)}" if isinstance(twin, Node) else "a checkpoint"
            raise CheckpointError(
                f"checkpoint: the function did not do the same when it ran again: forward recorded {self.name()} of "
                f"{_described(self)}, now it is {now}. It must depend on nothing but its arguments and random numbers"
            )

    def free(self) -> None:
        """Drop what was saved. Nodes that saved nothing can be walked again."""
        if self.op.saves_any or self.y is not None:
            self.freed = True
        self.saved = self.y = self.residual = self.frame = None
        if not self.freed:
            self.saved = (None,) * len(self.edges)


class Pick(Node):
    """One output of a node with several. Its gradient waits in the parent's list."""

    __slots__ = ("index",)

    def __init__(self, parent: Node, index: int) -> None:
        super().__init__(parent.op, None, parent.dev, (parent,), (None,), (True,), ())
        self.index = index
        self.saved = (None,)

    def free(self) -> None:
        """Nothing is saved here."""

    def name(self) -> str:
        """That of the node whose output it is."""
        parent: Any = self.edges[0]
        found: str = parent.name()
        return found

    @property
    def next_functions(self) -> tuple[tuple[Any, int], ...]:
        """Those of the node whose output it is."""
        parent: Any = self.edges[0]
        found: tuple[tuple[Any, int], ...] = parent.next_functions
        return found


def _placed(value: Any, edge: Any) -> Any:
    if not isinstance(value, Tensor) or edge is None:
        return value
    if isinstance(edge, Tensor):
        return edge
    made = wrap(value._array, value._dev)
    made._vc, made._node, made._rg = value._vc, edge, True
    return made


def _described(node: Node) -> str:
    return " and ".join(f"{meta[1]} {list(meta[0])}" for meta in node.metas if meta is not None)


def _already_freed(node: Node) -> RuntimeError:
    return RuntimeError(
        f"Trying to backward through the graph a second time: {node.name()} has freed what it saved. "
        "Give retain_graph=True to the first backward if two are wanted"
    )


def _modified(node: Node, value: Any, version: int) -> RuntimeError:
    message = (
        "one of the variables needed for gradient computation has been modified by an inplace operation: "
        f"a tensor of shape {tuple(value.shape)} saved by {node.name()} at version {version}"
    )
    if isinstance(value, Tensor):
        message += f" is at version {value._version}"
    return RuntimeError(message + ". Use the out-of-place operation, or detect_anomaly() to see where it was saved")


def edge_of(tensor: Tensor) -> Any:
    """Where the gradient of `tensor` goes: its node, the leaf itself, or None when it needs none."""
    view = tensor._view
    if view is not None and view.outdated:
        refresh(tensor, view)
    if not tensor._rg:
        return None
    return tensor._node or tensor


def get_gradient_edge(tensor: Tensor) -> GradientEdge:
    """Where the gradient of `tensor` comes by; keeps no more than the graph alive. RuntimeError if it has none."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"get_gradient_edge: expected a Tensor, got {type(tensor).__name__}")
    edge = edge_of(tensor)
    if edge is None:
        raise RuntimeError("It is not possible to get the gradient edge for a Tensor that does not require gradients")
    return GradientEdge(node_of(edge), getattr(edge, "index", 0))


def check_layout(shown: Any, tensor: Tensor) -> None:
    """RuntimeError unless `shown`, a view made again from its base, lies in memory as `tensor` does."""
    if shown.shape != tensor._array.shape or shown.strides != tensor._array.strides:
        raise RuntimeError(
            "a view is being used whose base has since been given another layout in place (t_, transpose_, unsqueeze_, "
            "...) and another history: backward cannot follow it. Make the view again, or use t() instead of t_()"
        )


def refresh(tensor: Tensor, view: View[Tensor]) -> None:
    """Record a view anew from its base, whose history an in-place write has changed."""
    fresh = view.base
    for op, params in view.chain:
        fresh = op.call(fresh, *params)
    check_layout(fresh._array, tensor)
    tensor._move(fresh._node)
    tensor._rg, view.seen = fresh._rg, view.base._node


def mark_view(out: Tensor, source: Tensor, op: Any, params: tuple[Any, ...]) -> None:
    """Say that `out` shares `source`'s memory, made by view op `op`."""
    out._vc = share_version(source)
    parent = source._view
    if parent is None:
        out._view = View(source, ((op, params),), source._node, mode.grad)
    else:
        recorded = mode.grad and parent.recorded
        out._view = View(parent.base, (*parent.chain, (op, params)), parent.base._node, recorded)


def record(op: Any, impl: Any, out: Tensor, inputs: tuple[Any, ...], params: tuple[Any, ...], residual: Any) -> None:
    """Make `out` remember that `op` computed it from `inputs` (tensors, or None and numbers for the constant ones)."""
    if len(inputs) == 1:
        _record_one(op, impl, out, inputs[0], params, residual)
        return
    if len(inputs) == 2:
        _record_two(op, impl, out, *inputs, params, residual)
        return
    edges = [edge_of(value) if isinstance(value, Tensor) else None for value in inputs]
    metas = [
        None if edge is None else (value._array.shape, value._array.dtype)
        for value, edge in zip(inputs, edges, strict=True)
    ]
    needs = tuple([edge is not None for edge in edges])
    node = Node(op, impl, out._dev, edges, metas, needs, params)
    keeps, keeps_y = op.keeps(needs, impl)
    node.saved = [value if keep else None for value, keep in zip(inputs, keeps, strict=True)]
    node.versions = [version_to_save(value) if keep else 0 for value, keep in zip(inputs, keeps, strict=True)]
    _made(node, out, keeps_y, residual)


def _made(node: Node, out: Tensor, keeps_y: bool, residual: Any) -> None:
    """`out` is the result of `node`, which is complete but for what it saves of its results."""
    if keeps_y:
        count = share_version(out)
        node.y = (out._array, count, count[0])
    node.residual = residual
    out._node = node
    out._rg = True
    if mode.frame is not None:
        mode.frame.recorded(node)


def version_to_save(value: Any) -> int:
    """The count of writes of a tensor that a node saves, 0 for anything else. RuntimeError for inference tensors."""
    vc = value._vc if isinstance(value, Tensor) else None
    if vc is None:
        return 0
    if type(vc) is InferenceCount:
        raise RuntimeError(
            "Inference tensors cannot be saved for backward: this one was made in inference_mode. Use a clone() made "
            "outside of it, or no_grad() instead of inference_mode()"
        )
    version: int = vc[0]
    return version


_ONE = (True,)
_NOTHING, _ZERO = (None,), (0,)


def _record_one(op: Any, impl: Any, out: Tensor, x: Tensor, params: tuple[Any, ...], residual: Any) -> None:
    """`record` for one input that requires gradients: most operations, so without loops."""
    array = x._array
    edge = edge_of(x) if x._view is not None else x._node or x
    node = Node(op, impl, out._dev, (edge,), ((array.shape, array.dtype),), _ONE, params)
    (keep,), keeps_y = op.keeps(_ONE, impl)
    if keep:
        node.saved = (x,)
        node.versions = _ZERO if x._vc is None else (version_to_save(x),)
    else:
        node.saved = _NOTHING
        node.versions = _ZERO
    _made(node, out, keeps_y, residual)


def _record_two(op: Any, impl: Any, out: Tensor, a: Any, b: Any, params: tuple[Any, ...], residual: Any) -> None:
    """`record` for two inputs, either of which may be constant: most of the others, so without loops, too."""
    to_a = edge_of(a) if isinstance(a, Tensor) else None
    to_b = edge_of(b) if isinstance(b, Tensor) else None
    meta_a = None if to_a is None else (a._array.shape, a._array.dtype)
    meta_b = None if to_b is None else (b._array.shape, b._array.dtype)
    needs = (to_a is not None, to_b is not None)
    node = Node(op, impl, out._dev, (to_a, to_b), (meta_a, meta_b), needs, params)
    (keep_a, keep_b), keeps_y = op.keeps(needs, impl)
    node.saved = (a if keep_a else None, b if keep_b else None)
    node.versions = (version_to_save(a) if keep_a else 0, version_to_save(b) if keep_b else 0)
    _made(node, out, keeps_y, residual)


def is_differentiable(array: Any) -> bool:
    """Whether gradients can flow through an array of this dtype."""
    kind: str = array.dtype.kind
    return kind in "fVc"


def same_memory(view: Any, source: Any) -> bool:
    """Whether a view op's result lies in `source`'s memory (a reshape may have had to copy)."""
    if view is source:
        return True
    base = view.base
    if base is None:
        return False
    return base is source or base is source.base or bool(np.may_share_memory(view, source))
