"""The machine for pickles, for objects of classes that a program said to trust: `serialization.add_safe_globals`.

What is trusted is called with what the file says, by REDUCE and NEWOBJ, and gets its state by BUILD, as in PyTorch's
`load(weights_only=True)`. All other names stay what they are without it: looked up in the table, or refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, BinaryIO, NoReturn

from resilin._base.pickles.unpickling import Lacking, Unpickler, check_plain
from resilin.checkpoint.torch_names import KEYS, NAMES, STATES
from resilin.errors import CheckpointError, UnsafePickle

_UNKNOWN = Lacking()


class TrustingUnpickler(Unpickler):
    """Reads a pickle of PyTorch's names, and of `trusted`: classes and functions by their full names.

    CheckpointError names a trusted class or function that raised.
    """

    def __init__(
        self, file: BinaryIO | bytes, persistent: Callable[[Any], Any], where: str, trusted: Mapping[str, Any]
    ) -> None:
        classes = {one for one in trusted.values() if isinstance(one, type)}
        super().__init__(file, NAMES, persistent, where, states=STATES, keys=KEYS | classes)
        self._trusted = trusted
        self._callable = {id(one) for one in trusted.values()}
        self._called = ""

    def _global(self, module: Any, name: Any) -> None:
        """As without trust for what PyTorch's state dicts are made of; then what is trusted, then refusal."""
        path = f"{module}.{name}"
        if (module, name) not in NAMES and path in self._trusted:
            self._stack.append(self._trusted[path])
        else:
            super()._global(module, name)

    def _refuse(self, what: str, why: Lacking = _UNKNOWN) -> NoReturn:
        run = "nothing of the file was run" if not self._called else f"{self._called}, which is allowed, had been run"
        raise UnsafePickle(
            f"{self._where} asks for {what}, which is {why.what}: refused, and {run}. Save {why.instead} where it was "
            f"made, or allow it, if you trust it and the file, by serialization.add_safe_globals",
            self._where,
            what,
        )

    def _call(self) -> None:
        target = self._stack[-2]
        if id(target) in self._callable:
            self._make(target, target)
        else:
            super()._call()

    def _new(self) -> None:
        target = self._stack[-2]
        if id(target) in self._callable and isinstance(target, type):
            self._make(target, lambda *arguments: target.__new__(target, *arguments))
        else:
            super()._call()

    def _make(self, target: Any, call: Callable[..., Any]) -> None:
        """Put what a trusted `call` makes of the arguments in the place of both."""
        arguments, _ = self._stack.pop(), self._stack.pop()
        if type(arguments) is not tuple:
            self._refuse(f"a call with a {type(arguments).__name__}")
        self._costs.spend(len(arguments) + check_plain(arguments, self._refuse))
        self._called = _name(target)
        try:
            made = call(*arguments)
        except Exception as error:  # of code that is not ours
            raise _raised(self._where, self._called, error) from error
        self._note(made)
        self._stack.append(made)

    def _build(self) -> None:
        if type(self._stack[-2]) in STATES or id(type(self._stack[-2])) not in self._callable:
            super()._build()
            return
        state, target = self._stack.pop(), self._stack[-1]
        self._costs.spend(check_plain(state, self._refuse))
        self._called = _name(type(target))
        try:
            _set_state(target, state)
        except Exception as error:  # of code that is not ours
            raise _raised(self._where, self._called, error) from error


def _set_state(target: Any, state: Any) -> None:
    """Give an instance its state as `pickle` does: by its `__setstate__`, or as its attributes and slots."""
    if hasattr(target, "__setstate__"):
        target.__setstate__(state)
        return
    fields, slots = state if isinstance(state, tuple) and len(state) == 2 else (state, None)
    if fields:
        vars(target).update(fields)
    for name, value in (slots or {}).items():
        setattr(target, name, value)


def _name(one: Any) -> str:
    return f"{getattr(one, '__module__', '')}.{getattr(one, '__qualname__', repr(one))}"


def _raised(where: str, name: str, error: Exception) -> CheckpointError:
    return CheckpointError(f"{where}: {name}, which add_safe_globals allows, raised {type(error).__name__}: {error}")
