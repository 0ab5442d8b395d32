"""Lets arguments take over a call: `__tensor_function__`, or by PyTorch's name `__torch_function__`.

Every public function that takes tensors (of `resilin`, `resilin.nn.functional`, `linalg`, `fft`, `special`, and the
methods and attributes of Tensor) is a `public` one: it calls the function behind it unless an argument, or an element
of a list or tuple among the arguments, is of a class with such a method, or a mode is active. Then `take_over`
asks the mode or the classes. Functions inside the library call one another without that, so a call is offered once.

The check is native code: for plain tensors it costs a few dozen nanoseconds. `_in_python` is its form without it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from types import FunctionType, MethodWrapperType
from typing import Any

import numpy as np

from resilin.core.autocast import lists, state
from resilin.core.kernels import loader
from resilin.core.kernels.common import is_array
from resilin.core.public import device_check, error_context
from resilin.core.public.numpy_names import also_numpys

Function = Callable[..., Any]

native = loader.native

PUBLIC: dict[Any, None] = {}  # all public functions, in the order in which they were made
# Functions of resilin's namespace that look at data of any kind, or at no tensor: never taken over
IGNORED = frozenset(("as_tensor", "asarray", "from_dlpack", "from_numpy", "is_tensor", "set_printoptions", "tensor"))
OF_DATA = ("as_tensor", "asarray", "tensor")  # of these, whose arguments are data, modes take over calls all the same
_ATTRIBUTES: dict[Any, str] = {}  # Tensor.shape.__get__ and its like -> "Tensor.shape.__get__"
_LOCK = threading.Lock()
_plain: tuple[type, ...] = ()  # Tensor and Parameter
_never: frozenset[type] = frozenset()  # classes of common arguments that take over nothing and hold nothing
_retype: Function  # core.public.subclass.retype
_cast_and_run: Function  # core.autocast.casting.run
_active = 0  # modes that are active in any thread; guarded by _LOCK


class _State(threading.local):
    def __init__(self) -> None:
        self.disabled = 0  # how many DisableTensorFunctionSubclass are entered
        self.skip = False  # the next question whether classes take over is answered with no
        self.modes: list[Any] = []


_state = _State()


@classmethod  # type: ignore[misc]
def disabled(
    cls: Any, func: Function, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
) -> Any:
    """The `__tensor_function__` of classes that take over no call, such as Parameter."""
    return NotImplemented


def overrides(value: Any) -> bool:
    """Whether the class of `value` takes over calls."""
    kind = type(value)
    if kind in _plain:
        return False
    base, name = _defined(kind)
    found = base.__dict__[name] if base else None
    return found is not None and found is not disabled


_NAMES = ("__tensor_function__", "__torch_function__")


def _defined(kind: type) -> tuple[type | None, str]:
    """The nearest class of `kind` that says who takes over its calls, and by which name: ours, if by both."""
    for base in kind.__mro__:
        for name in _NAMES:
            if name in base.__dict__:
                return base, name
    return None, _NAMES[0]


def _ask(value: Any, func: Function, types: tuple[type, ...], args: Any, kwargs: Any) -> Any:
    return getattr(value, _defined(type(value))[1])(func, types, args, kwargs)


def enabled() -> bool:
    """Whether classes may take over calls in this thread now; asked by functions that look at their arguments."""
    if _state.skip:
        _state.skip = False
        return False
    return not _state.disabled


def is_changed() -> bool:
    """Return whether a mode takes over this thread's calls, or classes may not."""
    return bool(_state.modes or _state.disabled)


