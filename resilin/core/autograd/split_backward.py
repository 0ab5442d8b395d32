"""Backward in two halves: the gradients of a part's inputs first, those of its weights later, as pipelines want it.

    first half    walks the nodes on a way to the inputs, and computes what flows along these ways only
    second half   walks what else hangs on them: weights, and what weights went through (a transpose, a norm)

Nothing is computed twice: a node that gives all its gradients at once (an `autograd.Function`, a fused kernel) runs in
the first half, and its weights' parts wait. What a checkpoint brought back in the first half serves the second, too.
Each gradient is summed in the order of a whole backward, so it has the same bits. What a node saved is freed by the
half that needs it last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any

from resilin.core.autograd import engine
from resilin.core.autograd.engine import Run
from resilin.core.autograd.grad_mode import mode
from resilin.core.autograd.nodes import NODE_HOOKS
from resilin.core.autograd.tape import Node
from resilin.core.ops.lazy_gradients import written_out
from resilin.core.ops.registry import Op
from resilin.core.tensor import Tensor, wrap

Parts = list[Any]
"""Contributions to one leaf's gradient, in the order in which a backward sums them."""

_by_seq = attrgetter("seq")


class _Waiting:
    """What the second half has to do at a node: hand on `parts`, after computing those that `needs` says from `g`."""

    __slots__ = ("g", "needs", "parts")

    def __init__(self, parts: list[Any], needs: tuple[bool, ...], g: Any) -> None:
        self.parts, self.needs, self.g = parts, needs, g


class WeightGradients:
    """The second half, which waits. `run()` it once; dropped, it frees what it kept."""

    def __init__(self, run: _Split) -> None:
        self._run: _Split | None = run

    def parts(self, leaf: Tensor) -> Parts:
        """Give the contributions so far to an input that is kept apart: all of them, after the first half."""
        if self._run is None:
            raise RuntimeError("the second half of this backward has run already")
        return self._run.apart[leaf]

    def run(self) -> dict[Tensor, Parts]:
        """Accumulate the weights' gradients. Gives, for each leaf that was to be kept apart, its contributions.

        RuntimeError the second time.
        """
        run, self._run = self._run, None
        if run is None:
            raise RuntimeError("the second half of this backward has run already")
        _inside(run, run.second_half)
        return run.apart


class _Split(Run):
    """One backward in two halves, to the leaves `inputs`; contributions to the leaves `apart` are not summed."""

    __slots__ = ("apart", "left", "others", "rest")

    def __init__(self, inputs: Iterable[Tensor], apart: Iterable[Tensor]) -> None:
        super().__init__(False, False, None, False)
        self.targets = set(inputs)
        self.apart: dict[Tensor, Parts] = {leaf: [] for leaf in apart}
        self.others: dict[Node, tuple[bool, ...]] = {}  # of nodes in the first half: edges for the second
        self.left: dict[Node, _Waiting | None] = {}
        self.rest: list[Node] = []

    def first_half(self, roots: Sequence[Any]) -> None:
        """Walk what leads to the inputs."""
        inputs, self.targets = self.targets, None
        order = self.plan(roots)
        for root in roots:
            if not isinstance(root, Node):
                self.uses[root] -= 1
        self.targets, self.capture = inputs, True
        leads = set(self._needed(order, inputs or set()))
        for node in leads:
            self._find_others(node, leads)
        self.rest = [node for node in order if node not in leads or node in self.others]
        for node in order:
            if node in self.others:
                self._begin(node)
            elif node in leads:
                self.walk((node,))
        for leaf in inputs or ():
            self.finish(leaf)

    def _find_others(self, node: Node, leads: set[Node]) -> None:
        inputs: Any = self.targets
        others = tuple(
            edge is not None and edge not in inputs and not (isinstance(edge, Node) and edge in leads)
            for edge in node.edges
        )
        if any(others):
            self.others[node] = others

    def _begin(self, node: Node) -> None:
        """Compute what flows on towards the inputs, and note what is left to do."""
        others, g = self.others.pop(node), self.grads.pop(node, None)
        if g is not None and node._pre:
            g = self.hooked(node._pre, g, node.dev)
        hooks = NODE_HOOKS.get(node)
        if g is not None and hooks is not None:
            g = hooks.ahead(g, node.dev)
        self.left[node] = None
        if g is None:
            self.hand_on(node, None)
            return
        whole = hooks is not None or not isinstance(node.op, Op) or node.op.at_once
        first = tuple(need and not other for need, other in zip(node.needs, others, strict=True))
        parts = _computed(node, g, node.needs if whole else first)
        if hooks is not None:
            parts = hooks.behind([written_out(part) for part in parts], g, node.dev)
        kept = [part if other else None for part, other in zip(parts, others, strict=True)]
        again = tuple(other and not whole and part is None for part, other in zip(kept, others, strict=True))
        self.left[node] = _Waiting(kept, again, g if any(again) else None)
        if not any(again):
            node.free()
        del g
        self.hand_on(node, [None if other else part for part, other in zip(parts, others, strict=True)])

    def second_half(self) -> None:
        """Walk the rest."""
        order, self.rest = self.rest, []
        self.targets, self.capture = None, False
        order.reverse()
        while order:  # what has been walked is let go of
            node = order.pop()
            if node not in self.left:
                self.walk((node,))
                continue
            waiting = self.left.pop(node)
            self.hand_on(node, None if waiting is None else _completed(node, waiting))
        for leaf in list(self.sums):
            self.finish(leaf)

    def add(self, edge: Any, g: Any, waiting: dict[Any, Any]) -> None:
        """As of every backward, but for leaves that are kept apart."""
        if waiting is self.sums and edge in self.apart:
            self.apart[edge].append(g)
        else:
            super().add(edge, g, waiting)


