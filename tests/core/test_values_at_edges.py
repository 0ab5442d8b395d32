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


ROWS, TWO = resilin.tensor([[0, 1], [1, 2]]), resilin.tensor([0, 1])
WRONG_PLACES = {
    "scatter of a vector of indices": lambda x: x.scatter(0, TWO, 1.0),
    "scatter with less than the indices": lambda x: x.scatter(0, ROWS, resilin.ones(1, 2)),
    "scatter beyond other dimensions": lambda x: x.scatter(0, resilin.tensor([[0, 1, 2]]), 1.0),
    "scatter of a tensor without dimensions": lambda x: x.scatter(0, ROWS, resilin.tensor(1.0)),
    "scatter_add with less than the indices": lambda x: x.scatter_add(0, ROWS, resilin.ones(1, 2)),
    "scatter_add of a vector": lambda x: x.scatter_add(0, TWO, resilin.ones(2)),
    "scatter_reduce of a vector": lambda x: x.scatter_reduce(0, ROWS, resilin.ones(2), "sum"),
    "index_add of a vector": lambda x: x.index_add(0, TWO, resilin.ones(2)),
    "index_add of fewer slices": lambda x: x.index_add(0, TWO, resilin.ones(1, 2)),
    "index_add of shorter slices": lambda x: x.index_add(0, TWO, resilin.ones(2, 1)),
    "index_reduce of more slices": lambda x: x.index_reduce(0, TWO, resilin.ones(3, 2), "prod"),
    "index_reduce of shorter slices": lambda x: x.index_reduce(0, TWO, resilin.ones(2, 1), "prod"),
    "index_fill with a vector": lambda x: x.index_fill(0, TWO, resilin.ones(1)),
}


@pytest.mark.parametrize("write", WRONG_PLACES.values(), ids=WRONG_PLACES)
def test_nothing_is_spread_over_places_that_it_does_not_fit(write):
    with pytest.raises(RuntimeError, match=r"expected index|need a source of shape|without dimensions"):
        write(resilin.zeros(3, 2))


@pytest.mark.parametrize("name", ["index_add", "index_copy", "index_fill", "index_reduce", "index_select"])
def test_slices_are_chosen_by_vectors(name):
    rest = {"index_fill": (1.0,), "index_select": (), "index_reduce": (resilin.ones(2, 2), "prod")}
    with pytest.raises(IndexError, match="supposed to be a vector"):
        getattr(resilin.zeros(3, 2), name)(0, resilin.tensor([[0, 1]]), *rest.get(name, (resilin.ones(2, 2),)))


def test_an_empty_index_of_any_dimensions_writes_nothing():
    none = resilin.zeros(0, dtype=resilin.int64)
    assert resilin.zeros(3, 2).scatter(0, none, 1.0).sum().item() == 0
    assert resilin.zeros(3, 2).scatter_add(0, none, resilin.ones(3)).sum().item() == 0


def test_vectors_are_scattered_into_at_a_number():
    assert resilin.zeros(3).scatter(0, resilin.tensor(1), resilin.tensor(5.0)).tolist() == [0, 5, 0]


FIRST = resilin.tensor([0])
WRONG_DTYPES = {
    "index_put": lambda x, v: x.index_put((FIRST,), v),
    "put": lambda x, v: x.put(FIRST, v),
    "index_copy": lambda x, v: x.index_copy(0, FIRST, v),
    "index_add": lambda x, v: x.index_add(0, FIRST, v),
    "scatter": lambda x, v: x.scatter(0, FIRST, v),
    "scatter_add": lambda x, v: x.scatter_add(0, FIRST, v),
    "scatter_reduce": lambda x, v: x.scatter_reduce(0, FIRST, v, "sum"),
}


@pytest.mark.parametrize("write", WRONG_DTYPES.values(), ids=WRONG_DTYPES)
def test_what_is_written_at_places_has_the_dtype_of_where_it_goes(write):
    for x, value in [(resilin.arange(3), 0.5), (resilin.zeros(3), 1j), (resilin.zeros(3), 1)]:
        with pytest.raises(RuntimeError, match="need one dtype"):
            write(x, resilin.tensor([value]))


WRONG_NUMBERS = {
    "scatter": lambda: resilin.arange(5).scatter(0, TWO, nan),
    "scatter by addition": lambda: resilin.arange(5).scatter(0, TWO, nan, reduce="add"),
    "index_fill": lambda: resilin.zeros(5).index_fill(0, TWO, 1j),
    "masked_fill": lambda: resilin.zeros(2).masked_fill(resilin.tensor([True, False]), 1j),
    "masked_fill of integers": lambda: resilin.arange(2).masked_fill(resilin.tensor([True, False]), -inf),
    "full": lambda: resilin.full((2,), 1j, dtype=resilin.int32),
    "full_like": lambda: resilin.full_like(resilin.arange(2), inf),
}


