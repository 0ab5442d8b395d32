"""Arguments by name, and options that functions of one kind share, as programs for PyTorch give them."""

import pickle

import pytest

import resilin


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (lambda: resilin.arange(0, 10, step=4), [0, 4, 8]),
        (lambda: resilin.arange(5, step=2), [0, 2, 4]),
        (lambda: resilin.arange(end=3), [0, 1, 2]),
        (lambda: resilin.arange(1, end=3), [1, 2]),
        (lambda: resilin.arange(start=3, end=1, step=-1), [3, 2]),
        (lambda: resilin.arange(resilin.tensor(2)), [0, 1]),
        (lambda: resilin.linspace(resilin.tensor(0.0), 1, steps=3), [0.0, 0.5, 1.0]),
    ],
)
def test_a_range_takes_its_numbers_by_place_or_by_name(made, expected):
    assert made().tolist() == expected


@pytest.mark.parametrize("bad", [{}, {"start": 1}, {"start": 1, "step": 2}])
def test_a_range_needs_an_end(bad):
    with pytest.raises(TypeError, match="arange"):
        resilin.arange(**bad)


def test_a_range_takes_each_number_once():
    with pytest.raises(TypeError, match="each number once"):
        resilin.arange(1, 5, end=3)


def test_random_integers_take_bounds_and_size_by_name():
    for made in (
        resilin.randint(high=5, size=(20,)),
        resilin.randint(low=0, high=5, size=(20,)),
        resilin.randint(0, high=5, size=(20,)),
        resilin.randint(5, (20,)),
        resilin.randint_like(resilin.zeros(20, dtype=resilin.int64), high=5),
    ):
        assert made.shape == (20,)
        assert int(made.min()) >= 0
        assert int(made.max()) < 5
    with pytest.raises(TypeError, match="randint"):
        resilin.randint(5)


@pytest.mark.parametrize("name", ["zeros", "ones", "empty", "rand", "randn"])
def test_a_shape_can_be_given_by_name(name):
    assert getattr(resilin, name)(size=(2, 3)).shape == (2, 3)


def test_reordering_functions_take_their_dimensions_by_name():
    x = resilin.arange(6).reshape(2, 3)
    assert resilin.flip(x, dims=[1]).tolist() == [[2, 1, 0], [5, 4, 3]]
    assert resilin.permute(x, dims=(1, 0)).shape == (3, 2)
    assert resilin.reshape(x, shape=(3, 2)).shape == (3, 2)
    assert x.view(size=(6,)).shape == (6,)
    assert x.expand(size=(4, 2, 3)).shape == (4, 2, 3)
    assert x.repeat(repeats=(2, 1)).shape == (4, 3)
    assert resilin.tile(x, dims=(2,)).shape == (2, 6)
    assert resilin.swapaxes(x, axis0=0, axis1=1).shape == (3, 2)
    with pytest.raises(RuntimeError, match="twice"):
        resilin.flip(x, (0, -2))


def test_operands_are_named_as_in_pytorch():
    x = resilin.tensor([1.0, 4.0])
    assert resilin.sqrt(input=x).tolist() == [1.0, 2.0]
    assert resilin.maximum(input=x, other=x.flip(0)).tolist() == [4.0, 4.0]
    assert resilin.mul(x, other=2).tolist() == [2.0, 8.0]
    assert x.eq(other=4).tolist() == [False, True]


def test_functions_that_make_tensors_take_the_common_options():
    for make in (resilin.zeros, resilin.ones, resilin.empty, resilin.rand, resilin.randn):
        assert make(2, layout=resilin.strided, pin_memory=True).shape == (2,)
    with pytest.raises(NotImplementedError, match="strided"):
        resilin.zeros(2, layout="sparse_coo")


def test_tensors_like_another_take_the_same_options():
    x = resilin.zeros(2, dtype=resilin.float64)
    assert x.new_zeros(size=(2, 3)).dtype is resilin.float64
    assert x.new_full((2,), 1, requires_grad=True, layout=resilin.strided).requires_grad
    assert x.new_tensor([1], requires_grad=True, pin_memory=False).tolist() == [1.0]
    assert x.new_ones(2, dtype=resilin.int8, pin_memory=True).dtype is resilin.int8
    assert pickle.loads(pickle.dumps((resilin.strided, resilin.channels_last))) == (
        resilin.strided,
        resilin.channels_last,
    )


def test_a_device_is_the_default_inside_its_block_and_set_default_device_outside():
    with resilin.device("sim:1"):
        assert str(resilin.zeros(2).device) == "sim:1"
        assert str(resilin.rand(2).device) == "sim:1"
        with resilin.device("cpu"):
            assert str(resilin.tensor(1).device) == "cpu"
    resilin.set_default_device("sim:2")
    try:
        assert resilin.get_default_device() == resilin.device("sim:2")
        assert str(resilin.arange(2).device) == "sim:2"
    finally:
        resilin.set_default_device(None)
    assert str(resilin.ones(2).device) == "cpu"


def test_channels_last_is_an_order_in_memory_that_changes_no_value():
    x = resilin.randn(2, 3, 4, 5)
    last = x.to(memory_format=resilin.channels_last)
    assert last.stride() == (60, 1, 15, 3)
    assert resilin.equal(last, x)
    assert last.contiguous(memory_format=resilin.channels_last) is last
    assert last.contiguous().stride() == x.stride()
    assert resilin.empty_like(x, memory_format=resilin.channels_last).stride() == last.stride()
    with pytest.raises(RuntimeError, match="rank 4"):
        resilin.zeros(2).contiguous(memory_format=resilin.channels_last)


