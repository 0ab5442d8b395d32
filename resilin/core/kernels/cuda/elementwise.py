"""Launches `elementwise.cu`: a formula over elements as one kernel, made by tracing, in place of a call for each step.

16-bit floats are read as float32 and rounded once, at the end. Arrays that lie in memory alike and without gaps keep
their order of axes; others are read by their strides, and the results are contiguous. `xp` is the namespace of
`backends/cupy.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from resilin.core.kernels.cuda import sources
from resilin.core.kernels.cuda.multi_tensor import is_dense
from resilin.core.kernels.cuda.tracing import Constant, NotTraced, Symbol, Trace, type_of

Formula = Callable[..., Any]

THREADS = 256  # THREADS of elements.cuh
BLOCKS = 4096  # at most: with 256 threads each as many as a large GPU runs at once, twice
RANK = 6  # coordinates of an element at most, after those that need no coordinate of their own are joined
AT_ONCE = 8  # elements that a thread reads before it computes the first, at most
AT_ONCE_BYTES = 16  # of a thread's inputs that are read before it computes: 2,048 threads of an SM ask for 32 KiB
LARGE = 1e38  # float32 has it
VARIANTS = 64  # of one formula, by its parameters: a formula with ever new ones is not compiled for each
LAYOUTS = 4096  # that are remembered

_ELEMENTS = {**{name: element for name, (element, _) in sources.FLOATS.items()}, "bool": "bool"}
NOT_TRACED = (NotTraced, TypeError, AttributeError)  # these two: of a None, of a Symbol where numpy wants an array
_HALVES = ("float16", "bfloat16")


class ElementLayout:
    """How the elements of arrays of these shapes and strides (in elements) meet."""

    __slots__ = ("ints", "keeps", "letters", "rank", "shape", "size")

    def __init__(self, arrays: Sequence[Any]) -> None:
        self.shape = np.broadcast_shapes(*[array.shape for array in arrays])
        self.size = math.prod(self.shape)
        whole = [array for array in arrays if array.size != 1 or self.size == 1]
        strides = {strides_of(array) for array in whole}
        alike = len(strides) == 1 and all(array.shape == self.shape for array in whole) and is_dense(whole[0])
        self.keeps = alike and not whole[0].flags.c_contiguous  # results take the order of axes of the first one
        letters, steps = [], []
        for array in arrays:
            if array.size == 1 and self.size != 1:
                letters.append("s")
            elif alike or (array.shape == self.shape and array.flags.c_contiguous):
                letters.append("e")
            else:
                letters.append("b")
                steps.append(stretched(array.shape, strides_of(array), self.shape))
        self.letters = "".join(letters)
        lengths, steps = joined(self.shape, steps)
        self.rank = len(lengths) if steps else 0
        self.ints = [np.int64(v) for v in (*lengths, *[v for of in steps for v in of])] if steps else []


def strides_of(array: Any) -> tuple[int, ...]:
    """How many elements lie from one to the next along each axis."""
    return tuple([stride // array.itemsize for stride in array.strides])


def stretched(own: Sequence[int], strides: Sequence[int], shape: Sequence[int]) -> list[int]:
    """The strides of an array of shape `own` as one of `shape`: 0 along what it is stretched."""
    missing = len(shape) - len(own)
    return [0] * missing + [0 if length == 1 else stride for length, stride in zip(own, strides, strict=True)]


def joined(shape: Sequence[int], steps: list[list[int]]) -> tuple[list[int], list[list[int]]]:
    """The fewest axes that all arrays can be walked along."""
    lengths: list[int] = []
    kept: list[list[int]] = [[] for _ in steps]
    for axis, length in enumerate(shape):
        if length == 1:
            continue
        if lengths and all(of[-1] == step[axis] * length for of, step in zip(kept, steps, strict=True)):
            lengths[-1] *= length
            for of, step in zip(kept, steps, strict=True):
                of[-1] = step[axis]
        else:
            lengths.append(length)
            for of, step in zip(kept, steps, strict=True):
                of.append(step[axis])
    return lengths, kept


class TracedFormula:
    """A traced formula; its kernels differ in how the inputs are read. NotTraced where it cannot be."""

    def __init__(self, name: str, formula: Formula, kinds: tuple[str | None, ...], numbers: Sequence[float]) -> None:
        self.name, self.kinds, self.trace = name, kinds, Trace()
        floats = {kind for kind in kinds if kind in sources.FLOATS}
        if not floats:
            raise NotTraced("nothing is a float")
        self.dtype = np.dtype(np.float64 if "float64" in floats else np.float32)
        given: list[Any] = []
        places = iter(range(len(numbers)))
        for position, kind in enumerate(kinds):
            if kind is None:
                given.append(None)
            elif kind == "number":
                place = next(places)
                given.append(Constant(self.trace, self.dtype, place, float(numbers[place])))
            else:
                given.append(Symbol(self.trace, _computed(kind), f"x{position}"))
        found = formula(*given)
        results = found if isinstance(found, tuple) else (found,)
        narrow = next(iter(floats)) if len(floats) == 1 and floats <= set(_HALVES) else "float32"
        self.results: list[Symbol | int | None] = []  # a number: that input itself
        self.dtypes: list[np.dtype[Any]] = []  # of those that are computed
        for result in results:
            same = [i for i, one in enumerate(given) if one is result and kinds[i] != "number"]
            if result is None or same:
                self.results.append(same[0] if same else None)
                continue
            if not isinstance(result, Symbol):
                raise NotTraced(f"a result is a {type(result).__name__}")
            self.results.append(result)
            type_of(result.dtype)
            self.dtypes.append(sources.dtype_of(narrow) if result.dtype.name == "float32" else result.dtype)
        self._names: dict[tuple[str, int], str] = {}

    @property
    def steps(self) -> int:
        """How many functions of the array library would do the same."""
        halves = any(kind in _HALVES for kind in self.kinds)
        return len(self.trace.statements) + 2 * halves

    def kernel(self, letters: str, rank: int) -> str:
        """The name of the kernel that reads its inputs so, and writes its results so, or where none follow, anew."""
        found = self._names.get((letters, rank))
        if found is None:
            found = self._names[letters, rank] = sources.add_generated(self.name, self._text(letters, rank))
        return found

    def _text(self, letters: str, rank: int) -> str:
        parameters, held, reads, loads, stores, strides = [], [], [], [], [], []
        count = self._at_once(letters)
        letter = iter(letters)
        arrays = sum(kind is not None and kind != "number" for kind in self.kinds)
        apart = " __restrict__" if len(letters) == arrays else ""  # a result may be written into an input
        for position, kind in enumerate(self.kinds):
            if kind is None or kind == "number":
                continue
            how = next(letter)
            parameters.append(f"const {_ELEMENTS[kind]}*{apart} p{position}")
            place = "i" if how == "e" else " + ".join(f"k{a} * s{position}_{a}" for a in range(rank)) or "0"
            if how == "s":
                loads.append(f"const {type_of(_computed(kind))} x{position} = widened(p{position}[0]);")
            else:
                held.append(f"{_ELEMENTS[kind]} r{position}[{count}];")
                reads.append(f"r{position}[u] = p{position}[{place}];")
                loads.append(f"const {type_of(_computed(kind))} x{position} = widened(r{position}[u]);")
            strides += [f"long long s{position}_{axis}" for axis in range(rank) if how == "b"]
        computed = [result for result in self.results if isinstance(result, Symbol)]
        for number, (result, dtype) in enumerate(zip(computed, self.dtypes, strict=True)):
            element, how = _ELEMENTS[dtype.name], next(letter, "e")
            parameters.append(f"{element}*{apart} y{number}")
            place = "i" if how == "e" else " + ".join(f"k{a} * t{number}_{a}" for a in range(rank)) or "0"
            stores.append(f"y{number}[{place}] = Narrow<{element}>::of({result.text});")
            strides += [f"long long t{number}_{axis}" for axis in range(rank) if how == "b"]
        if "b" in letters:
            parameters += [f"long long n{axis}" for axis in range(rank)] + strides
        numbers = sum(kind == "number" for kind in self.kinds)
        parameters += [f"{type_of(self.dtype)} c{place}" for place in range(numbers)]
        return sources.filled(
            "elementwise",
            parameters="".join(f", {parameter}" for parameter in parameters),
            count=str(count),
            arrays=held,
            coordinates=_coordinates(rank) if "b" in letters[:arrays] else [],
            reads=reads,
            places=_coordinates(rank) if "b" in letters[arrays:] else [],
            loads=loads,
            statements=self.trace.statements,
            stores=stores,
        )

    def _at_once(self, letters: str) -> int:
        """How many elements a thread reads before it computes the first."""
        kinds = [kind for kind in self.kinds if kind is not None and kind != "number"]
        read = [kind for kind, how in zip(kinds, letters, strict=False) if how != "s"]
        size = sum(sources.dtype_of(kind).itemsize for kind in read)
        return min(max(AT_ONCE_BYTES // max(size, 1), 1), AT_ONCE)


def _coordinates(rank: int) -> list[str]:
    lines = ["unsigned rest = static_cast<unsigned>(i);"]
    for axis in reversed(range(1, rank)):
        lines += [f"const unsigned m{axis} = static_cast<unsigned>(n{axis});"]
        lines += [f"const long long k{axis} = rest % m{axis};", f"rest /= m{axis};"]
    return [*lines, "const long long k0 = rest;"]


def _computed(kind: str) -> np.dtype[Any]:
    return np.dtype(np.float32) if kind in _HALVES else np.dtype(kind)


ALL: list[Callable[[], Iterable[tuple[str, Formula, int]]]] = []
"""Who uses formulas says all of them here: (name, formula, number of arrays), for the check of kernels."""

CHECKED = ("float32", "float64", "bfloat16")


def all_kernels() -> Iterator[tuple[str, tuple[str, ...]]]:
    """(name of a formula, its kernels): in the dtypes of CHECKED for arrays that lie alike, in the first for others."""
    for formulas in ALL:
        for name, formula, count in formulas():
            made = []
            for kind in CHECKED:
                try:
                    program = TracedFormula(name, formula, (kind,) * count, ())
                except (*NOT_TRACED, RuntimeError):  # the last: the gradient of one of the inputs is refused
                    continue
                if program.dtypes:
                    made.append(program.kernel("e" * count, 0))
                if program.dtypes and kind == CHECKED[0]:
                    made.append(program.kernel("b" * count, 3))
            if made:
                yield name, tuple(made)


_programs: dict[Hashable, list[TracedFormula]] = {}
_variants: dict[str, int] = {}
_untraced: set[Hashable] = set()
_layouts: dict[Hashable, ElementLayout] = {}


def _program(
    name: str, parameters: Hashable, formula: Formula, kinds: Any, numbers: Sequence[float]
) -> TracedFormula | None:
    key = (name, parameters, kinds)
    if key in _untraced:
        return None
    made = _programs.setdefault(key, [])
    for one in made:
        if not one.trace.decisions or one.trace.holds(numbers):
            return one
    if _variants.get(name, 0) >= VARIANTS:
        return None
    try:
        found = TracedFormula(name, formula, kinds, numbers)
    except NOT_TRACED:
        _untraced.add(key)
        return None
    _variants[name] = _variants.get(name, 0) + 1
    made.append(found)
    return found


def apply(
    xp: Any,
    name: str,
    parameters: Hashable,
    formula: Formula,
    values: Sequence[Any],
    least: int = 1,
    out: Sequence[Any] | None = None,
) -> tuple[Any, ...] | None:
    """The results of `formula` for arrays of a device, numbers, which are passed on, and None.

    out: for each result the array that it is written into, of the full shape and the right dtype, or None for a new
    one. It may be one of the values.

    `name` and `parameters` say which formula it is. None where it has fewer than `least` steps, or no kernel is made of
    it: for integers and complex numbers, for arrays of no elements, and for what is not done element by element.
    """
    kinds: list[str | None] = []
    arrays: list[Any] = []
    numbers: list[float] = []
    for value in values:
        if value is None:
            kinds.append(None)
        elif type(value) is float or type(value) is int:
            kinds.append("number")
            numbers.append(value)
        else:
            kind = getattr(getattr(value, "dtype", None), "name", "")
            if kind not in _ELEMENTS or isinstance(value, np.ndarray | np.generic):
                return None
            kinds.append(kind)
            arrays.append(value)
    program = _program(name, parameters, formula, tuple(kinds), numbers)
    if program is None or program.steps < least:
        return None
    into = [None] * len(program.dtypes) if out is None else out
    given_out = [array for array in into if array is not None]
    layout = _layout([*arrays, *given_out])
    if not layout.size or (layout.rank and (layout.rank > RANK or layout.size >= 1 << 31)):
        return None
    like = next((array for array, letter in zip(arrays, layout.letters, strict=False) if letter == "e"), None)
    outputs = [
        one if one is not None else xp.empty_like(like, dtype=dtype) if layout.keeps else xp.empty(layout.shape, dtype)
        for one, dtype in zip(into, program.dtypes, strict=True)
    ]
    if outputs:
        letters = iter(layout.letters[len(arrays) :])
        written = "".join(["e" if one is None else next(letters) for one in into]) if given_out else ""
        kernel = program.kernel(layout.letters[: len(arrays)] + written, layout.rank)
        rounded = [_rounded(number, program.dtype) for number in numbers]
        blocks = min(-(-layout.size // THREADS), BLOCKS)
        given = (np.int64(layout.size), *arrays, *outputs, *layout.ints, *rounded)
        xp.launch(kernel, kernel, (blocks,), (THREADS,), given)
    computed = iter(outputs)
    return tuple(
        [next(computed) if isinstance(one, Symbol) else None if one is None else values[one] for one in program.results]
    )


def _rounded(number: float, dtype: np.dtype[Any]) -> Any:
    """The number as a kernel takes it; infinite where it is too large, of which numpy would warn."""
    if abs(number) < LARGE:
        return dtype.type(number)
    with np.errstate(over="ignore"):
        return dtype.type(number)


COPIED = 8  # arrays in one launch, at most


def copy(xp: Any, arrays: Sequence[Any], into: Sequence[Any]) -> bool:
    """Write the elements of each array, all floats of one shape and dtype, into another; whether one launch did."""
    kinds = {(array.shape, array.dtype) for array in (*arrays, *into)}
    if len(kinds) > 1 or len(arrays) > COPIED:
        return False
    return apply(xp, "copy", (), _copied, arrays, out=into) is not None


def contiguous(xp: Any, arrays: Sequence[Any]) -> list[Any]:
    """The arrays, those that are not in one piece copied: in one launch where they are alike."""
    apart = [array for array in arrays if not array.flags.c_contiguous]
    made = [xp.empty(array.shape, array.dtype) for array in apart]
    if len(apart) < 2 or not copy(xp, apart, made):
        return [xp.ascontiguousarray(array) for array in arrays]
    copies = iter(made)
    return [array if array.flags.c_contiguous else next(copies) for array in arrays]


def _copied(*arrays: Any) -> tuple[Any, ...]:
    return tuple([array * 1.0 for array in arrays])


ALL.append(lambda: [("copy", _copied, 3)])


def _layout(arrays: Sequence[Any]) -> ElementLayout:
    key = tuple([(array.shape, array.strides, array.itemsize) for array in arrays])
    found = _layouts.get(key)
    if found is None:
        if len(_layouts) >= LAYOUTS:
            _layouts.clear()
        found = _layouts[key] = ElementLayout(arrays)
    return found
