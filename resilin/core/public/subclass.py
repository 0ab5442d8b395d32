"""Subclasses of Tensor: how a tensor becomes an instance of one; and makes Tensor's methods and attributes public
functions (see `dispatch`), which subclasses and tensor-like objects can take over."""

from __future__ import annotations

from typing import Any, TypeVar

from resilin.core.autocast import casting
from resilin.core.ops.shape import reshape
from resilin.core.public import dispatch
from resilin.core.state.versions import share_version, share_writes
from resilin.core.tensor import Parameter, Tensor

_T = TypeVar("_T", bound=Tensor)
_SLOTS = tuple(name for name in Tensor.__slots__ if name != "__weakref__")

# Operators that handlers get as the method they are: Tensor.__add__ and Tensor.__radd__ as Tensor.add. The others,
# such as Tensor.__rsub__, are given as they are.
_AS_METHODS = {
    "__add__": "add",
    "__radd__": "add",
    "__mul__": "mul",
    "__rmul__": "mul",
    "__sub__": "sub",
    "__truediv__": "div",
    "__matmul__": "matmul",
    "__pow__": "pow",
    "__lt__": "lt",
    "__le__": "le",
    "__gt__": "gt",
    "__ge__": "ge",
    "__neg__": "neg",
    "__abs__": "abs",
    "__iadd__": "add_",
    "__isub__": "sub_",
    "__imul__": "mul_",
    "__itruediv__": "div_",
    "__str__": "__repr__",
}
_REFLECTED = frozenset(
    ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor", "lshift", "rshift")
)
_COMPARED = {"__lt__": "__gt__", "__le__": "__ge__", "__gt__": "__lt__", "__ge__": "__le__"}
# What Python or the library itself needs to work on every instance, before and beside any handler.
_NOT_PUBLIC = frozenset(
    (
        "__array_namespace__",
        "__getattr__",
        "__getattribute__",
        "__hash__",
        "__init__",
        "__init_subclass__",
        "__new__",
        "__reduce__",
        "__setattr__",
        "as_subclass",
    )
)


def as_subclass(self: Tensor, cls: type[_T]) -> _T:
    """The same memory as an instance of `cls`, a subclass of Tensor; recorded as a view of this tensor."""
    if not (isinstance(cls, type) and issubclass(cls, Tensor)):
        raise TypeError(f"as_subclass(): expected a subclass of Tensor, got {cls!r}")
    with dispatch.Disable():
        made: _T = moved(reshape.call(self, tuple(self._array.shape)), cls)
        return made


def make_subclass(cls: type[_T], data: Tensor, require_grad: bool = False) -> _T:
    """A leaf of class `cls` over the memory of `data`, outside its graph."""
    if not isinstance(data, Tensor):
        raise TypeError(f"_make_subclass(): expected a Tensor, got {type(data).__name__}")
    with dispatch.Disable():
        made: _T = moved(data.detach(), cls)
        made._vc = [0, share_writes(data)]
        if require_grad:
            made.requires_grad_()
    return made


def retype(result: Tensor, cls: type[_T], given: bool) -> _T:
    """A function's result as an instance of `cls`: a view of it when the function was `given` it, else in its place."""
    made: _T = as_subclass(result, cls) if given else moved(result, cls)
    return made


def moved(tensor: Tensor, cls: Any) -> Any:
    """An instance of `cls` with the memory and the place in the graph of `tensor`, which nobody uses any more."""
    made = object.__new__(cls)
    share_version(tensor)  # before they part: a node may have saved `tensor`
    for name in _SLOTS:
        setattr(made, name, getattr(tensor, name))
    return made


def _publish_methods() -> None:
    """Make everything that users call on a tensor public."""
    tensor: Any = Tensor
    raw = {name: value for name, value in vars(Tensor).items() if _is_public(name)}
    for name, value in raw.items():
        if isinstance(value, property):
            setattr(tensor, name, dispatch.publish_property(Tensor, name, value))
        elif dispatch.is_function(value) and name not in _AS_METHODS:
            setattr(tensor, name, dispatch.public(value, "resilin", f"Tensor.{name}", reflected=_reflected(name)))
    for name, method in _AS_METHODS.items():
        func = getattr(Tensor, method)
        value = raw[name]
        made = dispatch.public(value, "resilin", f"Tensor.{name}", func=func, reflected=_reflected(name))
        setattr(tensor, name, made)


def _is_public(name: str) -> bool:
    return name not in _NOT_PUBLIC and (not name.startswith("_") or name.endswith("__"))


def _reflected(name: str) -> str | None:
    """The method that an operand is asked for when operator `name` cannot take it; None for what is no operator."""
    plain = name.strip("_")
    if name != f"__{plain}__":
        return None
    if plain in _REFLECTED:
        return f"__r{plain}__"
    if plain[1:] in _REFLECTED and plain[0] in "ir":  # in place, or itself the reflected one
        return f"__{'r' if plain[0] == 'i' else ''}{plain[1:]}__"
    return _COMPARED.get(name)


def publish() -> None:
    """Make the methods and attributes of Tensor public. Called once, when `core.public.methods` has attached all."""
    tensor: Any = Tensor
    tensor.as_subclass, tensor._make_subclass = as_subclass, staticmethod(make_subclass)
    _publish_methods()
    dispatch.configure(Tensor, Parameter, retype, casting.run)
    dispatch.UNCHANGED.add(vars(Tensor)["grad"].__get__)
