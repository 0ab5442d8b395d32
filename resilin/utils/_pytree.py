"""Nested containers with anything at their leaves, under the names of torch.utils._pytree.

`tree_nodes.py` says what a container is. None is a leaf. Dicts keep the order of their keys.
"""

from __future__ import annotations

import json
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from resilin.utils import tree_texts
from resilin.utils.tree_nodes import (  # noqa: F401 - of this place in PyTorch
    NAMED,
    SUPPORTED_NODES,
    Context,
    GetAttrKey,
    MappingKey,
    NodeDef,
    SequenceKey,
    _deregister_pytree_node,
    _register_pytree_node,
    is_namedtuple,
    is_namedtuple_class,
    is_namedtuple_instance,
    node_of,
    register_constant,
    register_dataclass,
    register_pytree_node,
)
from resilin.utils.tree_texts import register_namedtuple as _register_namedtuple  # noqa: F401 - of this place, too

PyTree = Any
IsLeaf = Callable[[Any], bool] | None


def tree_is_leaf(tree: PyTree, is_leaf: IsLeaf = None) -> bool:
    """Return whether `tree` is no container, or one for which `is_leaf` is true."""
    return (is_leaf is not None and is_leaf(tree)) or node_of(tree) is None


class TreeSpec:
    """The shape of nested containers without their leaves."""

    __slots__ = ("_children", "_context", "type")

    def __init__(self, type: Any, context: Context, children: Sequence[TreeSpec]) -> None:
        self.type, self._context, self._children = type, context, list(children)

    @property
    def context(self) -> Context:
        """What the container's class keeps beside its children."""
        return self._context

    def children(self) -> list[TreeSpec]:
        """Return the shapes of what it holds."""
        return list(self._children)

    @property
    def children_specs(self) -> list[TreeSpec]:
        """The shapes of what it holds."""
        return self._children

    def child(self, index: int) -> TreeSpec:
        """Return the shape of one of what it holds."""
        return self._children[index]

    @property
    def num_children(self) -> int:
        """How many things it holds."""
        return len(self._children)

    @property
    def num_leaves(self) -> int:
        """How many leaves are below it; 1 of a leaf."""
        return 1 if self.is_leaf() else sum(child.num_leaves for child in self._children)

    @property
    def num_nodes(self) -> int:
        """How many containers and leaves it is."""
        return 1 + sum(child.num_nodes for child in self._children)

    def is_leaf(self) -> bool:
        """Return whether it is a leaf."""
        return self.type is None

    def unflatten(self, leaves: Iterable[Any]) -> PyTree:
        """Return containers of this shape with these leaves. ValueError for another number of leaves."""
        given = list(leaves)
        if len(given) != self.num_leaves:
            raise ValueError(
                f"treespec.unflatten(leaves): `leaves` has length {len(given)} but the spec refers to a pytree that "
                f"holds {self.num_leaves} items ({self})."
            )
        return self._built(iter(given))

    def _built(self, leaves: Iterator[Any]) -> PyTree:
        if self.is_leaf():
            return next(leaves)
        children = [child._built(leaves) for child in self._children]
        node = (
            NAMED if is_namedtuple_class(self.type) and self.type not in SUPPORTED_NODES else SUPPORTED_NODES[self.type]
        )
        return node.unflatten_fn(children, self._context)

    def flatten_up_to(self, tree: PyTree) -> list[PyTree]:
        """Return what `tree`, of this shape or one that goes deeper, has where this shape has leaves.

        ValueError for another shape.
        """
        if self.is_leaf():
            return [tree]
        node = node_of(tree)
        if node is None or (type(tree) is not self.type and not _both_dicts(type(tree), self.type)):
            raise ValueError(f"Node type mismatch; expected {self.type!r}, but got {type(tree)!r}.")
        if isinstance(tree, dict) and isinstance(self._keys(), list):
            if set(tree) != set(self._keys()):
                raise ValueError(f"Node keys mismatch; expected {self._keys()}, but got {list(tree)}.")
            parts: list[Any] = [tree[key] for key in self._keys()]
        else:
            flat, context = node.flatten_fn(tree)
            parts = list(flat)
            if len(parts) != len(self._children):
                raise ValueError(f"Node arity mismatch; expected {len(self._children)}, but got {len(parts)}.")
            if context != self._context:
                raise ValueError(f"Node context mismatch for custom node type {self.type!r}.")
        return [one for child, part in zip(self._children, parts, strict=True) for one in child.flatten_up_to(part)]

    def _keys(self) -> Any:
        return self._context[1] if self.type is defaultdict else self._context

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, TreeSpec)
            and (self.type, self._context) == (other.type, other._context)
            and self._children == other._children
        )

    def __hash__(self) -> int:
        return hash((self.type, repr(self._context), len(self._children)))

    def __repr__(self) -> str:
        if self.is_leaf():
            return "*"
        inner = ", ".join(map(repr, self._children))
        return f"TreeSpec({self.type.__name__}, {self._context}, [{inner}])"


