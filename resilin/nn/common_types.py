"""The names of torch.nn.common_types: what annotations of layers are written with, a value or a tuple of it."""

from __future__ import annotations

from typing import TypeAlias, TypeVar

from resilin.core.tensor import Tensor

_T = TypeVar("_T")
_scalar_or_tuple_any_t: TypeAlias = _T | tuple[_T, ...]
_scalar_or_tuple_1_t: TypeAlias = _T | tuple[_T]
_scalar_or_tuple_2_t: TypeAlias = _T | tuple[_T, _T]
_scalar_or_tuple_3_t: TypeAlias = _T | tuple[_T, _T, _T]
_scalar_or_tuple_4_t: TypeAlias = _T | tuple[_T, _T, _T, _T]
_scalar_or_tuple_5_t: TypeAlias = _T | tuple[_T, _T, _T, _T, _T]
_scalar_or_tuple_6_t: TypeAlias = _T | tuple[_T, _T, _T, _T, _T, _T]

_size_any_t = _scalar_or_tuple_any_t[int]
_size_1_t = _scalar_or_tuple_1_t[int]
_size_2_t = _scalar_or_tuple_2_t[int]
_size_3_t = _scalar_or_tuple_3_t[int]
_size_4_t = _scalar_or_tuple_4_t[int]
_size_5_t = _scalar_or_tuple_5_t[int]
_size_6_t = _scalar_or_tuple_6_t[int]
_size_any_opt_t: TypeAlias = int | tuple[int | None, ...] | None
_size_2_opt_t: TypeAlias = int | tuple[int | None, int | None] | None
_size_3_opt_t: TypeAlias = int | tuple[int | None, int | None, int | None] | None
_ratio_2_t = _scalar_or_tuple_2_t[float]
_ratio_3_t = _scalar_or_tuple_3_t[float]
_ratio_any_t = _scalar_or_tuple_any_t[float]
_tensor_list_t: TypeAlias = list[Tensor] | tuple[Tensor, ...]
_maybe_indices_t = _scalar_or_tuple_2_t[Tensor]
