"""Objects that `save` pickles whole, as modules are: their tensors are stored as all others are, not in the pickle.

Reading them imports the classes that the file names and runs their code, which `load` does when it is told to only.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from resilin.core.tensor import Parameter, Tensor
from resilin.errors import UsageError

_KINDS: list[type] = []
_K = TypeVar("_K", bound=type)


def save_whole(kind: _K) -> _K:
    """Let `save` take instances of `kind`, a class, whole. For classes as a decorator."""
    _KINDS.append(kind)
    return kind


def is_whole(value: Any) -> bool:
    """Whether `value` is saved whole."""
    return isinstance(value, tuple(_KINDS))


class NotLoaded(Exception):
    """Carries what went wrong, and is no damage of the file: `cause`."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


class _Pickler(pickle.Pickler):
    def __init__(self, file: Any, keep: Callable[[Tensor], int]) -> None:
        super().__init__(file, protocol=4)
        self._keep = keep

    def persistent_id(self, obj: Any) -> Any:
        """The number of a plain tensor or parameter in the file; None for all else, which is pickled."""
        plain = type(obj) is Tensor or (type(obj) is Parameter and not vars(obj))
        return self._keep(obj) if plain and obj.is_leaf else None


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: Any, tensors: Sequence[Tensor]) -> None:
        super().__init__(file)
        self._tensors = tensors

    def persistent_load(self, pid: Any) -> Any:
        """The tensor of a number."""
        return self._tensors[pid]


def pickled(value: Any, path: str, keep: Callable[[Tensor], int]) -> tuple[bytes, str]:
    """The pickle of `value`, and the name of its class. `keep` stores a tensor and gives its number.

    UsageError names the place of an object that cannot be pickled.
    """
    buffer = io.BytesIO()
    try:
        _Pickler(buffer, keep).dump(value)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise UsageError(
            f"save: {path} is a {type(value).__qualname__}, which cannot be pickled: {error}. Save its state_dict()"
        ) from None
    return buffer.getvalue(), f"{type(value).__module__}.{type(value).__qualname__}"


def unpickled(form: Any, tensors: Sequence[Tensor], name: str, weights_only: bool) -> Any:
    """The object of a file called `name`. NotLoaded carries what unpickling raised, or that only weights are wanted."""
    kind, number = str(form[0]), int(form[1])
    data = tensors[number].numpy().tobytes()
    if weights_only:
        raise NotLoaded(
            UsageError(
                f"load: {name} holds a whole {kind:.200}, which only unpickling makes again, and that runs code which "
                "the file names. Give weights_only=False if you trust who wrote it, or save its state_dict()"
            )
        )
    try:
        return _Unpickler(io.BytesIO(data), tensors).load()
    except Exception as error:  # of the classes' own code
        raise NotLoaded(error) from error
