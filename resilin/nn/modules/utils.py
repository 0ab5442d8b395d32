"""Helpers with the names of torch.nn.modules.utils, for states of wrapped modules and for layers of programs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from resilin.core.tensor import Tensor

__all__ = ["consume_prefix_in_state_dict_if_present"]


def consume_prefix_in_state_dict_if_present(state_dict: dict[str, Any], prefix: str) -> None:
    """Strip `prefix` from the names in `state_dict`, in place: "module." makes a wrapper's state that of the module."""
    for name in [name for name in state_dict if name.startswith(prefix)]:
        state_dict[name[len(prefix) :]] = state_dict.pop(name)
    versions = getattr(state_dict, "_metadata", {})
    for path in [path for path in versions if f"{path}.".startswith(prefix) and path]:
        versions[path[len(prefix) :]] = versions.pop(path)


def _ntuple(n: int, name: str = "parse") -> Callable[[Any], tuple[Any, ...]]:
    def parse(x: Any) -> tuple[Any, ...]:
        """Return `x` as a tuple, a single value as often as there are dimensions."""
        return tuple(x) if isinstance(x, Iterable) else (x,) * n

    parse.__name__ = name
    return parse


_single, _pair = _ntuple(1, "_single"), _ntuple(2, "_pair")
_triple, _quadruple = _ntuple(3, "_triple"), _ntuple(4, "_quadruple")


def _reverse_repeat_tuple(t: tuple[Any, ...], n: int) -> tuple[Any, ...]:
    """Return the values in reverse order, each `n` times: a layer's padding as `nn.functional.pad` takes it."""
    return tuple(x for x in reversed(t) for _ in range(n))


def _list_with_default(out_size: Any, defaults: list[int]) -> Any:
    """Return lengths with the last of `defaults` in the places of None; a number as it is."""
    if isinstance(out_size, int | Tensor):
        return out_size
    if len(defaults) <= len(out_size):
        raise ValueError(f"Input dimension should be at least {len(out_size) + 1}")
    last = defaults[-len(out_size) :]
    return [length if given is None else given for given, length in zip(out_size, last, strict=True)]


def _addindent(s_: str, numSpaces: int) -> str:
    """Return a text whose lines after the first begin with so many spaces."""
    return s_.replace("\n", "\n" + numSpaces * " ")