def test_a_view_of_another_dtype_reads_the_same_bytes():
    x = resilin.tensor([[1.0, 2.0], [3.0, 4.0]])
    bits = x.view(resilin.int32)
    assert bits[0, 0].item() == 0x3F800000
    bits[0, 0] = 0x40000000
    assert x[0, 0].item() == 2.0
    assert x.view(resilin.uint8).shape == (2, 8)
    assert x.view(resilin.uint8).view(resilin.float32).tolist() == x.tolist()
    with pytest.raises(RuntimeError, match="8 bytes only in a last dimension"):
        x.t().view(resilin.float64)


def test_tensors_split_at_indices_in_any_order_and_at_most_into_empty_parts():
    x = resilin.arange(5)
    assert [part.tolist() for part in resilin.tensor_split(x, [3, 1])] == [[0, 1, 2], [], [1, 2, 3, 4]]
    assert [part.tolist() for part in x.tensor_split(sections=2)] == [[0, 1, 2], [3, 4]]
    with pytest.raises(RuntimeError, match="larger than 0"):
        resilin.tensor_split(x, 0)


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda x: resilin.roll(x, (1, 2)), RuntimeError, "must align"),
        (lambda x: resilin.movedim(x, (0, 1), (1,)), RuntimeError, "as many dims"),
        (lambda x: resilin.diag(x[0, 0]), RuntimeError, "Got 0D"),
        (lambda x: resilin.tril(x[0]), RuntimeError, "at least 2 dimensions"),
        (lambda x: resilin.repeat_interleave(x, -1), RuntimeError, "non-negative"),
        (lambda x: resilin.repeat_interleave(x, resilin.tensor([1, 2, 3]), 0), RuntimeError, "same size as input"),
        (lambda x: resilin.cat(x), TypeError, "tuple or list of Tensors"),
        (lambda x: resilin.hstack([]), RuntimeError, "non-empty"),
        (lambda x: resilin.outer(x, x), RuntimeError, "1-D"),
        (lambda x: resilin.masked_fill(x, x > 0, x), RuntimeError, "0-dimensional value"),
        (lambda x: resilin.where(x.long(), 1.0, 2.0), RuntimeError, "boolean tensor"),
        (lambda x: resilin.isclose(x, x.double()), RuntimeError, "one dtype"),
        (lambda x: resilin.allclose(x, x[:, :2].t()), RuntimeError, "cannot be broadcast"),
        (lambda x: resilin.add(x.long(), 1, alpha=0.5), RuntimeError, "alpha"),
        (lambda x: resilin.norm(x, p="zz"), RuntimeError, "order 'zz'"),
        (lambda x: resilin.arange(0, float("inf")), RuntimeError, "unsupported range"),
        (lambda x: resilin.bincount(x[0].long() + 2, minlength=-1), RuntimeError, "minlength"),
        (lambda x: resilin.unique(x[0, 0], dim=0), IndexError, "no dimensions"),
        (lambda x: resilin.set_float32_matmul_precision("low"), ValueError, "highest"),
        (lambda x: resilin.set_num_interop_threads(0), RuntimeError, "positive"),
    ],
)
def test_arguments_that_do_not_fit_raise_pytorchs_type_of_error(call, kind, text):
    with pytest.raises(kind, match=text):
        call(resilin.arange(6.0).reshape(2, 3))


def test_indices_along_a_dimension_broadcast_over_the_others():
    x = resilin.arange(6.0).reshape(2, 3).requires_grad_()
    found = resilin.take_along_dim(x, resilin.tensor([[2]]), 1)
    assert found.tolist() == [[2.0], [5.0]]
    found.sum().backward()
    assert x.grad.tolist() == [[0.0, 0.0, 1.0], [0.0, 0.0, 1.0]]


def test_a_number_between_integers_is_searched_as_it_is():
    assert resilin.searchsorted(resilin.tensor([1, 3, 5]), 3.5).item() == 2


def test_the_nuclear_norm_is_the_sum_of_singular_values():
    x = resilin.tensor([[3.0, 0.0], [0.0, -4.0]], requires_grad=True)
    total = resilin.norm(x, p="nuc")
    total.backward()
    assert total.item() == pytest.approx(7.0)
    assert resilin.allclose(x.grad, resilin.tensor([[1.0, 0.0], [0.0, -1.0]]), atol=1e-6)
    assert resilin.norm(x, p="nuc", dim=(0, 1), keepdim=True).shape == (1, 1)


def test_numpys_names_of_arguments_are_taken_wherever_a_dimension_is():
    x = resilin.arange(6.0).reshape(2, 3)
    assert resilin.cat([x, x], axis=1).shape == (2, 6)
    assert resilin.stack([x, x], axis=1).shape == (2, 2, 3)
    assert x.std(axis=0, keepdims=True).shape == (1, 3)
    assert resilin.unsqueeze(x, axis=0).squeeze(axis=0).shape == (2, 3)
    assert resilin.softmax(x, axis=1).sum(axis=1).tolist() == pytest.approx([1.0, 1.0])
    assert resilin.sort(x, axis=0).indices.shape == x.cumsum(axis=0).shape
    with pytest.raises(TypeError, match="both 'dim' and 'axis'"):
        resilin.cat([x, x], dim=0, axis=0)


def test_a_tensor_of_nothing_is_an_empty_vector():
    assert resilin.Tensor().shape == (0,)


def test_max_and_min_take_the_other_tensor_by_name():
    x, y = resilin.tensor([3.0, 2.0]), resilin.tensor([1.0, 9.0])
    assert x.max(other=y).tolist() == [3, 9]
    assert resilin.min(x, other=y).tolist() == [1, 2]
    with pytest.raises(TypeError, match="expected a Tensor as other, got int"):
        x.max(other=3)
