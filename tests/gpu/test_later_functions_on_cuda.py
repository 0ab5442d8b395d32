"""Functions of the namespace that came late give on the device what they give on the CPU, and stay on it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import resilin
from resilin import array_api as xp


def _signal() -> Any:
    return resilin.arange(24.0, dtype=resilin.float64).sin()


def _matrix() -> Any:
    return resilin.arange(12.0, dtype=resilin.float64).reshape(3, 4).cos()


def _whole() -> Any:
    return resilin.tensor([[3, 1, 3], [0, 2, 0], [3, 1, 3]])


def _complex() -> Any:
    return resilin.complex(_matrix(), _matrix().flip(0))


def _window(x: Any) -> Any:
    return resilin.hann_window(8, dtype=resilin.float64, device=x.device)


def _spectra(x: Any) -> Any:
    return resilin.stft(x, 8, window=_window(x), return_complex=True)


CALLS: dict[str, tuple[Any, Any]] = {
    "unique": (_whole, lambda x: resilin.unique(x, return_inverse=True, return_counts=True)),
    "unique along a dimension": (_whole, lambda x: resilin.unique(x, dim=0, return_inverse=True)),
    "unique_consecutive": (_whole, lambda x: resilin.unique_consecutive(x, return_counts=True)),
    "nonzero_static": (_whole, lambda x: resilin.nonzero_static(x, size=9)),
    "isin": (_whole, lambda x: resilin.isin(x, 3)),
    "histogramdd": (_matrix, lambda x: resilin.histogramdd(x[:, :2], 2).hist),
    "diff": (_matrix, lambda x: resilin.diff(x, 2, append=x[:, :1])),
    "tensor_split": (_matrix, lambda x: resilin.tensor_split(x, (2, 3), 1)),
    "meshgrid": (_matrix, lambda x: resilin.meshgrid(x[0], x[1], indexing="xy")),
    "hstack": (_matrix, lambda x: resilin.hstack([x, x[:, :1]])),
    "column_stack": (_matrix, lambda x: resilin.column_stack([x, x[:, 0]])),
    "repeat_interleave": (_matrix, lambda x: resilin.repeat_interleave(x, 2, 1)),
    "take_along_dim": (_matrix, lambda x: resilin.take_along_dim(x, x.argmax(1, keepdim=True), 1)),
    "flip": (_matrix, lambda x: resilin.flip(x, dims=(0, 1))),
    "roll": (_matrix, lambda x: resilin.roll(x, (1, -1), (0, 1))),
    "norm": (_matrix, lambda x: resilin.norm(x, p="nuc")),
    "view of another dtype": (_matrix, lambda x: x.view(resilin.int64)),
    "channels last": (_matrix, lambda x: x.reshape(1, 3, 2, 2).to(memory_format=resilin.channels_last)),
    "stft": (_signal, lambda x: resilin.stft(x, 8, window=_window(x), return_complex=True)),
    "istft": (_signal, lambda x: resilin.istft(_spectra(x), 8, window=_window(x))),
    "view_as_real": (_complex, resilin.view_as_real),
    "view_as_complex": (_matrix, lambda x: resilin.view_as_complex(x.reshape(3, 2, 2))),
    "polar": (_matrix, lambda x: resilin.polar(x, x)),
    "slice_copy": (_matrix, lambda x: resilin.slice_copy(x, 1, 1, 4, 2)),
    "unbind_copy": (_matrix, resilin.unbind_copy),
    "fill": (_matrix, lambda x: resilin.fill(x, 2.0)),
    "t_": (_matrix, lambda x: x.clone().t_()),
    "resize_": (_matrix, lambda x: x.clone().resize_(2, 2)),
    "resize_ to more": (_matrix, lambda x: x.clone().resize_(20)[:12]),
    "set_": (_matrix, lambda x: x.new_empty(0).set_(x, 1, (2, 2), (4, 1))),
    "svd_lowrank": (_matrix, lambda x: resilin.svd_lowrank(x, q=3)[1]),
    "lu_unpack": (_matrix, lambda x: resilin.lu_unpack(*resilin.lu(x[:, :3]))),
    "the standard's unique_all": (_whole, xp.unique_all),
    "the standard's sum": (_matrix, lambda x: xp.sum(x, axis=())),
    "the standard's copysign": (_matrix, lambda x: xp.copysign(-1.0, x)),
    "the standard's clip": (_matrix, lambda x: xp.clip(x, xp.zeros_like(x), 0.5)),
    "the standard's take": (_matrix, lambda x: xp.take(x, xp.asarray([2, -1], device=x.device), axis=1)),
    "the standard's take_along_axis": (_matrix, lambda x: xp.take_along_axis(x, xp.argsort(x, axis=1), axis=1)),
    "the standard's vecdot": (_complex, lambda x: xp.vecdot(x, x)),
    "the standard's cumulative_sum": (_matrix, lambda x: xp.cumulative_sum(x, axis=1, include_initial=True)),
}


def _flat(value: Any) -> list[Any]:
    return [part for item in value for part in _flat(item)] if isinstance(value, tuple | list) else [value]


@pytest.mark.parametrize("name", CALLS)
def test_a_function_gives_what_it_gives_on_the_cpu(cuda: Any, name: str) -> None:
    make, call = CALLS[name]
    expected, found = _flat(call(make())), _flat(call(make().to("cuda")))
    assert len(found) == len(expected)
    for y, e in zip(found, expected, strict=True):
        assert y.device.type == "cuda"
        np.testing.assert_allclose(y.cpu().numpy(), e.numpy(), rtol=1e-12, atol=1e-12)