def _both_dicts(one: Any, other: Any) -> bool:
    return {one, other} <= {dict, OrderedDict, defaultdict}


def LeafSpec() -> TreeSpec:
    """Return the shape of a leaf."""
    return TreeSpec(None, None, [])


treespec_leaf = LeafSpec


def _flatten(tree: PyTree, leaves: list[Any], is_leaf: IsLeaf) -> TreeSpec:
    node = None if is_leaf is not None and is_leaf(tree) else node_of(tree)
    if node is None:
        leaves.append(tree)
        return LeafSpec()
    children, context = node.flatten_fn(tree)
    return TreeSpec(type(tree), context, [_flatten(child, leaves, is_leaf) for child in children])


def tree_flatten(tree: PyTree, is_leaf: IsLeaf = None) -> tuple[list[Any], TreeSpec]:
    """Return the leaves and the shape of the containers around them."""
    leaves: list[Any] = []
    return leaves, _flatten(tree, leaves, is_leaf)


def tree_unflatten(leaves: Iterable[Any], treespec: TreeSpec) -> PyTree:
    """Return containers of a shape with these leaves."""
    if not isinstance(treespec, TreeSpec):
        raise TypeError(f"tree_unflatten(leaves, treespec): expected a TreeSpec, got {type(treespec).__name__}")
    return treespec.unflatten(leaves)


def treespec_dumps(treespec: TreeSpec, protocol: int | None = None) -> str:
    """Return a shape as text, in PyTorch's JSON."""
    if protocol not in (None, tree_texts.PROTOCOL):
        raise ValueError(f"Unknown protocol {protocol}. Available protocols: [{tree_texts.PROTOCOL}]")
    return json.dumps([tree_texts.PROTOCOL, tree_texts.encoded(treespec)])


def treespec_loads(serialized: str) -> TreeSpec:
    """Return the shape that `treespec_dumps` wrote, here or in PyTorch. The text imports nothing."""
    protocol, node = json.loads(serialized)
    if protocol != tree_texts.PROTOCOL:
        raise ValueError(f"Unknown protocol {protocol}. Available protocols: [{tree_texts.PROTOCOL}]")
    spec: TreeSpec = tree_texts.decoded(node, TreeSpec)
    return spec


class _Asterisk:
    def __repr__(self) -> str:
        return "*"


def treespec_pprint(treespec: TreeSpec) -> str:
    """Return a shape as its containers are shown, with stars for leaves."""
    return repr(treespec.unflatten([_Asterisk()] * treespec.num_leaves))


def tree_iter(tree: PyTree, is_leaf: IsLeaf = None) -> Iterator[Any]:
    """Yield the leaves."""
    node = None if is_leaf is not None and is_leaf(tree) else node_of(tree)
    if node is None:
        yield tree
    else:
        for child in node.flatten_fn(tree)[0]:
            yield from tree_iter(child, is_leaf)


def tree_leaves(tree: PyTree, is_leaf: IsLeaf = None) -> list[Any]:
    """Return the leaves."""
    return list(tree_iter(tree, is_leaf))


def tree_structure(tree: PyTree, is_leaf: IsLeaf = None) -> TreeSpec:
    """Return the shape of the containers."""
    return tree_flatten(tree, is_leaf)[1]


def tree_map(func: Callable[..., Any], tree: PyTree, *rests: PyTree, is_leaf: IsLeaf = None) -> PyTree:
    """Return the containers with `func` of each leaf, and of what `rests` have in its place."""
    leaves, treespec = tree_flatten(tree, is_leaf)
    beside = [treespec.flatten_up_to(rest) for rest in rests]
    return treespec.unflatten([func(*given) for given in zip(leaves, *beside, strict=True)])


def tree_map_(func: Callable[..., Any], tree: PyTree, *rests: PyTree, is_leaf: IsLeaf = None) -> PyTree:
    """Call `func` with each leaf, and with what `rests` have in its place; return `tree` itself."""
    tree_map(func, tree, *rests, is_leaf=is_leaf)
    return tree


