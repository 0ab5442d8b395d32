"""Backward: walks the tape in descending creation order, iteratively, and frees as it goes.

The order depends on nothing but the order of the forward operations, and each gradient is summed in that order, so a
backward is deterministic. A leaf's hooks run as soon as its last contribution of this backward has arrived. Backwards
of several threads may meet at leaves: each adds its whole gradient at once, in the order in which they come.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter
from typing import Any

import numpy as np

from resilin._base import fault_points, trace
from resilin.core.autograd.grad_mode import mode
from resilin.core.autograd.nodes import NODE_HOOKS
from resilin.core.autograd.rule_inputs import Meta
from resilin.core.autograd.tape import Node, Pick, edge_of
from resilin.core.autograd.tracing import BackwardSpans, backward_spans
from resilin.core.device import CPU, different_devices, lacking
from resilin.core.kernels import pack
from resilin.core.kernels.contiguous import ascontiguousarray
from resilin.core.kernels.loader import native
from resilin.core.ops.calling import as_array
from resilin.core.ops.errstate import SILENT, restore, silence
from resilin.core.ops.lazy_gradients import Product, Region, Regions, written_out
from resilin.core.ops.registry import TENSOR_XP, Impl, Op
from resilin.core.ops.shape import permute_dims
from resilin.core.tensor import Tensor, wrap
from resilin.errors import ResilinError

_by_seq = attrgetter("seq")


class _Running(threading.local):
    def __init__(self) -> None:
        self.runs: list[Run] = []


running = _Running()


def queue_callback(fn: Callable[[], None], outermost: bool = False) -> None:
    """Call `fn` once at the end of the backward that is running in this thread. RuntimeError when none is.

    outermost: of those that run inside one another (a reentrant checkpoint's), the one that all others are part of.
    """
    if not running.runs:
        raise RuntimeError("queue_callback: no backward is running in this thread")
    running.runs[0 if outermost else -1].callbacks.append(fn)


@contextmanager
def inside(run: Run) -> Iterator[None]:
    """Let the block be a part of the backward `run`, whose gradients are not recorded, in this thread."""
    before, mode.grad = mode.grad, False
    running.runs.append(run)
    token = silence(SILENT)
    try:
        yield
    finally:
        restore(token)
        running.runs.pop()
        mode.grad = before


def outermost() -> Run | None:
    """The backward that runs in this thread, the outer one where backwards are nested (as in a reentrant checkpoint):
    something to tell it from others by, and its `callbacks` run at its end. None when none runs."""
    return running.runs[0] if running.runs else None


class Run:
    """One backward. With `create`, gradients are recorded tensors; otherwise they are bare arrays."""

    __slots__ = (
        "callbacks", "capture", "captured", "create", "grads", "keep", "owned", "spans", "sums", "targets", "uses",
    )  # fmt: skip

    def __init__(self, create: bool, keep: bool, targets: set[Any] | None, capture: bool) -> None:
        self.create = create
        self.keep = keep
        self.targets = targets  # the nodes and leaves to get gradients, when not all leaves are
        self.capture = capture  # gradients of the targets are returned instead of accumulated
        self.captured: dict[Any, Any] = {}
        self.grads: dict[Node, Any] = {}  # gradients that wait for their node
        self.owned: set[Any] = set()  # nodes and leaves whose waiting array is ours alone to add into
        self.sums: dict[Tensor, Any] = {}  # gradients that wait for their leaf
        self.uses: dict[Tensor, int] = {}  # contributions a leaf still waits for
        self.callbacks: list[Callable[[], None]] = []
        self.spans: BackwardSpans | None = None  # while it walks, if somebody records

    def plan(self, roots: Sequence[Any]) -> list[Node]:
        """All nodes reachable from `roots`, latest first; counts the uses of every leaf."""
        order: list[Node] = _reachable(roots, self.uses)
        return order if self.targets is None else self._needed(order, self.targets)

    def _needed(self, order: list[Node], targets: set[Any]) -> list[Node]:
        """Only the nodes on a way from the roots to a target."""
        leads: set[Node] = set()
        for node in reversed(order):
            if node in targets or any(edge in targets or edge in leads for edge in node.edges if edge is not None):
                leads.add(node)
        return [node for node in order if node in leads]

    def add(self, edge: Any, g: Any, waiting: dict[Any, Any]) -> None:
        """Sum `g` into what waits at `edge`."""
        before = waiting.get(edge)
        if before is None and type(g) is np.ndarray:  # almost always
            waiting[edge] = g
            return
        if type(before) is Regions and not isinstance(g, Region):
            before = waiting[edge] = before.whole()
        if type(g) is Product and not (before is None and waiting is self.sums and self.uses[edge] == 1):
            g = g.whole()  # all other contributions to a leaf, and all to nodes, are sums of arrays
        if isinstance(g, Region):
            self.add_region(edge, g, before, waiting)
        elif before is None:
            waiting[edge] = as_array(g)
        elif edge in self.owned:
            pack.add_to(before, g)
        else:
            total = waiting[edge] = as_array(pack.add(before, g))
            if not self.create and isinstance(total, np.ndarray):
                self.owned.add(edge)

    def add_region(self, edge: Any, g: Region, before: Any, waiting: dict[Any, Any]) -> None:
        """Sum the gradient of a part into what waits at `edge`, or lay it in zeros: in the order in memory of the
        tensor whose axes `edge` moved, so that moving them back is all it takes."""
        if before is None:
            moved = isinstance(edge, Node) and edge.op is permute_dims
            axes = edge.params[0] if moved else None
            waiting[edge] = g.whole(axes) if isinstance(g.g, np.ndarray) else Regions(g, axes)
            self.owned.add(edge)
            return
        if type(before) is Regions:
            before.parts.append(g)
            return
        if edge not in self.owned:
            before = waiting[edge] = before.copy()
            self.owned.add(edge)
        g.add_to(before)

    def walk(self, order: Sequence[Node]) -> None:
        """Run every node's rule and hand its gradients on."""
        spans = self.spans = None if trace.recorder is None else backward_spans(trace.recorder)
        try:
            self._walk(order)
        finally:
            if spans is not None:
                spans.end()
                self.spans = None

    def _walk(self, order: Sequence[Node]) -> None:
        heard = fault_points.heard
        if _walk_natively is not None and heard is None and not self.create and type(self) is Run:
            _walk_natively(self, order)
            return
        for node in order:
            if heard is not None:
                heard("backward")
            self.step(node)

    def step(self, node: Node) -> None:
        """Run the rule of `node` and hand its gradients on."""
        g = self.grads.pop(node, None)
        if g is None:
            self.hand_on(node, None)
            return
        if self.spans is not None:
            self.spans.next(node)
        if type(g) is Regions:
            g = g.whole()
        if node._pre:
            g = self.hooked(node._pre, g, node.dev)
        if self.capture and self.targets is not None and node in self.targets:
            self.captured[node] = g
        if isinstance(node, Pick):
            self.collect(node, g)
            return
        hooks = NODE_HOOKS.get(node) if _hooked else None
        if hooks is not None:
            g = hooks.ahead(g, node.dev)
            if g is None:  # a hook took it away: nothing flows on from here
                self.hand_on(node, None)
                return
        try:
            if self.create:
                parts = list(node.run_recorded(TENSOR_XP, g))
            elif getattr(node.impl, "adds", False) and hooks is None and not mode.anomaly:
                parts = self.added(node, g)
            else:
                parts = list(node.run(g))
        except Exception as error:
            explain(error, node, g)
            raise
        if hooks is not None or mode.anomaly:
            parts = [written_out(part) for part in parts]
        if hooks is not None:
            parts = hooks.behind(parts, g, node.dev)
        del g
        if mode.anomaly and mode.check_nan:
            check_nan(node, parts)
        if not self.keep:
            node.free()
        self.hand_on(node, parts)

    def added(self, node: Node, g: Any) -> list[Any]:
        """The gradients of the inputs, where the rule adds what waits for the first of them already."""
        edge = node.edges[0]
        before = self.grads.get(edge) if isinstance(edge, Node) else None
        if before is None or not self.needs_no_fitting(node, before):
            return list(node.run(g))
        parts = list(node.run_adding(g, before))
        del self.grads[edge]  # type: ignore[arg-type]
        self.owned.discard(edge)
        return parts

    @staticmethod
    def needs_no_fitting(node: Node, before: Any) -> bool:
        """Whether `before` is an array as the gradient of the first input of `node` is."""
        meta = node.metas[0]
        return meta is not None and not isinstance(before, Regions) and (before.shape, before.dtype) == meta

    def collect(self, pick: Pick, g: Any) -> None:
        """Put the gradient of one output into its parent's list."""
        parent: Any = pick.edges[0]
        parts = self.grads.setdefault(parent, [None] * parent.outputs)
        parts[pick.index] = g

    def hand_on(self, node: Node, parts: Any) -> None:
        """Give each input its part; a leaf that has them all accumulates."""
        if isinstance(node, Pick):
            return
        parts = parts if parts is not None else [None] * len(node.edges)
        whole: list[Any] = []
        for position, edge in enumerate(node.edges):
            if edge is not None and self.give(node, position, edge, parts):
                whole.append(edge)
        for leaf in whole:  # after the node, so that a trace shows the turn of each
            self.finish(leaf)

    def give(self, node: Node, position: int, edge: Any, parts: list[Any]) -> bool:
        """Give the input at `edge` its part; return whether it is a leaf that has them all now.

        The part is taken from `parts`: so a leaf may take an array that nobody else holds.
        """
        part, targets = parts[position], self.targets
        parts[position] = None
        if part is not None:
            shape, dtype = node.metas[position]  # type: ignore[misc]
            own = part.dtype if type(part) is np.ndarray else _np_dtype(part)
            if part.shape != shape or own is not dtype:
                part = fitted(node, position, part)
        if isinstance(edge, Node):
            if part is not None:
                self.add(edge, part, self.grads)
        elif targets is None or edge in targets:
            if part is not None:
                self.add(edge, part, self.sums)
            left = self.uses[edge] - 1
            self.uses[edge] = left
            return left == 0
        return False

    def finish(self, leaf: Tensor) -> None:
        """The whole gradient of `leaf` is there."""
        g = self.sums.pop(leaf, None)
        if g is None:
            return
        if type(g) is Regions:
            g = g.whole()
        hooks = leaf._hooks
        if hooks is not None and hooks.pre:
            g = self.hooked(hooks.pre, written_out(g), leaf._dev)
        if self.capture:
            self.captured[leaf] = written_out(g)
            return
        if not leaf._rg:  # was switched off, or detached in place, since it was used
            return
        if self.spans is not None:
            self.spans.leaf()
        with _accumulating:
            if self.create:
                leaf._grad = g.clone() if leaf._grad is None else leaf._grad + g  # g may be another leaf's, too
            else:
                _accumulate(leaf, g)
        if hooks is not None and hooks.post:
            for hook in tuple(hooks.post.values()):
                if (result := hook(leaf)) is not None:
                    name = getattr(hook, "__qualname__", repr(hook))
                    raise TypeError(f"post accumulate grad hook {name} must return None, got {type(result).__name__}")

    def hooked(self, hooks: dict[int, Any], g: Any, dev: Any) -> Any:
        """The gradient after the hooks saw it."""
        value = g if self.create else wrap(g, dev)
        for hook in tuple(hooks.values()):
            result = hook(value)
            if result is not None:
                value = _checked(hook, result, value)
        return value if self.create else value._array


def _reachable_nodes(roots: Sequence[Any], uses: dict[Tensor, int]) -> list[Node]:
    found: set[Node] = set()
    stack: list[Node] = []
    for root in roots:
        if isinstance(root, Node):
            stack.append(root)
        else:
            uses[root] = uses.get(root, 0) + 1
    while stack:
        node = stack.pop()
        if node in found:
            continue
        found.add(node)
        for edge in node.edges:
            if edge is None:
                continue
            if isinstance(edge, Node):
                stack.append(edge)
            else:
                uses[edge] = uses.get(edge, 0) + 1
    return sorted(found, key=_by_seq, reverse=True)


def _raised(error: Exception, node: Node, g: Any) -> None:
    """Raise what native code met in a rule, explained."""
    try:
        raise error
    except Exception:
        explain(error, node, g)
        raise


def explain(error: Exception, node: Node, g: Any) -> None:
    """Say what is known of `error`, which the rule of `node` raised for `g`; raise another one that says it better."""
    if node.trace is not None:
        error.add_note("forward call of this operation:\n" + "".join(node.trace))
    if (
        isinstance(error, ValueError | IndexError) and isinstance(node.op, Op) and not isinstance(error, ResilinError)
    ):  # numpy's: the rule met arrays that no longer fit
        raise RuntimeError(
            f"{node.name()}: what it saved does not fit its gradient of shape {_shape(g)}: {error}"
        ) from error
    told = node.dev.backend.explained(error, f"the gradient of {node.name()}")
    if told is not error:
        raise told from error
    if isinstance(error, AttributeError) and isinstance(node.op, Op):
        raise lacking(f"the gradient of {node.op.name}", error) from None


def _checked(hook: Any, result: Any, before: Tensor) -> Tensor:
    """What a hook returned in place of the gradient `before`; an error unless it is a gradient of the same kind."""
    name = getattr(hook, "__qualname__", repr(hook))
    if not isinstance(result, Tensor):
        raise TypeError(f"hook {name} must return None or a Tensor, got {type(result).__name__}")
    if result._array.shape != before._array.shape:
        raise RuntimeError(
            f"hook {name} has changed the size of value: expected {tuple(before.shape)}, got {tuple(result.shape)}"
        )
    if result._array.dtype != before._array.dtype:
        raise RuntimeError(f"hook {name} has changed the type of value (was {before.dtype} got {result.dtype})")
    if result._dev is not before._dev:
        raise RuntimeError(f"hook {name} has moved the value from {before._dev} to {result._dev}")
    return result


# Backwards of several threads may meet at a leaf. Reentrant: adding to a gradient may call back into Python.
_accumulating = threading.RLock()
_hooked: dict[Any, Any] = vars(NODE_HOOKS)["data"]  # the dict behind it: empty almost always, and quicker to ask
_reachable: Any = _reachable_nodes
_walk_natively: Any = None
if native is not None:
    native.walk_configure(Run, Impl, Meta, Product, _hooked, _accumulating, _raised)
    _reachable, _walk_natively = native.reachable, native.walk


def _shape(g: Any) -> Any:
    return [None if part is None else tuple(part.shape) for part in g] if isinstance(g, list) else tuple(g.shape)


def _np_dtype(part: Any) -> Any:
    return part._array.dtype if isinstance(part, Tensor) else part.dtype


def fitted(node: Node, position: int, part: Any) -> Any:
    """`_undo` of the gradient of input `position`. RuntimeError where the input cannot have had this gradient."""
    meta: Any = node.metas[position]
    try:
        return undo(written_out(part), meta, node.dev.xp)
    except ValueError:
        raise RuntimeError(
            f"function {node.name()} returned an invalid gradient at index {position} - got "
            f"{list(part.shape)} but expected shape compatible with {list(meta[0])}"
        ) from None


def undo(part: Any, meta: Any, xp: Any) -> Any:
    """Undo broadcasting and promotion: sum over the dimensions that were stretched, return to the input's dtype."""
    shape, dtype = meta
    recorded = isinstance(part, Tensor)
    if part.shape != shape:
        extra = part.ndim - len(shape)
        if extra < 0:
            raise ValueError("fewer dimensions than the input")
        axes = tuple(range(extra)) + tuple(
            i + extra for i, n in enumerate(shape) if n == 1 and part.shape[i + extra] != 1
        )
        if axes:
            inner = len(axes) > extra  # else nothing is left of what is summed, and no view of the sum is needed
            part = (TENSOR_XP if recorded else xp).sum(part, axis=axes, keepdims=inner)
            part = part.reshape(part.shape[extra:]) if inner else part
        if part.shape != shape:
            raise ValueError("not a shape that broadcasting makes of the input's")
    if _np_dtype(part) != dtype:
        if dtype.kind != "c" and _np_dtype(part).kind == "c":
            part = part.real
        part = (TENSOR_XP if recorded else xp).astype(part, dtype)
    return part


def _accumulate(leaf: Tensor, g: Any) -> None:
    """Add `g` into `leaf.grad`; take the array itself when nobody else holds it."""
    before = leaf._grad
    slot: Any = leaf._grad_slot
    if type(g) is Product:
        if before is None and slot is not None and _placed(leaf, slot, g):
            return
        g = g.whole()
    if before is not None:
        if not getattr(before._array.flags, "writeable", True):
            leaf._grad = before + wrap(g, leaf._dev)
        else:
            pack.add_to(before._array, g)
            before._bump()
        return
    if type(slot) is type(g) and slot.dtype == g.dtype and slot.shape == g.shape:
        slot[...] = g
        leaf._grad = wrap(slot, leaf._dev)
    elif sys.getrefcount(g) <= _ALONE and g.flags.c_contiguous and (g.base is None or _whole(leaf, g)):
        leaf._grad = wrap(g, leaf._dev)
    elif leaf._dev is CPU:
        leaf._grad = wrap(np.array(g) if g.flags.c_contiguous else ascontiguousarray(g), leaf._dev)
    else:
        leaf._grad = wrap(leaf._dev.xp.array(g, copy=True), leaf._dev)


def _whole(leaf: Tensor, g: Any) -> bool:
    """Whether `g`, a view on a device, is all of an array that it alone holds: another shape of a sum, say."""
    return leaf._dev is not CPU and g.base.nbytes == g.nbytes and sys.getrefcount(g.base) <= _ALONE_IN_VIEW


def _placed(leaf: Tensor, slot: Any, g: Product) -> bool:
    """Whether the product went straight to where the gradient belongs."""
    if not isinstance(slot, np.ndarray):
        taken: bool = slot.take(leaf, g)
        return taken
    if slot.dtype != g.dtype or slot.shape != g.shape:
        return False
    g.write(slot)
    leaf._grad = wrap(slot, leaf._dev)
    return True


def _references(_leaf: Any, g: Any) -> int:
    return sys.getrefcount(g)


def _references_when_alone() -> int:
    """What sys.getrefcount says of a gradient that only `finish`, its call and `_accumulate` hold: same shape of calls
    here, because the number differs between versions of Python."""
    g = np.zeros(1)
    return _references(None, g)


_ALONE = _references_when_alone()
_view = np.zeros(2)[:1]
_ALONE_IN_VIEW = sys.getrefcount(_view.base)  # the same of an array that only a view holds


def check_nan(node: Node, parts: Any) -> None:
    """RuntimeError where a gradient of an input of `node` is not a number."""
    for index, part in enumerate(parts):
        array = part._array if isinstance(part, Tensor) else part
        if array is not None and array.dtype.kind in "fc" and bool(np.isnan(np.sum(array))):
            error = RuntimeError(f"Function '{node.name()}' returned nan values in its {index}th output.")
            if node.trace is not None:
                error.add_note("forward call of this operation:\n" + "".join(node.trace))
            raise error


def start(run: Run, tensors: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> list[Any]:
    """Put the first gradients in place; gives the roots."""
    roots = []
    for tensor, gradient in zip(tensors, gradients, strict=True):
        edge = edge_of(tensor)
        if edge is None:
            raise RuntimeError("element 0 of tensors does not require grad and does not have a grad_fn")
        if gradient is None:
            if tensor._array.size != 1:
                raise RuntimeError("grad can be implicitly created only for scalar outputs")
            if tensor._array.dtype.kind == "c":
                raise RuntimeError(
                    f"grad can be implicitly created only for real scalar outputs but got {tensor.dtype}"
                )
            ones = tensor._dev.xp.ones_like(tensor._array)
            value = wrap(ones, tensor._dev) if run.create else ones
        else:
            if gradient._array.shape != tensor._array.shape:
                raise RuntimeError(
                    f"Mismatch in shape: grad_output has shape {tuple(gradient.shape)}, "
                    f"output has {tuple(tensor.shape)}"
                )
            if gradient._dev is not tensor._dev:
                raise different_devices("backward", tensor._dev, gradient._dev)
            value = gradient if run.create else gradient._array
            if (gradient._array.dtype.kind == "c") != (tensor._array.dtype.kind == "c"):
                raise RuntimeError(
                    "For complex Tensors, both grad_output and output are required to have the same dtype. Mismatch in "
                    f"dtype: grad_output has a dtype of {gradient.dtype} and output has a dtype of {tensor.dtype}."
                )
            if gradient._array.dtype != tensor._array.dtype:
                value = undo(value, (tensor._array.shape, tensor._array.dtype), tensor._dev.xp)
        roots.append(edge)
        run.add(edge, value, run.grads if isinstance(edge, Node) else run.sums)
    return roots


def run_backward(
    tensors: Sequence[Tensor],
    gradients: Sequence[Tensor | None],
    *,
    retain_graph: bool,
    create_graph: bool,
    targets: Sequence[Tensor] | None = None,
    capture: bool = True,
    recorded: bool = False,
) -> list[Any]:
    """Propagate `gradients` from `tensors`. Without `targets`, leaves accumulate; with them, their gradients are
    returned (tensors, or None where nothing flowed) and no leaf is touched, or without `capture` those of them that
    are leaves accumulate, and no others. `recorded`: by the rules of second derivatives, which hand on tensors, also
    batched ones; `create_graph` implies it."""
    capture = capture and targets is not None
    chosen = None if targets is None else {edge_of(t) for t in targets}
    run = Run(create_graph or recorded, retain_graph, chosen, capture)
    before = mode.grad
    mode.grad = create_graph
    running.runs.append(run)
    token = silence(SILENT)
    try:
        roots = start(run, tensors, gradients)
        order = run.plan(roots)
        for root in roots:
            if not isinstance(root, Node):
                run.uses[root] -= 1
        run.walk(order)
        for leaf in list(run.sums):
            run.finish(leaf)
        while run.callbacks:
            run.callbacks.pop(0)()
    finally:
        restore(token)
        running.runs.pop()
        mode.grad = before
    if targets is None or not capture:
        return []
    found = [run.captured.get(edge_of(t)) for t in targets]
    return [g if g is None or isinstance(g, Tensor) else wrap(g, t._dev) for g, t in zip(found, targets, strict=True)]


def backward(
    tensors: Sequence[Tensor],
    gradients: Sequence[Tensor | None],
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Any = None,
) -> None:
    """Accumulate gradients into leaves, or with `inputs` into these tensors only; those that are no leaves retain their
    gradient, as in PyTorch also that of later backwards."""
    keep = create_graph if retain_graph is None else retain_graph
    if inputs is None:
        run_backward(tensors, gradients, retain_graph=keep, create_graph=create_graph)
        return
    targets = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    if not targets:
        raise RuntimeError("'inputs' argument to backward cannot be empty")
    for target in targets:
        target.retain_grad()
    run_backward(tensors, gradients, retain_graph=keep, create_graph=create_graph, targets=targets, capture=False)
