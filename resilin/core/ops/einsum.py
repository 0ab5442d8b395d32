"""Einstein summation. The rule of an operand is another einsum: the gradient with the other operands."""

from __future__ import annotations

import string

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
    """Products of `arrays`, whose dimensions are named by the letters of `terms`, summed over letters not in `out`."""
    product = xp.einsum(f"{','.join(terms)}->{out}", *arrays, optimize=len(arrays) > 1)
    return product.copy() if len(arrays) == 1 else product  # numpy gives a view of a single operand


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