def map_only(type_or_types_or_pred: Any, /) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator: its function is called for values of these types, or those that a predicate likes, alone."""
    wanted = _predicate(type_or_types_or_pred)

    def decorate(func: Callable[..., Any]) -> Callable[..., Any]:
        return lambda value, *rest: func(value, *rest) if wanted(value) else value

    return decorate


def _predicate(given: Any) -> Callable[[Any], bool]:
    if isinstance(given, type | tuple) or hasattr(given, "__args__"):
        return lambda value: isinstance(value, given)
    if callable(given):
        return given  # type: ignore[no-any-return]
    raise TypeError("Argument must be a type, a tuple of types, or a callable.")


def tree_map_only(
    type_or_types_or_pred: Any, /, func: Callable[..., Any], tree: PyTree, *rests: PyTree, is_leaf: IsLeaf = None
) -> PyTree:
    """Return the containers with `func` of the leaves of these types, and the others as they are."""
    return tree_map(map_only(type_or_types_or_pred)(func), tree, *rests, is_leaf=is_leaf)


def tree_map_only_(
    type_or_types_or_pred: Any, /, func: Callable[..., Any], tree: PyTree, *rests: PyTree, is_leaf: IsLeaf = None
) -> PyTree:
    """Call `func` with the leaves of these types; return `tree` itself."""
    return tree_map_(map_only(type_or_types_or_pred)(func), tree, *rests, is_leaf=is_leaf)


def tree_all(pred: Callable[[Any], bool], tree: PyTree, is_leaf: IsLeaf = None) -> bool:
    """Return whether `pred` is true of all leaves."""
    return all(map(pred, tree_iter(tree, is_leaf)))


def tree_any(pred: Callable[[Any], bool], tree: PyTree, is_leaf: IsLeaf = None) -> bool:
    """Return whether `pred` is true of any leaf."""
    return any(map(pred, tree_iter(tree, is_leaf)))


def tree_all_only(kind: Any, /, pred: Callable[[Any], bool], tree: PyTree, is_leaf: IsLeaf = None) -> bool:
    """Return whether `pred` is true of all leaves of these types."""
    return all(pred(leaf) for leaf in tree_iter(tree, is_leaf) if isinstance(leaf, kind))


def tree_any_only(kind: Any, /, pred: Callable[[Any], bool], tree: PyTree, is_leaf: IsLeaf = None) -> bool:
    """Return whether `pred` is true of any leaf of these types."""
    return any(pred(leaf) for leaf in tree_iter(tree, is_leaf) if isinstance(leaf, kind))


def arg_tree_leaves(*args: PyTree, **kwargs: PyTree) -> list[Any]:
    """Return the leaves of all arguments."""
    return [leaf for one in (*args, *kwargs.values()) for leaf in tree_iter(one)]


def _broadcast_to_and_flatten(tree: PyTree, treespec: TreeSpec, is_leaf: IsLeaf = None) -> list[Any] | None:
    """Return for each leaf of `treespec` what `tree`, that shape or one that ends earlier, has there; None for no such
    one."""
    if tree_is_leaf(tree, is_leaf):
        return [tree] * treespec.num_leaves
    if treespec.is_leaf() or type(tree) is not treespec.type:
        return None
    node = node_of(tree)
    children, context = node.flatten_fn(tree) if node else ([], None)
    parts = list(children)
    if len(parts) != treespec.num_children or context != treespec.context:
        return None
    found: list[Any] = []
    for part, below in zip(parts, treespec.children_specs, strict=True):
        spread = _broadcast_to_and_flatten(part, below, is_leaf)
        if spread is None:
            return None
        found += spread
    return found


def tree_flatten_with_path(tree: PyTree, is_leaf: IsLeaf = None) -> tuple[list[tuple[Any, Any]], TreeSpec]:
    """Return pairs of a path of keys and a leaf, and the shape."""
    return list(_with_paths((), tree, is_leaf)), tree_structure(tree, is_leaf)


def tree_leaves_with_path(tree: PyTree, is_leaf: IsLeaf = None) -> list[tuple[Any, Any]]:
    """Return pairs of a path of keys and a leaf."""
    return list(_with_paths((), tree, is_leaf))


def tree_map_with_path(func: Callable[..., Any], tree: PyTree, *rests: PyTree, is_leaf: IsLeaf = None) -> PyTree:
    """Return the containers with `func` of each leaf's path of keys and the leaf."""
    found, treespec = tree_flatten_with_path(tree, is_leaf)
    beside = [treespec.flatten_up_to(rest) for rest in rests]
    rows = zip(found, *beside, strict=True)
    return treespec.unflatten([func(path, leaf, *rest) for (path, leaf), *rest in rows])


def _with_paths(path: tuple[Any, ...], tree: PyTree, is_leaf: IsLeaf) -> Iterator[tuple[Any, Any]]:
    node = None if is_leaf is not None and is_leaf(tree) else node_of(tree)
    if node is None:
        yield path, tree
        return
    if node.flatten_with_keys_fn is None:
        raise ValueError(f"Did not find a flatten_with_keys_fn for type: {type(tree)}. Give register_pytree_node one.")
    for key, child in node.flatten_with_keys_fn(tree)[0]:
        yield from _with_paths((*path, key), child, is_leaf)


def keystr(kp: Iterable[Any]) -> str:
    """Return the text of a path of keys, such as "['a'][0].x"."""
    return "".join(map(str, kp))


def key_get(obj: Any, kp: Iterable[Any]) -> Any:
    """Return what is at the end of a path of keys in `obj`."""
    for key in kp:
        obj = key.get(obj)
    return obj
