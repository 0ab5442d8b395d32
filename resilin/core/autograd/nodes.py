"""What users see of nodes: callbacks and notes, which few have; what a leaf is where nodes are expected; edges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from resilin.core.state.hooks import RemovableHandle
from resilin.core.tensor import Tensor, wrap


class NodeHooks:
    """Callbacks of a node: before its backward, and after."""

    __slots__ = ("after", "before")

    def __init__(self) -> None:
        self.before: dict[int, Any] = {}
        self.after: dict[int, Any] = {}

    def ahead(self, g: Any, dev: Any) -> Any:
        """The gradient of the node's output (a list of several) after the hooks before it."""
        many = isinstance(g, list)
        given = tuple(_tensor(part, dev) for part in (g if many else [g]))
        for hook in tuple(self.before.values()):
            given = _tuple_of(hook, hook(given), given)
        parts = _like(given, g if many else [g])
        return parts if many else parts[0]

    def behind(self, parts: list[Any], g: Any, dev: Any) -> list[Any]:
        """The gradients of the node's inputs after the hooks after it."""
        outer = tuple(_tensor(part, dev) for part in (g if isinstance(g, list) else [g]))
        found = tuple(_tensor(part, dev) for part in parts)
        for hook in tuple(self.after.values()):
            found = _tuple_of(hook, hook(found, outer), found)
        return _like(found, parts)


def _tensor(part: Any, dev: Any) -> Any:
    return part if part is None or isinstance(part, Tensor) else wrap(part, dev)


def _tuple_of(hook: Any, result: Any, before: tuple[Any, ...]) -> tuple[Any, ...]:
    if result is None:
        return before
    name = getattr(hook, "__qualname__", repr(hook))
    if not isinstance(result, tuple):
        raise TypeError(f"expected tuple, but hook returned '{type(result).__name__}': hook {name} of a node")
    made = result
    if len(made) != len(before):
        raise RuntimeError(
            f"hook {name} has returned an incorrect number of values (got {len(made)}, but expected {len(before)})"
        )
    return made


def _like(values: tuple[Any, ...], before: list[Any]) -> list[Any]:
    """Tensors as what they were made of: arrays, or tensors."""
    recorded = any(isinstance(part, Tensor) for part in before)
    return [v if v is None or recorded else v._array for v in values]


NODE_HOOKS: WeakKeyDictionary[Any, NodeHooks] = WeakKeyDictionary()  # few nodes have any
METADATA: WeakKeyDictionary[Any, dict[Any, Any]] = WeakKeyDictionary()


class PostHook:
    """A hook of an AccumulateGrad: a backward that accumulates elsewhere than in `grad` calls `fn` with what it has."""

    __slots__ = ("fn",)

    def __init__(self, fn: Callable[[tuple[Any, ...], tuple[Any, ...]], Any]) -> None:
        self.fn = fn

    def __call__(self, leaf: Tensor) -> None:
        self.fn((), (leaf.grad,))


class AccumulateGrad:
    """What a leaf is in `next_functions`: where its gradient is accumulated. Equal for one leaf; holds it."""

    __slots__ = ("variable",)

    def __init__(self, variable: Tensor) -> None:
        self.variable = variable

    def __repr__(self) -> str:
        return f"<AccumulateGrad object at {id(self.variable):#x}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AccumulateGrad) and other.variable is self.variable

    def __hash__(self) -> int:
        return hash((AccumulateGrad, id(self.variable)))

    def name(self) -> str:
        """ "AccumulateGrad"."""
        return "AccumulateGrad"

    @property
    def next_functions(self) -> tuple[Any, ...]:
        """None: the gradient stays here."""
        return ()

    @property
    def metadata(self) -> dict[Any, Any]:
        """Empty: leaves keep none."""
        return {}

    def register_prehook(self, fn: Callable[[tuple[Any, ...]], Any]) -> RemovableHandle:
        """Call fn((grad,)) before the gradient is accumulated; a tuple that it returns takes its place."""

        def seen(grad: Tensor) -> Any:
            result = fn((grad,))
            return result[0] if isinstance(result, tuple) else result

        return self.variable.register_hook(seen)

    def register_hook(self, fn: Callable[[tuple[Any, ...], tuple[Any, ...]], Any]) -> RemovableHandle:
        """Call fn((), (grad,)) after the gradient was accumulated: grad is then the sum."""
        return self.variable.register_post_accumulate_grad_hook(PostHook(fn))


def node_of(edge: Any) -> Any:
    """An edge as its user sees it: a node, a leaf's AccumulateGrad, or None."""
    return AccumulateGrad(edge) if isinstance(edge, Tensor) else edge


class GradientEdge(NamedTuple):
    """A place in the graph: `node`, and which of its outputs. `grad` and `backward` take it in place of a tensor."""

    node: Any
    output_nr: int
    ownership_token: Any = None


def stand_in(value: Any, seed: Any = None) -> Any:
    """A tensor at the place of a GradientEdge, with the shape of `seed`; anything else as it is."""
    if not isinstance(value, GradientEdge):
        return value
    if isinstance(value.node, AccumulateGrad):
        return value.node.variable
    made = wrap(value.node.dev.xp.zeros(()) if seed is None else seed._array, value.node.dev)
    made._node, made._rg = value.node, True
    return made
