"""The types of results that are several tensors, under torch.return_types' names: `max` is what `x.max(dim=0)` gives.

Each is a tuple whose parts have names too, and is made of one sequence: `type(found)(part.cpu() for part in found)`.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar, Self

from resilin._base import place_finder

if TYPE_CHECKING:
    from resilin.core.tensor import Tensor


class ReturnType(tuple[Any, ...]):
    """Base of these types: subclasses annotate their parts, in order."""

    __slots__ = ()
    n_fields: ClassVar[int] = 0
    n_sequence_fields: ClassVar[int] = 0
    n_unnamed_fields: ClassVar[int] = 0
    __match_args__: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        cls.__module__ = f"{place_finder.shown_root}.return_types"
        names = tuple(cls.__annotations__)
        if names:
            cls.n_fields = cls.n_sequence_fields = len(names)
            cls.__match_args__ = names  # type: ignore[misc]
        for place, name in enumerate(names):
            setattr(cls, name, property(operator.itemgetter(place)))

    def __new__(cls, sequence: Iterable[Any]) -> Self:
        made = super().__new__(cls, sequence)
        if len(made) != cls.n_fields:
            raise TypeError(f"{_shown(cls)}() takes a {cls.n_fields}-sequence ({len(made)}-sequence given)")
        return made

    def __repr__(self) -> str:
        parts = zip(self.__match_args__, self, strict=True)
        return f"{_shown(type(self))}(\n" + ",\n".join(f"{name}={part!r}" for name, part in parts) + ")"


def _shown(cls: type) -> str:
    return f"{place_finder.shown_root}.return_types.{cls.__name__}"


class _Found(ReturnType):
    """Values and where they were found."""

    __slots__ = ()
    values: Tensor
    indices: Tensor


class cummax(_Found):
    """What `cummax` gives."""

    __slots__ = ()


class cummin(_Found):
    """What `cummin` gives."""

    __slots__ = ()


class kthvalue(_Found):
    """What `kthvalue` gives."""

    __slots__ = ()


class max(_Found):
    """What `max` gives with a dim."""

    __slots__ = ()


class median(_Found):
    """What `median` gives with a dim."""

    __slots__ = ()


class min(_Found):
    """What `min` gives with a dim."""

    __slots__ = ()


class mode(_Found):
    """What `mode` gives."""

    __slots__ = ()


class nanmedian(_Found):
    """What `nanmedian` gives with a dim."""

    __slots__ = ()


class sort(_Found):
    """What `sort` gives."""

    __slots__ = ()


class topk(_Found):
    """What `topk` gives."""

    __slots__ = ()


class aminmax(ReturnType):
    """What `aminmax` gives: the smallest and the largest elements."""

    __slots__ = ()
    min: Tensor
    max: Tensor


class frexp(ReturnType):
    """What `frexp` gives."""

    __slots__ = ()
    mantissa: Tensor
    exponent: Tensor


class histogram(ReturnType):
    """What `histogram` gives: counts (or densities) and the edges of the bins."""

    __slots__ = ()
    hist: Tensor
    bin_edges: Tensor


class histogramdd(ReturnType):
    """What `histogramdd` gives: counts (or densities) and the edges of the bins in each dimension."""

    __slots__ = ()
    hist: Tensor
    bin_edges: tuple[Tensor, ...]


class linalg_cholesky_ex(ReturnType):
    """What `linalg.cholesky_ex` gives."""

    __slots__ = ()
    L: Tensor
    info: Tensor


class _Eigen(ReturnType):
    """Eigenvalues and eigenvectors."""

    __slots__ = ()
    eigenvalues: Tensor
    eigenvectors: Tensor


class linalg_eig(_Eigen):
    """What `linalg.eig` gives."""

    __slots__ = ()


class linalg_eigh(_Eigen):
    """What `linalg.eigh` gives."""

    __slots__ = ()


class linalg_inv_ex(ReturnType):
    """What `linalg.inv_ex` gives."""

    __slots__ = ()
    inverse: Tensor
    info: Tensor


class linalg_lstsq(ReturnType):
    """What `linalg.lstsq` gives."""

    __slots__ = ()
    solution: Tensor
    residuals: Tensor
    rank: Tensor
    singular_values: Tensor


class _PLU(ReturnType):
    """A permutation and two triangles."""

    __slots__ = ()
    P: Tensor
    L: Tensor
    U: Tensor


class linalg_lu(_PLU):
    """What `linalg.lu` gives."""

    __slots__ = ()


class lu_unpack(_PLU):
    """What `lu_unpack` gives."""

    __slots__ = ()


class linalg_lu_factor(ReturnType):
    """What `linalg.lu_factor` gives."""

    __slots__ = ()
    LU: Tensor
    pivots: Tensor


class linalg_lu_factor_ex(ReturnType):
    """What `linalg.lu_factor_ex` gives."""

    __slots__ = ()
    LU: Tensor
    pivots: Tensor
    info: Tensor


class _QR(ReturnType):
    """Orthonormal columns and an upper triangle."""

    __slots__ = ()
    Q: Tensor
    R: Tensor


class linalg_qr(_QR):
    """What `linalg.qr` gives."""

    __slots__ = ()


class qr(_QR):
    """What the old `qr` gives."""

    __slots__ = ()


class _SignAndLogarithm(ReturnType):
    """The sign of a determinant and the logarithm of its absolute value."""

    __slots__ = ()
    sign: Tensor
    logabsdet: Tensor


class linalg_slogdet(_SignAndLogarithm):
    """What `linalg.slogdet` gives."""

    __slots__ = ()


class slogdet(_SignAndLogarithm):
    """What `slogdet` gives."""

    __slots__ = ()


class linalg_solve_ex(ReturnType):
    """What `linalg.solve_ex` gives."""

    __slots__ = ()
    result: Tensor
    info: Tensor


class linalg_svd(ReturnType):
    """What `linalg.svd` gives."""

    __slots__ = ()
    U: Tensor
    S: Tensor
    Vh: Tensor


class svd(ReturnType):
    """What the old `svd` gives: V, not its adjoint."""

    __slots__ = ()
    U: Tensor
    S: Tensor
    V: Tensor


class triangular_solve(ReturnType):
    """What `triangular_solve` gives."""

    __slots__ = ()
    solution: Tensor
    cloned_coefficient: Tensor


all_return_types: list[type[ReturnType]] = [
    found
    for name, found in sorted(globals().items())
    if isinstance(found, type) and issubclass(found, ReturnType) and name[0].islower()
]
__all__ = [name for name in globals() if name[0].islower() and name in {one.__name__ for one in all_return_types}]
