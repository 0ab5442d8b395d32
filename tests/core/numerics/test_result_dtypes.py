"""The dtypes of results: single numbers, bools, bytes, joined and counted tensors."""

import pytest

import resilin
from resilin.nn import functional as F


def test_pythons_types_are_dtypes_of_their_precision():
    kinds = [resilin.zeros(1, dtype=kind).dtype for kind in (bool, int, float, complex)]
    assert kinds == [resilin.bool, resilin.int64, resilin.float64, resilin.complex128]
    assert resilin.ones(1).to(float).dtype is resilin.float64
    assert resilin.where(resilin.tensor([True]), 1.0, 0.0).dtype is resilin.float32


@pytest.mark.parametrize("kind", [resilin.float16, resilin.float32])
def test_a_single_number_does_not_widen_what_it_limits_fills_or_weighs(kind):
    x, one = resilin.ones(2, dtype=kind), resilin.tensor(1.0, dtype=resilin.float64)
    made = [
        x.masked_fill(resilin.tensor([True, False]), one),
        x.clamp(one),
        x.clamp(max=one),
        x.lerp(x, one),
        x.add(x, alpha=one),
        x.addcmul(x, x, value=one),
        x.addcdiv(x, x, value=one),
    ]
    assert [y.dtype for y in made] == [kind] * len(made)


def test_a_single_number_of_a_higher_kind_decides_the_dtype_of_limits_but_not_of_a_filled_tensor():
    x = resilin.tensor([1, 4])
    assert x.clamp(max=resilin.tensor(2.5)).tolist() == [1, 2.5]
    assert x.masked_fill(resilin.tensor([True, False]), resilin.tensor(7.5)).tolist() == [7, 4]
    assert x.masked_fill(resilin.tensor([True, False]), resilin.tensor(7.5)).dtype is resilin.int64


def test_bytes_are_tested_to_bytes():
    x = resilin.tensor([[2, 0]], dtype=resilin.uint8)
    assert x.any().dtype is x.all(1).dtype is resilin.uint8
    assert (x.any().item(), x.all().item()) == (1, 0)
    assert resilin.array_api.any(x).dtype is resilin.bool


def test_empty_tensors_give_their_dtype_to_what_they_are_joined_with():
    assert resilin.cat([resilin.tensor([1]), resilin.zeros(0)]).dtype is resilin.float32
    assert resilin.cat([resilin.zeros(0, dtype=resilin.float64), resilin.ones(2, 2)]).dtype is resilin.float64


def test_counts_weighed_in_float32_are_float32():
    x = resilin.tensor([0, 1, 1])
    assert resilin.bincount(x, resilin.tensor([0.5, 1, 2])).tolist() == [0.5, 3]
    kinds = [resilin.bincount(x, resilin.ones(3, dtype=k)).dtype for k in (resilin.float32, resilin.float16)]
    assert kinds == [resilin.float32, resilin.float64]


def test_bools_go_along_with_numbers_but_not_alone():
    yes = resilin.tensor([True])
    assert resilin.gcd(resilin.tensor([4]), yes).tolist() == [1]
    assert resilin.lcm(resilin.tensor([4]), yes).tolist() == [4]
    assert resilin.nextafter(resilin.tensor([1.0]), yes).tolist() == [1]
    with pytest.raises(NotImplementedError, match="bool"):
        resilin.gcd(yes, yes)


def test_the_type_of_a_result_does_not_ask_for_shapes():
    assert resilin.result_type(resilin.ones(2), resilin.ones(3, dtype=resilin.float64)) is resilin.float64
    assert resilin.result_type(1, 2.5) is resilin.float32
    assert resilin.result_type(resilin.ones(2, dtype=resilin.float16), 2.5) is resilin.float16


@pytest.mark.parametrize("kind", [resilin.float16, resilin.bfloat16])
def test_narrow_floats_are_counted_into_bins(kind):
    found = resilin.histc(resilin.tensor([1.0, 2, 2, 3], dtype=kind), 3)
    assert found.dtype is kind
    assert found.tolist() == [1, 2, 1]


def test_integers_and_bools_keep_or_widen_their_dtype():
    whole, flags = resilin.tensor([-3, 0, 3]), resilin.tensor([True, False])
    assert F.hardtanh(whole).tolist() == [-1, 0, 1]
    assert F.hardtanh(whole).dtype is resilin.int64
    assert flags.square().dtype is resilin.int64
    assert flags.clamp(-0.5, 0.5).dtype is resilin.float32


def test_logaddexp2_computes_in_the_common_floating_dtype():
    found = resilin.logaddexp2(resilin.tensor([50]), resilin.tensor([0.0], dtype=resilin.float64))
    assert found.dtype is resilin.float64
    assert found.item() == pytest.approx(50, abs=1e-13)


def test_spaces_between_complex_ends_are_complex():
    assert resilin.linspace(1j, 2, 3).tolist() == [1j, 1 + 0.5j, 2]
    assert resilin.logspace(1j, 2, 3).dtype is resilin.complex64
    with pytest.raises(RuntimeError, match="complex values do not fit"):
        resilin.linspace(1j, 2, 3, dtype=resilin.float32)
