"""Launches `multi_tensor.cu`: an optimizer's step for all parameters of a dtype, made from its rule by tracing.

The rules are those of `kernels/optimizer_rules.py`; a kernel gives their bits, for 16-bit parameters those of
`optimizer_rules.widened`. `xp` is the namespace of `backends/cupy.py`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from resilin.core.kernels.common import compute_dtype
from resilin.core.kernels.cuda import sources
from resilin.core.kernels.cuda.tracing import Constant, Symbol, Trace, type_of

Rule = Callable[..., None]
Signature = tuple[str | None, ...]
"""numpy's name of the dtype of each list, parameters first; None for a list that is not there."""

THREADS = 256  # THREADS of elements.cuh
PIECE = 4096  # PIECE of elements.cuh
SIGNATURES = (
    ("float32", "float32"),
    ("float64", "float64"),
    ("float16", "float16"),
    ("bfloat16", "bfloat16"),
    ("bfloat16", "float32"),
)
"""Dtypes of a parameter, with its gradient, and of its states, whose kernels are checked."""


class TracedRule:
    """The kernel of one rule, for lists of one signature and constants that take the same branches."""

    __slots__ = ("dtype", "name", "trace")

    def __init__(self, name: str, rule: Rule, signature: Signature, constants: Sequence[float], trace: Trace) -> None:
        self.dtype = np.dtype(np.float64 if signature[0] == "float64" else np.float32)
        self.trace = trace
        symbols = [
            None if dtype is None else Symbol(trace, self.dtype, f"x{place}") for place, dtype in enumerate(signature)
        ]
        given = [Constant(trace, self.dtype, place, value) for place, value in enumerate(constants)]
        rule(*symbols, *given)
        self.name = sources.add_generated(f"{name}_{signature[0]}", self._text(signature, symbols, len(constants)))

    def _text(self, signature: Signature, symbols: list[Symbol | None], constants: int) -> str:
        """The source; `$name` is left to be filled in."""
        kind = type_of(self.dtype)
        pointers, loads, stores = [], [], []
        present = [place for place, symbol in enumerate(symbols) if symbol is not None]
        for column, place in enumerate(present, 2):
            element, symbol = sources.FLOATS[signature[place] or ""][0], symbols[place]
            pointers.append(f"{element}* p{place} = reinterpret_cast<{element}*>(entry[{column}]);")
            loads.append(f"const {kind} x{place} = widened(p{place}[i]);")
            if symbol is not None and symbol.is_written:
                stores.append(f"p{place}[i] = Narrow<{element}>::of({symbol.text});")
        return sources.filled(
            "multi_tensor",
            constants="".join(f", {kind} c{place}" for place in range(constants)),
            columns=str(2 + len(present)),
            pointers=pointers,
            loads=loads,
            statements=self.trace.statements,
            stores=stores,
        )


_programs: dict[tuple[str, Signature], list[TracedRule]] = {}


def program(name: str, rule: Rule, signature: Signature, constants: Sequence[float]) -> TracedRule:
    """The kernel for these lists and constants; the rule is traced where no earlier one took the same branches."""
    made = _programs.setdefault((name, signature), [])
    for one in made:
        if one.trace.holds(constants):
            return one
    made.append(TracedRule(name, rule, signature, constants, Trace()))
    return made[-1]


def all_programs(name: str, rule: Rule) -> Iterator[TracedRule]:
    """Every kernel of a rule, in the dtypes of SIGNATURES: with each state that may be absent, and without it."""
    kinds = [kind for argument, kind in rule.__annotations__.items() if argument != "return"]
    constants = kinds.count("Any")
    present = [(True,) if kind == "Array" else (True, False) for kind in kinds if kind != "Any"]
    for parameter, state in SIGNATURES:
        for there in itertools.product(*present):
            dtypes = [parameter, parameter, *[state] * (len(there) - 2)]
            signature = tuple(dtype if one else None for dtype, one in zip(dtypes, there, strict=True))
            yield from _of_all_branches(name, rule, signature, constants)


def _of_all_branches(name: str, rule: Rule, signature: Signature, constants: int) -> Iterator[TracedRule]:
    pending: list[tuple[bool, ...]] = [()]
    while pending:
        forced = pending.pop()
        made = TracedRule(name, rule, signature, [1.0] * constants, Trace(forced))
        outcomes = [decision[3] for decision in made.trace.decisions]
        pending += [(*outcomes[:place], not outcomes[place]) for place in range(len(forced), len(outcomes))]
        yield made


def signature_of(arrays: Sequence[Any]) -> Signature | None:
    """What a kernel for these arrays (a parameter, its gradient, its states) is called by; None where there is none.

    There is one for floats of one dtype, or of up to 32 bits beside a parameter of 16, that lie in memory without gaps
    and in the same order.
    """
    parameter = arrays[0]
    for array in arrays:
        if array is None:
            continue
        if array.dtype.name not in sources.FLOATS or _order(array) != _order(parameter):
            return None
        if array.dtype != parameter.dtype and (parameter.dtype.itemsize != 2 or array.dtype.itemsize > 4):
            return None
    return tuple(None if array is None else array.dtype.name for array in arrays) if is_dense(parameter) else None


def _order(array: Any) -> tuple[int, ...] | None:
    """How the elements follow one another in memory; None for one after the other."""
    return None if array.flags.c_contiguous else tuple([stride // array.itemsize for stride in array.strides])


def is_dense(array: Any) -> bool:
    """Whether the elements lie in memory without gaps, in whatever order of the axes."""
    if array.flags.c_contiguous or array.flags.f_contiguous:
        return True
    step = array.itemsize
    for stride, length in sorted(zip(array.strides, array.shape, strict=True)):
        if length > 1:
            if stride != step:
                return False
            step *= length
    return bool(array.size)


def step(
    xp: Any, name: str, rule: Rule, signature: Signature, tensors: Sequence[Sequence[Any]], constants: Sequence[float]
) -> None:
    """Take one step. `tensors`: for each parameter its arrays as `signature_of` takes them, all of this signature."""
    dtype = compute_dtype(tensors[0][0].dtype)
    rounded = [dtype.type(constant) for constant in constants]
    chosen = program(name, rule, signature, rounded)
    rows = [
        (arrays[0].size, *[array.data.ptr for array in arrays if array is not None])
        for arrays in tensors
        if arrays[0].size
    ]
    if not rows:
        return
    table, blocks = table_on_device(xp, chosen.name, rows)
    given = (xp.faults.word, table, np.int64(len(rows)), *rounded)
    xp.launch(chosen.name, chosen.name, (blocks,), (THREADS,), given)


def table_on_device(xp: Any, name: str, rows: Sequence[tuple[int, ...]]) -> tuple[Any, int]:
    """(the table of `rows` in the device's memory, blocks that work on them): the last table where nothing has moved
    since, as with gradients that stay. A row: the number of a tensor's elements, some, and addresses.
    """
    whole = np.array(rows, np.int64)
    before = xp.tables.get(name)
    if before is not None and np.array_equal(before[0], whole):
        return before[1], before[2]
    pieces = -(-whole[:, 0] // PIECE)
    copied, blocks = xp.from_host(np.column_stack([np.cumsum(pieces) - pieces, whole])), int(pieces.sum())
    xp.tables[name] = (whole, copied, blocks)
    return copied, blocks
