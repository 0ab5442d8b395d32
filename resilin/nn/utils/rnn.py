"""Sequences of different lengths: padded to one tensor, or packed without padding."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from resilin.core import dtype as dtypes
from resilin.core.api.manipulation.joining import cat
from resilin.core.ops import creation
from resilin.core.tensor import Tensor

# B sequences, T steps of the longest, N steps of all of them


class _Packed(NamedTuple):
    data: Tensor
    batch_sizes: Tensor
    sorted_indices: Tensor | None
    unsorted_indices: Tensor | None


class PackedSequence(_Packed):
    """The steps of several sequences without padding, made by `pack_padded_sequence` or `pack_sequence`.

    data: (N, ...), the first steps of all sequences, then the second steps, and so on; the longest sequence first.
    batch_sizes: int64 on the CPU, how many sequences have each step. sorted_indices: the sequences' places before they
    were sorted by length, unsorted_indices the inverse; both None when they came sorted.
    """

    __slots__ = ()

    def __new__(
        cls,
        data: Tensor,
        batch_sizes: Tensor | None = None,
        sorted_indices: Tensor | None = None,
        unsorted_indices: Tensor | None = None,
    ) -> PackedSequence:
        """ValueError without batch_sizes or with those of another device than the CPU."""
        if batch_sizes is None:
            raise ValueError("PackedSequence: batch_sizes is missing; use pack_padded_sequence or pack_sequence")
        if batch_sizes.device.type != "cpu":
            raise ValueError(f"PackedSequence: batch_sizes must be on the CPU, got a tensor on {batch_sizes.device}")
        if unsorted_indices is None:
            unsorted_indices = invert_permutation(sorted_indices)
        return super().__new__(cls, data, batch_sizes, sorted_indices, unsorted_indices)

    def to(self, *args: Any, **kwargs: Any) -> PackedSequence:
        """With `data` of another dtype or device, as Tensor.to; itself if nothing changes. Indices follow."""
        data = self.data.to(*args, **kwargs)
        if data is self.data:
            return self
        places = [None if i is None else i.to(data.device) for i in (self.sorted_indices, self.unsorted_indices)]
        return PackedSequence(data, self.batch_sizes, *places)

    def cpu(self, *args: Any, **kwargs: Any) -> PackedSequence:
        """On the CPU."""
        return self.to("cpu", *args, **kwargs)

    def cuda(self, *args: Any, **kwargs: Any) -> PackedSequence:
        """On the current CUDA device."""
        return self.to("cuda", *args, **kwargs)

    def pin_memory(self) -> PackedSequence:
        """With pinned `data`."""
        return self._replace(data=self.data.pin_memory())

    @property
    def is_cuda(self) -> bool:
        """Whether `data` is on a CUDA device."""
        return str(self.data.device.type) == "cuda"

    def is_pinned(self) -> bool:
        """Whether `data` is in pinned memory."""
        return bool(self.data.is_pinned())

    def double(self) -> PackedSequence:
        """In float64."""
        return self.to(dtypes.float64)

    def float(self) -> PackedSequence:
        """In float32."""
        return self.to(dtypes.float32)

    def half(self) -> PackedSequence:
        """In float16."""
        return self.to(dtypes.float16)

    def long(self) -> PackedSequence:
        """In int64."""
        return self.to(dtypes.int64)

    def int(self) -> PackedSequence:
        """In int32."""
        return self.to(dtypes.int32)

    def short(self) -> PackedSequence:
        """In int16."""
        return self.to(dtypes.int16)

    def char(self) -> PackedSequence:
        """In int8."""
        return self.to(dtypes.int8)

    def byte(self) -> PackedSequence:
        """In uint8."""
        return self.to(dtypes.uint8)


def invert_permutation(permutation: Tensor | None) -> Tensor | None:
    """The permutation that undoes `permutation`; None for None."""
    return None if permutation is None else permutation.argsort()


def _lengths(where: str, lengths: Any, batch: int) -> np.ndarray[Any, Any]:
    if isinstance(lengths, Tensor):
        if lengths.device.type != "cpu":
            raise RuntimeError(f"{where}: lengths must be on the CPU, got a tensor on {lengths.device}")
        lengths = lengths.numpy()
    found = creation.to_array(lengths)
    if found.dtype.kind not in "iu" or found.shape != (batch,):
        raise RuntimeError(
            f"{where}: expected {batch} integer lengths, one a sequence, got {found.dtype} of shape {found.shape}"
        )
    return found.astype(np.int64)


def pack_padded_sequence(
    input: Tensor, lengths: Any, batch_first: bool = False, enforce_sorted: bool = True
) -> PackedSequence:
    """Pack (T, B, ...), or (B, T, ...) with batch_first, whose sequences have `lengths` steps, at least one each.

    enforce_sorted: the lengths must descend already (RuntimeError if not); otherwise the sequences are sorted, equal
    lengths in their order.
    """
    if input.dim() < 2:
        raise RuntimeError(f"pack_padded_sequence: expected at least two dimensions, got {tuple(input.shape)}")
    x = input.transpose(0, 1) if batch_first else input
    steps, batch = x.shape[0], x.shape[1]
    found = _lengths("pack_padded_sequence", lengths, batch)
    order = None
    if not enforce_sorted:
        order = np.argsort(-found, kind="stable")
        found = found[order]
        x = x.index_select(1, creation.tensor(order, device=x.device))
    elif (np.diff(found) > 0).any():
        raise RuntimeError(
            "pack_padded_sequence: `lengths` must be sorted in decreasing order when `enforce_sorted` is True, got "
            f"{found.tolist()}; pass enforce_sorted=False to have the sequences sorted"
        )
    if not batch or found[-1] <= 0:
        raise RuntimeError(f"pack_padded_sequence: every length must be greater than 0, got {found.tolist()}")
    if found[0] > steps:
        raise RuntimeError(f"pack_padded_sequence: a length of {found[0]} exceeds the {steps} steps of the input")
    sizes = (found[None, :] > np.arange(found[0])[:, None]).sum(1)
    rows = x[: int(found[0])].reshape(int(found[0]) * batch, *x.shape[2:])
    if (sizes != batch).any():
        kept = np.flatnonzero(np.arange(batch)[None, :] < sizes[:, None])
        rows = rows.index_select(0, creation.tensor(kept, device=x.device))
    places = None if order is None else creation.tensor(order, device=x.device)
    return PackedSequence(rows, creation.tensor(sizes.astype(np.int64)), places)


def pad_packed_sequence(
    sequence: PackedSequence, batch_first: bool = False, padding_value: float = 0.0, total_length: int | None = None
) -> tuple[Tensor, Tensor]:
    """The padded sequences (T, B, ...), or (B, T, ...) with batch_first, in their original order, and their lengths.

    total_length: T, at least that of the longest sequence (ValueError otherwise).
    """
    sizes = sequence.batch_sizes.numpy()
    longest, batch = len(sizes), int(sizes[0])
    steps = longest if total_length is None else total_length
    if steps < longest:
        raise ValueError(
            f"pad_packed_sequence: total_length={total_length} is less than the {longest} steps of the longest sequence"
        )
    places = np.full(steps * batch, int(sizes.sum()))  # the row after the last one holds the padding
    places[: longest * batch][(np.arange(batch)[None, :] < sizes[:, None]).reshape(-1)] = np.arange(sizes.sum())
    data = sequence.data
    padding = creation.full((1, *data.shape[1:]), padding_value, dtype=data.dtype, device=data.device)
    rows = cat([data, padding], 0).index_select(0, creation.tensor(places, device=data.device))
    padded = rows.reshape(steps, batch, *data.shape[1:])
    lengths = creation.tensor((sizes[None, :] > np.arange(batch)[:, None]).sum(1))
    if sequence.unsorted_indices is not None:
        padded = padded.index_select(1, sequence.unsorted_indices)
        lengths = lengths[sequence.unsorted_indices.cpu()]
    return padded.transpose(0, 1) if batch_first else padded, lengths


def pad_sequence(
    sequences: Tensor | Iterable[Tensor],
    batch_first: bool = False,
    padding_value: float = 0.0,
    padding_side: str = "right",
) -> Tensor:
    """Sequences (length, ...) filled up at `padding_side`: one tensor (T, B, ...), with batch_first (B, T, ...)."""
    if padding_side not in ("left", "right"):
        raise RuntimeError(f"pad_sequence: padding_side must be 'left' or 'right', got {padding_side!r}")
    parts = list(sequences)
    if not parts:
        raise RuntimeError("pad_sequence: received an empty list of sequences")
    rest = tuple(parts[0].shape[1:])
    for number, part in enumerate(parts):
        if part.dim() == 0 or tuple(part.shape[1:]) != rest:
            raise RuntimeError(
                f"pad_sequence: sequences must agree in all dimensions but the first: the first has shape "
                f"{tuple(parts[0].shape)}, number {number} has {tuple(part.shape)}"
            )
    longest = max(part.shape[0] for part in parts)
    filled = []
    for part in parts:
        missing = (longest - part.shape[0], *rest)
        padding = creation.full(missing, padding_value, dtype=part.dtype, device=part.device)
        if missing[0]:
            part = cat([part, padding] if padding_side == "right" else [padding, part], 0)
        filled.append(part.unsqueeze(0 if batch_first else 1))
    return cat(filled, 0 if batch_first else 1)


def unpad_sequence(padded_sequences: Tensor, lengths: Tensor, batch_first: bool = False) -> list[Tensor]:
    """The sequences (length, ...) of a padded tensor: the inverse of `pad_sequence`."""
    rows = padded_sequences if batch_first else padded_sequences.transpose(0, 1)
    found = _lengths("unpad_sequence", lengths, rows.shape[0])
    return [rows[number, : int(length)] for number, length in enumerate(found)]


def pack_sequence(sequences: list[Tensor], enforce_sorted: bool = True) -> PackedSequence:
    """Pack sequences (length, ...); see `pack_padded_sequence`."""
    lengths = [part.shape[0] for part in sequences]
    return pack_padded_sequence(pad_sequence(sequences), lengths, enforce_sorted=enforce_sorted)


def unpack_sequence(packed_sequences: PackedSequence) -> list[Tensor]:
    """The sequences of a packed one, in their original order: the inverse of `pack_sequence`."""
    padded, lengths = pad_packed_sequence(packed_sequences, batch_first=True)
    return unpad_sequence(padded, lengths, batch_first=True)