@pytest.mark.parametrize("make", WRONG_NUMBERS.values(), ids=WRONG_NUMBERS)
def test_numbers_that_a_dtype_cannot_hold_are_refused(make):
    with pytest.raises(RuntimeError, match="cannot be converted to resilin"):
        make()


@pytest.mark.parametrize("data", [None, "a", "3.5", b"3", [None, 1.0], [1, "2"], [[1j]]])
@pytest.mark.parametrize("dtype", [resilin.float32, resilin.int64])
def test_tensors_of_a_dtype_are_made_of_numbers_that_it_has(data, dtype):
    with pytest.raises(TypeError, match="cannot make a tensor of dtype"):
        resilin.tensor(data, dtype=dtype)


def test_spaces_between_complex_ends_are_complex():
    assert resilin.linspace(1j, 2, 3).tolist() == [1j, 1 + 0.5j, 2]
    assert resilin.logspace(1j, 2, 3).dtype is resilin.complex64
    with pytest.raises(RuntimeError, match="complex values do not fit"):
        resilin.linspace(1j, 2, 3, dtype=resilin.float32)


@pytest.mark.parametrize("end", [2**62, 2**63, -(2**70)])
def test_ranges_beyond_memory_or_int64_are_refused(end):
    with pytest.raises(RuntimeError, match="more than memory or int64 can hold"):
        resilin.arange(0, end, 1 if end > 0 else -1)


def test_windows_of_a_number_are_taken_from_it_as_a_vector():
    assert resilin.tensor(2.5).unfold(0, 1, 1).tolist() == [2.5]
    assert resilin.tensor(2.5).unfold(0, 0, 1).shape == (0,)


ENDLESS = {
    "vander": lambda: resilin.vander(resilin.ones(3), N=10**13),
    "vander beyond counting": lambda: resilin.vander(resilin.ones(3), N=10**19),
    "combinations": lambda: resilin.combinations(resilin.arange(100), 20),
    "combinations that memory cannot hold": lambda: resilin.combinations(resilin.arange(10**5), 3),
    "combinations with replacement": lambda: resilin.combinations(resilin.arange(100), 20, with_replacement=True),
}


@pytest.mark.parametrize("make", ENDLESS.values(), ids=ENDLESS)
def test_results_that_memory_cannot_hold_are_refused_at_once(make):
    with pytest.raises(RuntimeError, match=r"more elements than any memory|not enough memory"):
        make()


def test_vander_has_the_gradients_of_powers_at_zero_too():
    x = resilin.tensor([0.0, 2.0], requires_grad=True)
    powers = resilin.vander(x, N=4, increasing=True)
    assert powers.tolist() == [[1, 0, 0, 0], [1, 2, 4, 8]]
    powers.sum().backward()
    assert x.grad.tolist() == [1, 1 + 4 + 12]
    assert resilin.vander(resilin.tensor([3], dtype=resilin.int8), N=7)[0, 0].item() == 729
    assert resilin.vander(resilin.tensor([3.0]), N=1).tolist() == [[1]]


def test_an_empty_dimension_is_cut_into_as_many_parts_as_are_asked_for():
    assert [part.shape for part in resilin.zeros(0, 3).chunk(3)] == [(0, 3)] * 3
    assert [part.shape for part in resilin.zeros(2, 0).chunk(2, 1)] == [(2, 0)] * 2


def test_all_and_any_over_no_dimension_look_at_each_element():
    x = resilin.tensor([[0.0, 2.0]])
    for reduce in (resilin.all, resilin.any):
        assert reduce(x, ()).tolist() == [[False, True]]
        assert reduce(x, [], keepdim=True).tolist() == [[False, True]]


def test_nan_is_below_the_step_and_never_the_same_number_twice():
    assert resilin.heaviside(resilin.tensor([nan, 0, 1]), resilin.tensor(0.5)).tolist() == [0, 0.5, 1]
    assert resilin.tensor([nan, nan, 1.0]).mode().values.item() == 1
    assert resilin.tensor([nan, 1.0, 1.0]).mode().values.item() == 1


@pytest.mark.parametrize("correction", [-1, 0, 1])
def test_nothing_has_no_spread(correction):
    assert resilin.zeros(0).std(correction=correction).isnan().item()
    assert resilin.zeros(0, 2).var(0, correction=correction).isnan().all().item()


@pytest.mark.parametrize("dtype", [resilin.float16, resilin.bfloat16])
def test_half_precision_is_rounded_to_more_places_than_it_has(dtype):
    found = resilin.tensor([1.5, 1000.0], dtype=dtype).round(decimals=20)
    assert found.dtype is dtype
    assert found.tolist() == [1.5, 1000]