def _computed(node: Node, g: Any, needs: tuple[bool, ...]) -> list[Any]:
    """The gradients of those inputs of `node` that `needs` says; rules that cannot choose give all."""
    before, node.needs = node.needs, needs
    try:
        parts = list(node.run(g))
    except Exception as error:
        engine.explain(error, node, g)
        raise
    finally:
        node.needs = before
    if mode.anomaly and mode.check_nan:
        parts = [written_out(part) for part in parts]
        engine.check_nan(node, parts)
    return parts


def _completed(node: Node, waiting: _Waiting) -> list[Any]:
    parts = waiting.parts
    if any(waiting.needs):
        for place, part in enumerate(_computed(node, waiting.g, waiting.needs)):
            if waiting.needs[place]:
                parts[place] = part
        node.free()
    return parts


def _inside(run: Run, work: Callable[[], None]) -> None:
    """Do `work`, a half of the backward `run`, as the backward that runs in this thread."""
    with engine.inside(run):
        work()
        while run.callbacks:
            run.callbacks.pop(0)()


def split_backward(
    tensors: Sequence[Tensor],
    gradients: Sequence[Tensor | None],
    inputs: Sequence[Tensor],
    apart: Sequence[Tensor] = (),
) -> tuple[list[Tensor | None], WeightGradients]:
    """Do the first half of a backward from `tensors`: the gradients of `inputs` (None where nothing flowed), and what
    does the second. No leaf accumulates before that, unless a checkpoint with `use_reentrant=True` makes it.

    inputs: leaves that require gradients. apart: leaves whose contributions are not summed, as of a weight that has
    other uses elsewhere (`accumulate`): the second half gives them. Those of an input are in `parts` before that, and
    None stands for its gradient.
    Raises: RuntimeError for inputs that are results of recorded operations.
    """
    for place, leaf in enumerate(inputs):
        if leaf._node is not None or not leaf._rg:
            raise RuntimeError(f"split_backward: inputs[{place}]: expected a leaf that requires gradients")
    run = _Split(inputs, apart)

    def work() -> None:
        run.first_half(engine.start(run, tensors, gradients))

    _inside(run, work)
    found = [run.captured.pop(leaf, None) for leaf in inputs]
    grads = [None if g is None else wrap(g, leaf._dev) for g, leaf in zip(found, inputs, strict=True)]
    return grads, WeightGradients(run)


def summed(leaf: Tensor, first: Any, parts: Parts) -> Any:
    """The array of the sum of `first` (an array that becomes ours, or None) and `parts`, as a backward sums them; None
    where there are none."""
    return _sum_of(leaf, first, parts).sums.get(leaf)


def accumulate(leaf: Tensor, first: Any, parts: Parts) -> None:
    """Accumulate the sum of `first` and `parts` in the gradient of `leaf`, with its hooks, as a backward does."""
    run = _sum_of(leaf, first, parts)
    _inside(run, lambda: run.finish(leaf))


def _sum_of(leaf: Tensor, first: Any, parts: Parts) -> Run:
    run = Run(False, False, None, False)
    run.uses[leaf] = len(parts) + (first is not None)
    if first is not None:
        run.sums[leaf] = first
        run.owned.add(leaf)
    for part in parts:
        run.add(leaf, part, run.sums)
    if leaf in run.sums:
        run.sums[leaf] = written_out(run.sums[leaf])
    parts.clear()
    return run
