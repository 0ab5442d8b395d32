"""Objects as bytes: pickle, and for `weights_only` an unpickler that makes only plain values and tensors."""

from __future__ import annotations

import io
import pickle
from typing import Any

from resilin.errors import DistError

# What a `weights_only` stream may name. None of them runs code that the stream chooses.
_PLAIN = {
    "builtins": {"complex", "set", "frozenset", "bytearray", "slice", "range"},
    "collections": {"OrderedDict", "defaultdict", "deque", "Counter"},
    "datetime": {"timedelta", "datetime", "date", "time"},
    "fractions": {"Fraction"},
    "decimal": {"Decimal"},
    "numpy": {"ndarray", "dtype"},
    "numpy._core.multiarray": {"_reconstruct", "scalar"},
    "numpy._core.numeric": {"_frombuffer"},
    "ml_dtypes": {"bfloat16"},
    "_codecs": {"encode"},
    "resilin": {"Size"},
    "resilin.core.device": {"device"},
    "resilin.core.dtype": {"by_name"},
    "resilin.core.public.methods": {"_rebuild"},
    "resilin.core.tensor": {"Tensor", "Parameter"},
}


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if name not in _PLAIN.get(module, ()):
            raise DistError(
                f"weights_only=True: the object that arrived holds {module}.{name}: expected plain values, containers, "
                "numpy arrays and tensors; receive others with weights_only=False"
            )
        return super().find_class(module, name)


def dump(thing: Any) -> bytes:
    """The bytes of `thing`. Raises what its parts raise when they cannot be pickled."""
    return pickle.dumps(thing, protocol=pickle.HIGHEST_PROTOCOL)


def load(data: bytes, weights_only: bool = False) -> Any:
    """The object that `dump` wrote. DistError with `weights_only` when it is of another kind than named above."""
    return _PlainUnpickler(io.BytesIO(data)).load() if weights_only else pickle.loads(data)
