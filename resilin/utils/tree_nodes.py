"""The containers that `utils._pytree` takes apart: tuples, named tuples, lists, dicts, OrderedDict, defaultdict, deque,
and what `register_pytree_node` adds; and the keys by which paths lead to what they hold."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from resilin.core import return_types
from resilin.core.state.size import Size
from resilin.utils import tree_texts

Context = Any
# An entry of a path of keys has `get(parent)`, and its text is what stands behind the parent in a program


@dataclasses.dataclass(frozen=True)
class SequenceKey:
    """A place in a sequence."""

    idx: int

    def __str__(self) -> str:
        return f"[{self.idx!r}]"

    def get(self, parent: Any) -> Any:
        """Return what is there in `parent`."""
        return parent[self.idx]


@dataclasses.dataclass(frozen=True)
class MappingKey:
    """A key of a mapping."""

    key: Any

    def __str__(self) -> str:
        return f"[{self.key!r}]"

    def get(self, parent: Any) -> Any:
        """Return what is there in `parent`."""
        return parent[self.key]


@dataclasses.dataclass(frozen=True)
class GetAttrKey:
    """An attribute."""

    name: str

    def __str__(self) -> str:
        return f".{self.name}"

    def get(self, parent: Any) -> Any:
        """Return what is there in `parent`."""
        return getattr(parent, self.name)


class NodeDef(NamedTuple):
    """How containers of a class are taken apart and put together."""

    type: type
    flatten_fn: Callable[[Any], tuple[Iterable[Any], Context]]
    unflatten_fn: Callable[[Iterable[Any], Context], Any]
    flatten_with_keys_fn: Callable[[Any], tuple[Iterable[tuple[Any, Any]], Context]] | None = None


SUPPORTED_NODES: dict[type, NodeDef] = {}


def register_pytree_node(
    cls: type,
    flatten_fn: Callable[[Any], tuple[Iterable[Any], Context]],
    unflatten_fn: Callable[[Iterable[Any], Context], Any],
    *,
    serialized_type_name: str | None = None,
    to_dumpable_context: Callable[[Context], Any] | None = None,
    from_dumpable_context: Callable[[Any], Context] | None = None,
    flatten_with_keys_fn: Callable[[Any], tuple[Iterable[tuple[Any, Any]], Context]] | None = None,
) -> None:
    """Take instances of `cls` for containers. ValueError for a class that is registered.

    `flatten_fn(it)` is (children, context), and `unflatten_fn(children, context)` makes one again. The name, and the
    context's way into JSON and back, are for `treespec_dumps`.
    """
    if cls in SUPPORTED_NODES:
        raise ValueError(f"{cls} is already registered as pytree node.")
    if serialized_type_name is not None:
        tree_texts.register(cls, serialized_type_name, to_dumpable_context, from_dumpable_context)
    SUPPORTED_NODES[cls] = NodeDef(cls, flatten_fn, unflatten_fn, flatten_with_keys_fn)


def _register_pytree_node(cls: type, flatten_fn: Any, unflatten_fn: Any, *args: Any, **options: Any) -> None:
    register_pytree_node(cls, flatten_fn, unflatten_fn, **options)


def _deregister_pytree_node(cls: type) -> None:
    del SUPPORTED_NODES[cls]
    tree_texts.forget(cls)


def register_dataclass(
    cls: Any, *, field_names: Sequence[str] | None = None, drop_field_names: Sequence[str] | None = None, **options: Any
) -> None:
    """Take instances of a dataclass for containers of those fields that `__init__` takes and that are not dropped."""
    dropped = set(drop_field_names or ())
    names = list(field_names or (one.name for one in dataclasses.fields(cls) if one.init and one.name not in dropped))

    def flatten(value: Any) -> tuple[list[Any], Context]:
        return [getattr(value, name) for name in names], tuple(names)

    def with_keys(value: Any) -> tuple[list[tuple[Any, Any]], Context]:
        return [(GetAttrKey(name), getattr(value, name)) for name in names], tuple(names)

    register_pytree_node(
        cls,
        flatten,
        lambda values, context: cls(**dict(zip(context, values, strict=True))),
        flatten_with_keys_fn=with_keys,
        **options,
    )


def register_constant(cls: type) -> None:
    """Take instances of a class for containers without children; they are compared by `==`."""
    register_pytree_node(cls, lambda value: ([], value), lambda values, context: context)


def _register_sequence(cls: type, context_of: Callable[[Any], Context], make: Callable[[Any, Context], Any]) -> None:
    def with_keys(value: Any) -> tuple[list[tuple[Any, Any]], Context]:
        return [(SequenceKey(place), one) for place, one in enumerate(value)], context_of(value)

    register_pytree_node(cls, lambda value: (list(value), context_of(value)), make, flatten_with_keys_fn=with_keys)


def _register_mapping(cls: type, context_of: Callable[[Any], Context], make: Callable[[Any, Context], Any]) -> None:
    def with_keys(value: Any) -> tuple[list[tuple[Any, Any]], Context]:
        return [(MappingKey(key), one) for key, one in value.items()], context_of(value)

    register_pytree_node(
        cls, lambda value: (list(value.values()), context_of(value)), make, flatten_with_keys_fn=with_keys
    )


def _made_by(cls: Callable[[Any], Any]) -> Callable[[Any, Context], Any]:
    return lambda values, context: cls(values)


_register_sequence(tuple, lambda value: None, lambda values, context: tuple(values))
_register_sequence(list, lambda value: None, lambda values, context: list(values))
_register_sequence(Size, lambda value: None, lambda values, context: Size(values))
_register_sequence(deque, lambda value: value.maxlen, lambda values, context: deque(values, maxlen=context))
for _found in return_types.all_return_types:
    _register_sequence(_found, lambda value: None, _made_by(_found))
_register_mapping(dict, list, lambda values, context: dict(zip(context, values, strict=True)))
_register_mapping(OrderedDict, list, lambda values, context: OrderedDict(zip(context, values, strict=True)))
_register_mapping(
    defaultdict,
    lambda value: [value.default_factory, list(value)],
    lambda values, context: defaultdict(context[0], dict(zip(context[1], values, strict=True))),
)


def is_namedtuple_class(cls: Any) -> bool:
    """Return whether `cls` is a class of named tuples."""
    return isinstance(cls, type) and issubclass(cls, tuple) and isinstance(getattr(cls, "_fields", None), tuple)


def is_namedtuple(obj: Any) -> bool:
    """Return whether `obj` is a named tuple, or a class of them."""
    return is_namedtuple_class(obj if isinstance(obj, type) else type(obj))


def is_namedtuple_instance(obj: Any) -> bool:
    """Return whether `obj` is a named tuple."""
    return is_namedtuple_class(type(obj))


NAMED = NodeDef(
    tuple,
    lambda value: (list(value), type(value)),
    lambda values, context: context(*values),
    lambda value: ([(GetAttrKey(name), getattr(value, name)) for name in value._fields], type(value)),
)


def node_of(tree: Any) -> NodeDef | None:
    found = SUPPORTED_NODES.get(type(tree))
    return NAMED if found is None and is_namedtuple_instance(tree) else found
