"""`assert_close`: tensors and numbers, also in sequences and mappings, are equal up to a tolerance. PyTorch's rules."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

import resilin
from resilin.core import dtype as dtypes
from resilin.core.tensor import Tensor

# relative and absolute; of other dtypes both are 0
_TOLERANCES = {
    dtypes.float16: (1e-3, 1e-5),
    dtypes.bfloat16: (1.6e-2, 1e-5),
    dtypes.float32: (1.3e-6, 1e-5),
    dtypes.float64: (1e-7, 1e-7),
    dtypes.complex64: (1.3e-6, 1e-5),
    dtypes.complex128: (1e-7, 1e-7),
}
Message = str | Callable[[str], str] | None


@dataclass(frozen=True)
class _Rules:
    allow_subclasses: bool
    rtol: float | None
    atol: float | None
    equal_nan: bool
    check_device: bool
    check_dtype: bool
    check_layout: bool
    check_stride: bool


class _Mismatch(Exception):
    """What is wrong, as which class it is to be raised, and where in the containers."""

    def __init__(self, kind: type[Exception], text: str, path: tuple[Any, ...]) -> None:
        super().__init__(text)
        self.kind, self.text, self.path = kind, text, path

    def raised(self, msg: Message) -> Exception:
        where = "".join(f"[{key!s}]" if not isinstance(key, str) else f"[{key!r}]" for key in self.path)
        text = f"{self.text}\n\nThe failure occurred for item {where}" if self.path else self.text
        return self.kind(msg if isinstance(msg, str) else msg(text) if msg is not None else text)


def assert_close(
    actual: Any,
    expected: Any,
    *,
    allow_subclasses: bool = True,
    rtol: float | None = None,
    atol: float | None = None,
    equal_nan: bool = False,
    check_device: bool = True,
    check_dtype: bool = True,
    check_layout: bool = True,
    check_stride: bool = False,
    msg: Message = None,
) -> None:
    """AssertionError unless |actual - expected| <= atol + rtol * |expected| everywhere.

    Takes tensors, arrays, numbers, bools, None, and sequences and mappings of them. Without tolerances these are those
    of the dtype, the larger ones of two: (rtol, atol) is (1.3e-6, 1e-5) for float32, (1e-7, 1e-7) for float64, (1e-3,
    1e-5) for float16, (1.6e-2, 1e-5) for bfloat16, nothing for integers. Device and dtype must be equal unless told
    otherwise; NaN only equals NaN with `equal_nan`. `msg`: another text, or a function of the text.

    Raises: ValueError for one tolerance without the other, TypeError for values that cannot be compared.
    """
    rules = _Rules(allow_subclasses, rtol, atol, equal_nan, check_device, check_dtype, check_layout, check_stride)
    found: Exception | None = None
    try:
        for one, other, path in list(_pairs(actual, expected, (), rules)):
            _compare(one, other, path, rules)
    except _Mismatch as mismatch:
        found = mismatch.raised(msg)
    if found is not None:
        raise found


def assert_allclose(
    actual: Any,
    expected: Any,
    rtol: float | None = None,
    atol: float | None = None,
    equal_nan: bool = True,
    msg: str = "",
) -> None:
    """`assert_close` as it was before PyTorch 1.12: numbers will do, NaN equals NaN, device and dtype do not count."""
    warnings.warn("testing.assert_allclose() is deprecated: use testing.assert_close()", FutureWarning, stacklevel=2)
    if not isinstance(actual, Tensor):
        actual = resilin.tensor(actual)
    if not isinstance(expected, Tensor):
        expected = resilin.tensor(expected, dtype=actual.dtype)
    if rtol is None and atol is None:
        rtol, atol = _former_tolerances(actual.dtype, expected.dtype)
    assert_close(
        actual,
        expected,
        rtol=rtol,
        atol=atol,
        equal_nan=equal_nan,
        check_device=True,
        check_dtype=False,
        check_stride=False,
        msg=msg or None,
    )


def _former_tolerances(*kinds: Any) -> tuple[float, float]:
    table = {dtypes.float16: (1e-3, 1e-3), dtypes.float32: (1e-4, 1e-5), dtypes.float64: (1e-5, 1e-8)}
    found = [table.get(kind, (0.0, 0.0)) for kind in kinds]
    return max(rtol for rtol, _ in found), max(atol for _, atol in found)


def _is_sequence(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _pairs(actual: Any, expected: Any, path: tuple[Any, ...], rules: _Rules) -> Iterator[tuple[Any, Any, Any]]:
    """What is to be compared with one another, in containers of the same shape."""
    if _is_sequence(actual) and _is_sequence(expected):
        if len(actual) != len(expected):
            text = f"The length of the sequences mismatch: {len(actual)} != {len(expected)}"
            raise _Mismatch(AssertionError, text, path)
        for place, (one, other) in enumerate(zip(actual, expected, strict=True)):
            yield from _pairs(one, other, (*path, place), rules)
    elif isinstance(actual, Mapping) and isinstance(expected, Mapping):
        missing, more = expected.keys() - actual.keys(), actual.keys() - expected.keys()
        if missing or more:
            text = (
                f"The keys of the mappings do not match:\nMissing keys in the actual mapping: {_sorted(missing)}\n"
                f"Additional keys in the actual mapping: {_sorted(more)}"
            )
            raise _Mismatch(AssertionError, text, path)
        for key in _sorted(expected):
            yield from _pairs(actual[key], expected[key], (*path, key), rules)
    else:
        yield actual, expected, path


def _sorted(keys: Any) -> list[Any]:
    try:
        return sorted(keys)
    except TypeError:  # keys of several kinds stay in the order that they have
        return list(keys)


_BOOLS, _NUMBERS = (bool, np.bool_), (int, float, complex, np.number)


def _compare(actual: Any, expected: Any, path: tuple[Any, ...], rules: _Rules) -> None:
    both = (actual, expected)
    if (rules.rtol is None) != (rules.atol is None):
        missing = "rtol" if rules.rtol is None else "atol"
        text = f"Both 'rtol' and 'atol' must be either specified or omitted, but got no {missing}."
        raise _Mismatch(ValueError, text, path)
    if actual is None or expected is None:
        if actual is not expected:
            raise _Mismatch(AssertionError, f"None mismatch: {actual} is not {expected}", path)
    elif all(isinstance(value, _BOOLS) for value in both):
        if bool(actual) is not bool(expected):
            raise _Mismatch(AssertionError, f"Booleans mismatch: {bool(actual)} is not {bool(expected)}", path)
    elif all(isinstance(value, _NUMBERS) and not isinstance(value, _BOOLS) for value in both):
        one, other = (value.item() if isinstance(value, np.number) else value for value in both)
        _compare_numbers(one, other, path, rules)
    elif all(map(_is_array, both)) and _are_related(actual, expected, rules):
        _compare_tensors(_tensor(actual), _tensor(expected), path, rules)
    else:
        _refuse(both, path)


def _refuse(both: tuple[Any, Any], path: tuple[Any, ...]) -> NoReturn:
    text = f"No comparison pair was able to handle inputs of type {type(both[0])} and {type(both[1])}."
    raise _Mismatch(TypeError, text, path)


def _is_array(value: Any) -> bool:
    return isinstance(value, Tensor | np.ndarray)


def _are_related(actual: Any, expected: Any, rules: _Rules) -> bool:
    if type(actual) is type(expected):
        return True
    return rules.allow_subclasses and (isinstance(actual, type(expected)) or isinstance(expected, type(actual)))


def _tensor(value: Any) -> Tensor:
    made: Tensor = value.detach() if isinstance(value, Tensor) else resilin.as_tensor(value)
    return made


def _tolerances(*kinds: Any) -> tuple[float, float]:
    found = [_TOLERANCES.get(kind, (0.0, 0.0)) for kind in kinds]
    return max(rtol for rtol, _ in found), max(atol for _, atol in found)


def _compare_numbers(actual: Any, expected: Any, path: tuple[Any, ...], rules: _Rules) -> None:
    if rules.check_dtype and type(actual) is not type(expected):
        text = f"The (d)types do not match: {type(actual)} != {type(expected)}."
        raise _Mismatch(AssertionError, text, path)
    kinds = {int: dtypes.int64, float: dtypes.float64, complex: dtypes.complex128}
    rtol, atol = _tolerances(kinds[type(actual)], kinds[type(expected)]) if rules.rtol is None else _given(rules)
    if actual == expected or (rules.equal_nan and actual != actual and expected != expected):
        return
    difference = abs(actual - expected)
    if not (difference <= atol + rtol * abs(expected) and difference != float("inf")):
        raise _Mismatch(AssertionError, _told_of_numbers(actual, expected, rtol, atol), path)


def _told_of_numbers(actual: Any, expected: Any, rtol: float, atol: float) -> str:
    difference = abs(actual - expected)
    relative = float("inf") if expected == 0 else difference / abs(expected)
    text = f"{_title('Scalars', rtol, atol)}Expected {expected} but got {actual}.\n"
    text += _difference("Absolute", difference, "", atol, rtol, atol)
    return (text + _difference("Relative", relative, "", rtol, rtol, atol)).strip()


def _given(rules: _Rules) -> tuple[float, float]:
    assert rules.rtol is not None  # both are, or none is: `_compare` looks
    assert rules.atol is not None
    return rules.rtol, rules.atol


def _title(what: str, rtol: float, atol: float) -> str:
    return f"{what} are not {'equal' if rtol == 0 and atol == 0 else 'close'}!\n\n"


def _difference(kind: str, value: Any, where: str, allowed: float, rtol: float, atol: float) -> str:
    limit = "" if rtol == 0 and atol == 0 else f" (up to {allowed} allowed)"
    return f"{kind} difference: {value}{where}{limit}\n"


def _compare_tensors(actual: Any, expected: Any, path: tuple[Any, ...], rules: _Rules) -> None:
    for name, is_checked in (
        ("shape", True),
        ("layout", rules.check_layout),
        ("stride()", rules.check_stride),
        ("device", rules.check_device),
        ("dtype", rules.check_dtype),
    ):
        one, other = (value.stride() if name == "stride()" else getattr(value, name) for value in (actual, expected))
        if is_checked and one != other:
            text = f"The values for attribute '{name}' do not match: {one} != {other}."
            raise _Mismatch(AssertionError, text, path)
    rtol, atol = _tolerances(actual.dtype, expected.dtype) if rules.rtol is None else _given(rules)
    a, b = _arrays(actual, expected)
    with np.errstate(all="ignore"):
        matches = np.isclose(a, b, rtol=rtol, atol=atol, equal_nan=rules.equal_nan) if (rtol or atol) else a == b
        if rules.equal_nan and a.dtype.kind in "fc":
            matches = matches | (np.isnan(a) & np.isnan(b))
        if not matches.all():
            raise _Mismatch(AssertionError, _told(a, b, matches, rtol, atol), path)


def _arrays(actual: Any, expected: Any) -> tuple[Any, Any]:
    """Both on the CPU, in one dtype that numpy computes with exactly."""
    kind = resilin.promote_types(actual.dtype, expected.dtype)
    wide = dtypes.float32 if kind in (dtypes.float16, dtypes.bfloat16) else kind
    a, b = (value.cpu().to(wide).numpy() for value in (actual, expected))
    return a, b


def _told(a: Any, b: Any, matches: Any, rtol: float, atol: float) -> str:
    if not a.ndim:
        return _told_of_numbers(a.item(), b.item(), rtol, atol)
    wrong = matches.size - int(np.count_nonzero(matches))
    text = f"Mismatched elements: {wrong} / {matches.size} ({wrong / matches.size:.1%})\n"
    if a.dtype.kind in "biu":
        a, b = a.astype(object), b.astype(object)  # distances of integers are exact
    absolute = np.abs(a - b) if a.dtype.kind != "O" else np.vectorize(lambda x, y: abs(int(x) - int(y)))(a, b)
    absolute = np.where(matches, absolute * 0, absolute)
    if b.dtype.kind == "O":  # as PyTorch divides integers
        relative = absolute.astype(np.float32) / np.abs(b.astype(np.float32))
    else:
        relative = absolute / np.abs(b)
    relative = np.where(matches, 0, relative)
    for kind, distances, allowed in (("absolute", absolute, atol), ("relative", relative, rtol)):
        place = np.unravel_index(int(np.argmax(distances)), distances.shape)
        index = tuple(int(i) for i in place)
        value = distances[place]
        shown = value.item() if hasattr(value, "item") else value
        text += _difference(f"Greatest {kind}", shown, f" at index {index}", allowed, rtol, atol)
    return _title("Tensor-likes", rtol, atol) + text.strip()