def redispatch(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call `func` without offering the call; calls inside it are offered as ever."""
    if func in PUBLIC:
        return run(func, args, kwargs)
    if func in _ATTRIBUTES:
        with Disable():
            return func(*args, **kwargs)
    _state.skip = True
    try:
        return func(*args, **kwargs)
    finally:
        _state.skip = False


def run(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call the function behind a public one, on arguments cast where autocast is enabled."""
    if state.threads and function.is_listed:
        return _cast_and_run(function, args, kwargs)
    return function.__wrapped__(*args, **kwargs)


def _elements(args: Iterable[Any]) -> Iterable[Any]:
    for value in args:
        if isinstance(value, list | tuple):
            yield from value
        yield value


def overriding(args: Iterable[Any]) -> list[Any]:
    """One value of each class among `args` that takes over calls: subclasses first, else in order of appearance."""
    found: list[Any] = []
    for value in args:
        if not overrides(value) or any(type(value) is type(other) for other in found):
            continue
        place = next((i for i, other in enumerate(found) if isinstance(value, type(other))), len(found))
        found.insert(place, value)
    return found


def take_over(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call `function` through the innermost active mode, else through the arguments' classes, else as it is."""
    if function.is_data:
        return offer(function, (), args, kwargs) if _state.modes else function.__wrapped__(*args, **kwargs)
    given = (*args, *kwargs.values())
    found = overriding(_elements(given)) if _state.modes or not _state.disabled else ()
    if not _state.modes and not found:
        device_check.meet(function, given)
        return run(function, args, kwargs)
    return offer(vars(function).get("func", function), found, args, kwargs)


def offer(func: Function, found: Sequence[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The first answer for `func(*args, **kwargs)` that is not NotImplemented: of the innermost mode, or of `found`.

    TypeError when nobody has one. Inside a mode's answer that mode is not active.
    """
    types = tuple(type(value) for value in found)
    if _state.modes:
        mode = _state.modes.pop()
        try:
            answer = _ask(mode, func, types, args, kwargs)
        finally:
            _state.modes.append(mode)
        asked: list[Any] = [mode]
        if answer is not NotImplemented:
            return answer
    elif _state.disabled:
        return func(*args, **kwargs)
    else:
        asked = list(found)
        for value in found:
            answer = _ask(value, func, types, args, kwargs)
            if answer is not NotImplemented:
                return answer
    names = ", ".join(f"{type(v).__module__}.{type(v).__qualname__}" for v in asked)
    raise TypeError(
        f"no implementation found for {name_of(func)!r}: the {_defined(type(asked[0]))[1]} of {names} returned "
        "NotImplemented"
    )


def default(cls: Any, func: Function, types: Sequence[type], args: tuple[Any, ...], kwargs: Any) -> Any:
    """Tensor's own `__tensor_function__`: the plain call, with the tensors of its result made instances of `cls`."""
    if not all(issubclass(cls, kind) for kind in types):
        return NotImplemented
    with Disable():
        result = func(*args, **(kwargs or {}))
        return result if func in UNCHANGED else _converted(result, cls, args)


UNCHANGED: set[Any] = set()  # functions whose results keep their class: the getters of `grad` and of the like


def _converted(result: Any, cls: Any, args: tuple[Any, ...]) -> Any:
    if isinstance(result, _plain[:1]) and not isinstance(result, cls):
        return _retype(result, cls, any(result is value for value in args))
    if isinstance(result, tuple | list):
        parts = [_converted(part, cls, args) for part in result]
        if all(new is old for new, old in zip(parts, result, strict=True)):
            return result
        return type(result)(*parts) if hasattr(result, "_fields") else type(result)(parts)
    return result


class Disable:
    """Inside, in this thread, no class takes over a call; modes still do. A context manager."""

    def __enter__(self) -> None:
        _state.disabled += 1

    def __exit__(self, *exc: object) -> None:
        _state.disabled -= 1


class DisableAll(Disable):
    """Inside, in this thread, neither a class nor a mode takes over a call. A context manager."""

    def __init__(self) -> None:
        self._modes: list[list[Any]] = []

    def __enter__(self) -> None:
        super().__enter__()
        self._modes.append(_state.modes)
        _state.modes = []

    def __exit__(self, *exc: object) -> None:
        _state.modes = self._modes.pop()
        super().__exit__()


def enter_mode(mode: Any) -> None:
    """Make `mode` the innermost of this thread."""
    _count(1)
    _state.modes.append(mode)


def leave_mode() -> None:
    """Take the innermost mode of this thread away."""
    _state.modes.pop()
    _count(-1)


def _count(change: int) -> None:
    global _active
    with _LOCK:
        _active += change
        if native is not None:
            native.function_modes(change)


def _in_python(raw: Function, reflected: str | None, unnamed: Function | None = None, listed: bool = False) -> Any:
    unnamed = unnamed or raw

    def call(*args: Any, **kwargs: Any) -> Any:
        taken = _active > 0
        if not taken and (kwargs or not all([type(value) in _never for value in args])):  # most calls: neither
            taken = any(overrides(value) for value in _elements((*args, *kwargs.values())))
        try:
            if taken:
                return take_over(call, args, kwargs)
            if len(args) > 1 or kwargs or (args and isinstance(args[0], list | tuple)):
                device_check.meet(call, (*args, *kwargs.values()))
            if listed and state.threads:
                return _cast_and_run(call, args, kwargs)
            return raw(*args, **kwargs) if kwargs else unnamed(*args)
        except Exception as error:
            if isinstance(error, TypeError) and reflected and len(args) == 2 and foreign(args[1], reflected, taken):
                return NotImplemented
            made = error if taken else error_context.explain(call, (*args, *kwargs.values()), error)
            if made is error:
                raise
            raise made from made.__cause__

    call.__wrapped__, call.is_listed, call.is_data = raw, listed, False  # type: ignore[attr-defined]
    return call


def foreign(other: Any, reflected: str, taken: bool) -> bool:
    """Whether an operator that could not take `other` leaves it to Python: to what `other` itself makes of it.

    So it is with what a class of Python other than Tensor has the `reflected` operator for, and with all that is no
    tensor, number or array, unless a class or mode has `taken` the call over.
    """
    kind = type(other)
    if issubclass(kind, _plain[:1]):
        return False
    if bool(kind.__flags__ & 1 << 9) and hasattr(kind, reflected):  # a class made by Python
        return True
    return not (taken or isinstance(other, _OPERANDS) or is_array(other))


_OPERANDS = (int, float, complex, np.number, np.bool_)


def public(raw: Any, module: str, name: str, *, func: Any = None, reflected: str | None = None) -> Any:
    """`raw` as the public function `module.name`. Handlers are given `func` (default: the public function itself).

    With `reflected`, it is an operator that returns NotImplemented for an operand that is `foreign` to it.
    """
    if "<locals>" in getattr(raw, "__qualname__", ""):  # what Python's own errors call it
        raw.__qualname__ = name.rpartition(".")[2]
    unnamed, raw = raw, also_numpys(raw)  # a call without names is spared what reads them
    last = name.rpartition(".")[2]
    made: Any = (_in_python if native is None else native.function_make)(raw, reflected, unnamed, last in lists.LISTED)
    made.__module__, made.__qualname__, made.__name__ = module, name, last
    made.__doc__ = raw.__doc__
    if func is not None:
        made.func = func
    else:
        PUBLIC[made] = None
    return made


_IN_FRONT: tuple[type, ...] = ()
if native is not None:
    _IN_FRONT = (native.PlainCall, native.InPlaceCall, native.WriteCall, native.TracedCall)
    _IN_FRONT += (native.GuardedCall, native.QuietCall, native.ShortCall, native.CreationCall)


def of_data(raw: Any, module: str) -> Any:
    """`raw` as a public function whose arguments are data: only modes take over its calls, with no types."""
    made = _seen_by_modes(raw) if native is None else native.function_make(raw, None, raw, False, True)
    made.__module__, made.__qualname__, made.__name__ = module, raw.__name__, raw.__name__
    made.__doc__ = raw.__doc__
    return made


def _seen_by_modes(raw: Function) -> Function:
    def call(*args: Any, **kwargs: Any) -> Any:
        return take_over(call, args, kwargs) if _active > 0 else raw(*args, **kwargs)

    call.__wrapped__, call.is_data = raw, True  # type: ignore[attr-defined]
    return call


def is_function(value: Any) -> bool:
    """Whether `value` is a function of Python, or native code in front of one; a public function is neither."""
    return isinstance(value, (FunctionType, *_IN_FRONT))


def publish(module: str, namespace: dict[str, Any], names: Iterable[str]) -> None:
    """Make the functions called `names` in a module's `namespace` public ones; classes and values stay as they are."""
    for name in names:
        found = namespace[name]
        if is_function(found) and found not in PUBLIC:
            namespace[name] = public(found, module, name)


def publish_property(owner: Any, name: str, value: property) -> property:
    """The same property of class `owner`, whose reading and writing can be taken over."""
    made: list[Any] = []
    accessors: list[Any] = []
    for raw, kind in ((value.fget, "__get__"), (value.fset, "__set__")):
        accessor = raw and public(raw, "resilin", f"{owner.__name__}.{name}.{kind}", func=raw)
        accessors.append(accessor)
        made.append((accessor, kind))
    published = property(accessors[0], accessors[1], value.fdel, value.__doc__)
    for accessor, kind in made:
        if accessor:
            accessor.func = getattr(published, kind)
            _ATTRIBUTES[accessor.func] = f"resilin.{owner.__name__}.{name}.{kind}"
    return published


def attributes() -> tuple[MethodWrapperType, ...]:
    """What handlers are given for attributes: `Tensor.shape.__get__`, `Tensor.grad.__set__` and all others."""
    return tuple(_ATTRIBUTES)


def name_of(func: Any) -> str:
    """E.g. "resilin.nn.functional.relu", "resilin.Tensor.add", "resilin.Tensor.shape.__get__"."""
    if func in _ATTRIBUTES:
        return _ATTRIBUTES[func]
    return f"{getattr(func, '__module__', '')}.{getattr(func, '__qualname__', repr(func))}".lstrip(".")


def configure(tensor: type, parameter: type, retype: Function, cast_and_run: Function) -> None:
    """Say which classes are plain, what makes one an instance of a subclass, and what runs a function that autocast
    lists. Called once, by `subclass`."""
    global _cast_and_run, _never, _plain, _retype
    _plain, _retype, _cast_and_run = (tensor, parameter), retype, cast_and_run
    _never = frozenset((tensor, parameter, int, float, bool, str, type(None)))
    if native is not None:
        native.function_configure(tensor, parameter, disabled, take_over)
        native.function_cast_and_run(cast_and_run)
        native.function_explain(error_context.explain)
        native.function_foreign(foreign)
        native.function_meet(device_check.meet, tensor)
