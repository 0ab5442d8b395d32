"""Values of functions where a plain formula would overflow, wrap around or take what PyTorch 2.13 refuses."""

import math

import pytest

import resilin

inf, nan = math.inf, math.nan
SUMS = {
    "addmm": ([(2, 3), (3, 4)], (2, 4)),
    "addmv": ([(2, 3), (3,)], (2,)),
    "addr": ([(2,), (4,)], (2, 4)),
    "addbmm": ([(5, 2, 3), (5, 3, 4)], (2, 4)),
    "baddbmm": ([(5, 2, 3), (5, 3, 4)], (5, 2, 4)),
}


@pytest.mark.parametrize("name", SUMS)
def test_what_a_factor_of_zero_is_for_does_not_count(name):
    shapes, shape = SUMS[name]
    factors = [resilin.ones(s) for s in shapes]
    add, plain = getattr(resilin, name), getattr(resilin, name)(resilin.zeros(shape), *factors)
    input = resilin.full(shape, nan, requires_grad=True)
    result = add(input, *factors, beta=0)
    assert result.equal(plain)
    result.sum().backward()
    assert input.grad.equal(resilin.zeros(shape))
    spoiled = [factor * nan for factor in factors]
    assert add(resilin.ones(shape), *spoiled, alpha=0).equal(resilin.ones(shape))


@pytest.mark.parametrize("name", SUMS)
def test_what_is_added_to_a_product_does_not_widen_it(name):
    shapes, shape = SUMS[name]
    with pytest.raises(RuntimeError, match="does not broadcast to the shape"):
        getattr(resilin, name)(resilin.zeros(7, *shape), *map(resilin.ones, shapes))


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("mv", [(2, 3), (3, 4)]),
        ("addmv", [(2,), (2, 3), (3, 4)]),
        ("addmm", [(2,), (2, 3), (3,)]),
        ("baddbmm", [(2, 4), (2, 3), (3, 4)]),
    ],
)
def test_products_refuse_operands_of_other_ranks(name, shapes):
    with pytest.raises(RuntimeError, match="expected"):
        getattr(resilin, name)(*map(resilin.ones, shapes))


def test_tensordot_refuses_dimensions_that_are_not_there():
    with pytest.raises(RuntimeError, match="dims=-1"):
        resilin.tensordot(resilin.ones(2, 3), resilin.ones(3, 2), dims=-1)
    with pytest.raises(IndexError, match="out of range"):
        resilin.tensordot(resilin.ones(2, 3), resilin.ones(3), dims=[[0], [1]])
    with pytest.raises(RuntimeError, match="one length"):
        resilin.tensordot(resilin.ones(2, 3), resilin.ones(3, 2), dims=[[0, 1], [1]])


def test_a_number_without_dimensions_has_no_second_one_to_transpose():
    assert resilin.tensor(1.0).transpose(0, -1).item() == 1
    with pytest.raises(IndexError, match="out of range"):
        resilin.tensor(1.0).transpose_(0, 1)


def test_a_complex_number_is_true_when_either_part_differs_from_zero():
    assert resilin.tensor([1j, 0, 1]).bool().tolist() == [True, False, True]
    assert resilin.tensor([1j]).to(resilin.bool).item()


def test_narrow_integers_do_not_wrap_around_inside_functions():
    bytes_ = resilin.tensor([200], dtype=resilin.uint8)
    assert resilin.addcmul(resilin.zeros(1), bytes_, bytes_).item() == 40000
    assert resilin.tensor([3], dtype=resilin.uint8).logit().isnan().item()
    assert resilin.tensor([-128], dtype=resilin.int8).logit().isnan().item()
    assert resilin.trapezoid(resilin.tensor([0, 3, 255], dtype=resilin.uint8)).item() == 130.5
    assert resilin.trapezoid(resilin.tensor([100, 100], dtype=resilin.int8)).item() == 100


def test_the_angle_of_real_numbers_is_zero_or_pi():
    found = resilin.angle(resilin.tensor([-2, 3]))
    assert found.dtype is resilin.float32
    assert found.tolist() == pytest.approx([math.pi, 0])
    found = resilin.angle(resilin.tensor([-0.0, -inf, nan]))
    assert found.tolist() == pytest.approx([0, math.pi, nan], nan_ok=True)


def test_equal_complex_numbers_are_added_under_the_logarithm():
    assert resilin.logaddexp(resilin.tensor([0j]), resilin.tensor([0j])).item() == pytest.approx(math.log(2))
    lost = resilin.tensor([complex(-inf, 0)])
    assert resilin.logaddexp(lost, lost).item().real == -inf


def test_logaddexp2_computes_in_the_common_floating_dtype():
    found = resilin.logaddexp2(resilin.tensor([50]), resilin.tensor([0.0], dtype=resilin.float64))
    assert found.dtype is resilin.float64
    assert found.item() == pytest.approx(50, abs=1e-13)


def test_infinite_ends_are_met_by_interpolation():
    assert resilin.lerp(resilin.tensor(inf), resilin.tensor(1.0), 0.5).item() == inf
    assert resilin.tensor([-inf, 1.0, 2.0]).quantile(0.25).item() == -inf
    assert resilin.tensor([-inf, 1.0, nan, 2.0]).nanquantile(0.25).item() == -inf


def test_lerp_has_the_gradients_of_its_formula_on_both_sides_of_the_middle():
    start, end = resilin.tensor([1.0, 2.0], requires_grad=True), resilin.tensor([5.0, 9.0], requires_grad=True)
    weight = resilin.tensor([0.25, 0.75], requires_grad=True)
    value = resilin.lerp(start, end, weight)
    assert value.tolist() == [2, 7.25]
    value.sum().backward()
    assert start.grad.tolist() == [0.75, 0.25]
    assert end.grad.tolist() == [0.25, 0.75]
    assert weight.grad.tolist() == [4, 7]


def test_ldexp_overflows_only_where_its_result_does():
    x = resilin.tensor([2.0**-100, 0.0, 1.0, 2.0**-149])
    found = resilin.ldexp(x, resilin.tensor([200, 5000, 5000, 276]))
    assert found.tolist() == [2.0**100, 0, inf, 2.0**127]
