"""Einstein summation with PyTorch's arguments: an equation, or numbers of dimensions beside each operand."""

from __future__ import annotations

import string
from typing import Any

import numpy as np

from resilin.core.ops import einsum as ops
from resilin.core.ops import shape as shape_ops
from resilin.core.tensor import Tensor


def einsum(equation: Any, *operands: Any) -> Tensor:
    """Einstein summation, e.g. `einsum("bhtd,bhsd->bhts", q, k)`; "..." stands for leading dimensions, a letter twice
    in one operand for its diagonal. Numbers may stand for letters: `einsum(q, [0, 1], k, [2, 1], [0, 2])`."""
    if isinstance(equation, Tensor):
        equation, operands = _lettered((equation, *operands))
    tensors = operands[0] if len(operands) == 1 and isinstance(operands[0], tuple | list) else operands
    terms, out = ops.parse(equation, [x._array.ndim for x in tensors])
    pairs = [_diagonals(x, term) for x, term in zip(tensors, terms, strict=True)]
    given, letters = [x for x, _ in pairs], tuple(term for _, term in pairs)
    kinds = {x._array.dtype.kind for x in given}
    return _of_integers(given, letters, out) if kinds <= set("biu") else ops.einsum_terms.call(given, letters, out)


def _of_integers(tensors: list[Tensor], terms: tuple[str, ...], out: str) -> Tensor:
    """Sums along a dimension of one operand alone are int64, as `sum` has them; products of bool are bool, and are not
    summed: NotImplementedError, as for matmul."""
    letters = "".join(terms)
    summed = set(letters) - set(out)
    whole = any(letters.count(letter) == 1 for letter in summed)
    truth = all(x._array.dtype.kind == "b" for x in tensors)
    if truth and len(tensors) > 1 and any(letters.count(letter) > 1 for letter in summed):
        raise NotImplementedError("einsum: sums of products are not implemented for bool; convert with .long()")
    if whole or truth:
        wide = np.dtype(np.int64 if whole else np.uint8)
        tensors = [shape_ops.astype.call(x, wide) for x in tensors]
    found = ops.einsum_terms.call(tensors, terms, out)
    return shape_ops.astype.call(found, np.dtype(np.bool_)) if truth and not whole else found


def _lettered(given: tuple[Any, ...]) -> tuple[str, tuple[Any, ...]]:
    """The equation and the operands of (operand, its numbers, operand, its numbers, ..., perhaps the result's)."""
    pairs = len(given) // 2 * 2
    terms = [_letters(numbers) for numbers in given[1:pairs:2]]
    result = f"->{_letters(given[-1])}" if len(given) > pairs else ""
    return ",".join(terms) + result, given[:pairs:2]


def _letters(numbers: Any) -> str:
    if not isinstance(numbers, list | tuple):
        raise TypeError(f"einsum: expected a list of numbers of dimensions, got {type(numbers).__name__}")
    wrong = [n for n in numbers if n is not Ellipsis and n not in range(len(string.ascii_letters))]
    if wrong:
        raise ValueError(
            f"einsum: dimensions have numbers from 0 to {len(string.ascii_letters) - 1}, or ..., got {wrong}"
        )
    return "".join("..." if n is Ellipsis else string.ascii_letters[n] for n in numbers)


def _diagonals(x: Tensor, term: str) -> tuple[Tensor, str]:
    """An operand and its letters, with letters that stand twice replaced by one for the diagonal."""
    for letter in term:
        while term.count(letter) > 1:
            i = term.index(letter)
            j = term.index(letter, i + 1)
            if x._array.shape[i] != x._array.shape[j]:
                raise RuntimeError(
                    f"einsum: {letter!r} stands for dimensions of lengths {x._array.shape[i]} and {x._array.shape[j]}"
                )
            x = shape_ops.diagonal.call(x, 0, i, j)
            term = term[:i] + term[i + 1 : j] + term[j + 1 :] + letter
    return x, term
