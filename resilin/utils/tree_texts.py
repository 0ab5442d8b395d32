"""The shape of nested containers as text, and back: `treespec_dumps` and `treespec_loads`, in PyTorch's JSON.

The text is [1, node]; a node is {"type", "context", "children_spec"}, all null and empty for a leaf. Types have the
names that `register_pytree_node` was given, contexts are JSON in a text unless a type has a form of its own.
"""

from __future__ import annotations

import json
import operator
import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from enum import Enum
from typing import Any, NamedTuple

from resilin.core.state.size import Size

PROTOCOL = 1


class Form(NamedTuple):
    """How a type is written: its name, and its context's way into JSON and back."""

    name: str
    dump: Callable[[Any], Any] | None = None
    load: Callable[[Any], Any] | None = None


FORMS: dict[type, Form] = {}
_TYPES: dict[str, type] = {}  # by their names in texts


def register(
    cls: type,
    name: str,
    dump: Callable[[Any], Any] | None = None,
    load: Callable[[Any], Any] | None = None,
) -> None:
    """Let texts name `cls`. ValueError for one half of a context's two functions."""
    if (dump is None) != (load is None):
        raise ValueError(f"Both to_dumpable_context and from_dumpable_context for {cls} must be None or registered.")
    FORMS[cls] = Form(name, dump, load)
    _TYPES[name] = cls


def forget(cls: type) -> None:
    """Let no text name `cls` any more."""
    form = FORMS.pop(cls, None)
    if form is not None:
        _TYPES.pop(form.name, None)


def register_namedtuple(cls: type, *, serialized_type_name: str) -> None:
    """Let texts name a class of named tuples."""
    register(cls, serialized_type_name, lambda context: serialized_type_name, lambda text: cls)


def encoded(spec: Any) -> dict[str, Any]:
    """The JSON of a `TreeSpec`. NotImplementedError for a type without a name."""
    if spec.is_leaf():
        return {"type": None, "context": None, "children_spec": []}
    form = FORMS.get(spec.type)
    named = isinstance(getattr(spec.type, "_fields", None), tuple)
    if form is None:
        how = "utils._pytree._register_namedtuple" if named else "register_pytree_node's serialized_type_name"
        raise NotImplementedError(f"No registered serialization name for {spec.type} found: give it one by {how}")
    return {
        "type": "collections.namedtuple" if named else form.name,
        "context": _context(spec.context) if form.dump is None else form.dump(spec.context),
        "children_spec": [encoded(child) for child in spec.children()],
    }


def _context(context: Any) -> str:
    try:
        return json.dumps(context, default=_enum)
    except TypeError as error:
        raise TypeError(
            f"Unable to serialize context {context!r:.200}: give register_pytree_node a to_dumpable_context and a "
            "from_dumpable_context"
        ) from error


def _enum(value: Any) -> dict[str, Any]:
    if not isinstance(value, Enum):
        raise TypeError(f"{type(value).__name__} has no form in JSON")
    return {"__enum__": True, "fqn": f"{type(value).__module__}:{type(value).__qualname__}", "name": value.name}


def decoded(node: dict[str, Any], make: Callable[[Any, Any, list[Any]], Any]) -> Any:
    """What `make(type, context, children)` makes of the JSON of a spec; a leaf's type is None."""
    name, context, below = node["type"], node["context"], node["children_spec"]
    if name is None and context is None and not below:
        return make(None, None, [])
    if name == "collections.namedtuple":
        name, context = context, None
    cls = _TYPES.get(name)
    if cls is None:
        raise NotImplementedError(f"Deserializing {name!r} in pytree is not registered.")
    form = FORMS[cls]
    found = json.loads(context, object_hook=_member) if form.load is None else form.load(context)
    return make(cls, found, [decoded(child, make) for child in below])


def _member(value: dict[str, Any]) -> Any:
    if "__enum__" not in value:
        return value
    module, _, path = value["fqn"].partition(":")
    return _loaded(module, path)[value["name"]]


def _loaded(module: str, path: str) -> Any:
    """What a module has under a name. A text does not import one: that would run its code."""
    if module not in sys.modules:
        raise ImportError(f"treespec_loads: the text names {module}.{path}: import {module} first")
    return operator.attrgetter(path)(sys.modules[module])


def _dump_factory(context: Any) -> dict[str, Any]:
    factory, keys = context
    names = {"default_factory_module": factory.__module__, "default_factory_name": factory.__qualname__}
    return {**names, "dict_context": keys}


def _load_factory(found: dict[str, Any]) -> list[Any]:
    return [_loaded(found["default_factory_module"], found["default_factory_name"]), found["dict_context"]]


for _cls in (tuple, list, dict):
    register(_cls, f"builtins.{_cls.__name__}")
register(OrderedDict, "collections.OrderedDict")
register(deque, "collections.deque")
register(defaultdict, "collections.defaultdict", _dump_factory, _load_factory)
register(Size, "torch.Size")
