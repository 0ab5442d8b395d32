"""A dict of parameters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self

from resilin.core.tensor import Parameter, Tensor
from resilin.nn.modules.module import Module


class ParameterDict(Module):
    """A dict whose parameters belong to the owner, in order of insertion.

    Tensors become parameters; anything else is kept as it is and is no part of the state.
    """

    _keys: dict[str, None]

    def __init__(self, parameters: Any = None) -> None:
        super().__init__()
        self._keys = {}
        if parameters is not None:
            self.update(parameters)

    def __getitem__(self, key: str) -> Any:
        if key not in self._keys:
            raise KeyError(key)
        return getattr(self, key)

    def __setitem__(self, key: str, value: Any) -> None:
        if not isinstance(key, str):
            raise TypeError(f"ParameterDict: keys must be strings, got {key!r}")
        if key not in self._keys and hasattr(self, key):
            raise KeyError(f"ParameterDict: {key!r} is an attribute of every ParameterDict; take another key")
        if isinstance(value, Tensor) and not isinstance(value, Parameter):
            value = Parameter(value)
        if key in self._keys and value is not None and not isinstance(value, Parameter):
            delattr(self, key)  # a parameter's place in `parameters()` takes parameters and None only
        self._keys[key] = None
        setattr(self, key, value)

    def __delitem__(self, key: str) -> None:
        del self._keys[key]
        delattr(self, key)

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __reversed__(self) -> Iterator[str]:
        return reversed(list(self._keys))

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def __or__(self, other: ParameterDict) -> ParameterDict:
        made = self.copy()
        made.update(other)
        return made

    def __ior__(self, other: ParameterDict) -> Self:
        self.update(other)
        return self

    def copy(self) -> ParameterDict:
        """Another ParameterDict with the same values."""
        return ParameterDict(dict(self.items()))

    def setdefault(self, key: str, default: Any = None) -> Any:
        """The value at `key`, which is `default` from now on if there was none."""
        if key not in self:
            self[key] = default
        return self[key]

    def get(self, key: str, default: Any = None) -> Any:
        """The value at `key`, or `default`."""
        return getattr(self, key) if key in self._keys else default

    def pop(self, key: str) -> Any:
        """Remove `key` and give its value back."""
        value = self[key]
        del self[key]
        return value

    def popitem(self) -> tuple[str, Any]:
        """Remove the last key; gives it and its value back."""
        if not self._keys:
            raise KeyError("popitem: the ParameterDict is empty")
        key = next(reversed(self))
        return key, self.pop(key)

    def clear(self) -> None:
        """Remove all."""
        for key in list(self):
            del self[key]

    def fromkeys(self, keys: Iterable[str], default: Any = None) -> ParameterDict:
        """A new ParameterDict with `default` at every key."""
        return ParameterDict(dict.fromkeys(keys, default))

    def keys(self) -> Iterable[str]:
        """The keys."""
        return self._keys.keys()

    def values(self) -> Iterable[Any]:
        """The values."""
        return [self[key] for key in self]

    def items(self) -> Iterable[tuple[str, Any]]:
        """Keys and values."""
        return [(key, self[key]) for key in self]

    def update(self, parameters: Mapping[str, Any] | ParameterDict | Iterable[tuple[str, Any]]) -> None:
        """Add or replace values, in the order given."""
        pairs = parameters.items() if isinstance(parameters, Mapping | ParameterDict) else parameters
        for key, value in pairs:
            self[key] = value

    def extra_repr(self) -> str:
        """As in PyTorch."""
        return "\n".join(f"  ({key}): {describe(value)}" for key, value in self.items())


def describe(value: Any) -> str:
    """What lists and dicts of parameters print of a value."""
    if not isinstance(value, Tensor):
        return f"Object of type: {type(value).__name__}"
    what = "Parameter" if isinstance(value, Parameter) else "Tensor"
    return f"{what} containing: [{value.dtype} of size {'x'.join(map(str, value.shape))}]"
