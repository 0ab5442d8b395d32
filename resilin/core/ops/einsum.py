"""Einstein summation. The rule of an operand is another einsum: the gradient with the other operands."""

from __future__ import annotations

import functools
import math
import string
from typing import Any, NamedTuple

import numpy as np

from resilin.core.ops.errstate import ON_DEVICES
from resilin.core.ops.registry import op


@op(
    takes="iufc",
    single=ON_DEVICES,
    narrow=ON_DEVICES,
    tensors=-1,
    complex=True,
    samples=lambda r: [
        ([r(2, 3), r(3, 4)], ("ab", "bc"), "ac"),
        ([r(2, 3, 4), r(4, 3)], ("abc", "cd"), "ad"),
        ([r(2, 3)], ("ab",), "b"),
        ([r(2), r(3), r(2, 3)], ("a", "b", "ab"), ""),
    ],
)
def einsum_terms(xp, arrays, terms=(), out=""):
    """Products of `arrays`, whose dimensions are named by the letters of `terms`, summed over letters not in `out`.

    Two arrays of the host as one product of (batches of) matrices where they come to that: `matmul` says the order of
    its sums. Others in numpy's order.
    """
    if len(arrays) == 2 and isinstance(arrays[0], np.ndarray) and isinstance(arrays[1], np.ndarray):
        if set(out) == {*terms[0], *terms[1]}:  # nothing is summed
            return np.ascontiguousarray(
                xp.multiply(*(_spread(x, term, out) for x, term in zip(arrays, terms, strict=True)))
            )
        plan = _plan(*terms, out)
        if plan is not None and (found := _as_matrices(xp, *arrays, plan)) is not None:
            return found
    product = xp.einsum(f"{','.join(terms)}->{out}", *arrays, optimize=len(arrays) > 1)
    return product.copy() if len(arrays) == 1 else product  # numpy gives a view of a single operand


def _spread(x, term, out):
    """x with its dimensions in the order of `out`, and of length 1 for letters that it has not."""
    turned = x.transpose([term.index(letter) for letter in out if letter in term])
    return turned[tuple([slice(None) if letter in term else None for letter in out])]


class _Plan(NamedTuple):
    """How two terms are a product of matrices: numbers of dimensions, in the order in which they are multiplied."""

    left: tuple[int, ...]
    right: tuple[int, ...]
    shared: int  # dimensions of both that stay
    rows: int  # that only the left one has
    summed: int
    back: tuple[int, ...] | None  # the result's dimensions in the order of `out`


@functools.lru_cache(256)
def _plan(a: str, b: str, out: str) -> _Plan | None:
    """None for what is no product of matrices: a letter that one operand has alone is summed, or nothing is.

    Products of the last dimensions alone are one row by one column each, if both operands lie alike.
    """
    if (
        len(set(a)) < len(a)
        or len(set(b)) < len(b)
        or any(x not in b + out for x in a)
        or any(x not in a + out for x in b)
    ):
        return None
    shared = [x for x in out if x in a and x in b]
    rows, columns = [x for x in out if x in a and x not in b], [x for x in out if x in b and x not in a]
    summed = [x for x in a if x in b and x not in out]
    in_rows = bool(shared) and a == b and a.endswith("".join(summed))
    if not summed or (not rows and not columns and not in_rows):
        return None
    made = [*shared, *rows, *columns]
    back = tuple(made.index(x) for x in out)
    return _Plan(
        tuple(a.index(x) for x in (*shared, *rows, *summed)),
        tuple(b.index(x) for x in (*shared, *summed, *columns)),
        len(shared),
        len(rows),
        len(summed),
        None if back == tuple(range(len(out))) else back,
    )


def _as_matrices(xp: Any, a: Any, b: Any, plan: _Plan) -> Any:
    left, right = a.transpose(plan.left), b.transpose(plan.right)
    k, depth = plan.shared, plan.summed
    batch, rows, columns = left.shape[:k], left.shape[k : k + plan.rows], right.shape[k + depth :]
    if right.shape[:k] != batch or left.shape[k + plan.rows :] != right.shape[k : k + depth]:
        return None  # a length of 1 that serves a longer one
    n = math.prod(right.shape[k : k + depth])
    made = xp.matmul(
        left if len(rows) == 1 and depth == 1 else left.reshape(*batch, math.prod(rows), n),
        right if depth == 1 and len(columns) == 1 else right.reshape(*batch, n, math.prod(columns)),
    )
    if len(rows) != 1 or len(columns) != 1:
        made = made.reshape((*batch, *rows, *columns))
    return made if plan.back is None else made.transpose(plan.back).copy()


@einsum_terms.vjp_sequence
def _(xp, needs, g, operands, terms=(), out=""):
    parts = []
    for i, need in enumerate(needs):
        if not need:
            parts.append(None)
            continue
        others = [j for j in range(len(terms)) if j != i]
        names = [out, *(terms[j] for j in others)]
        kept = "".join(letter for letter in terms[i] if any(letter in name for name in names))
        value = xp.einsum_terms([g, *(xp.conj(operands[j]) for j in others)], tuple(names), kept)
        if kept != terms[i]:  # letters that only this operand has were summed: the gradient is spread over them
            places = tuple(k for k, letter in enumerate(terms[i]) if letter not in kept)
            value = xp.broadcast_to(xp.expand_dims(value, places), operands[i].shape)
        elif value.shape != operands[i].shape:  # a letter has length 1 in the others: what they hold serves all of it
            lengths = zip(value.shape, operands[i].shape, strict=True)
            value = xp.broadcast_to(value, tuple(m if n == 1 else n for n, m in lengths))
        parts.append(value)
    return parts


def parse(equation: str, ranks: list[int]) -> tuple[tuple[str, ...], str]:
    """The letters of each operand (some perhaps twice) and of the result, "..." replaced.

    RuntimeError for what does not fit the ranks.
    """
    return _parse(equation, tuple(ranks))


@functools.lru_cache(256)
def _parse(equation: str, ranks: tuple[int, ...]) -> tuple[tuple[str, ...], str]:
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        raise RuntimeError(f"einsum: the equation {equation!r} names {len(terms)} operands, got {len(ranks)}")
    free = [letter for letter in string.ascii_letters if letter not in equation]
    extra = max(
        (rank - len(term.replace("...", "")) for term, rank in zip(terms, ranks, strict=True) if "..." in term),
        default=0,
    )
    dots = "".join(free[:extra])
    named = []
    for number, (term, rank) in enumerate(zip(terms, ranks, strict=True)):
        letters = term
        if "..." in term:
            count = rank - len(term) + 3
            letters = term.replace("...", dots[len(dots) - count :] if count else "")
        if len(letters) != rank or not (letters.isalpha() or not letters):
            raise RuntimeError(f"einsum: operand {number} has {rank} dimensions, but its subscript is {term!r}")
        named.append(letters)
    if arrow:
        return tuple(named), right.replace("...", dots)
    once = "".join(sorted(x for x in set("".join(named)) if "".join(named).count(x) == 1 and x not in dots))
    return tuple(named), dots + once
