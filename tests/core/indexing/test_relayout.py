"""In-place changes of shape, strides and memory, and tensors made with given strides."""

import pytest

import resilin


@pytest.mark.parametrize(
    ("change", "shape"),
    [
        (lambda x: x.t_(), (3, 2)),
        (lambda x: x.transpose_(0, 1), (3, 2)),
        (lambda x: x.swapaxes_(0, 1), (3, 2)),
        (lambda x: x.swapdims_(0, -1), (3, 2)),
        (lambda x: x.unsqueeze_(1), (2, 1, 3)),
        (lambda x: x.unsqueeze_(0).squeeze_(0), (2, 3)),
        (lambda x: x.unsqueeze_(0).squeeze_(), (2, 3)),
        (lambda x: x.as_strided_((2, 2), (1, 2), 1), (2, 2)),
    ],
)
def test_a_tensor_becomes_its_view_over_the_same_memory(change, shape):
    x = resilin.arange(6.0).reshape(2, 3).clone()
    address, version = x.untyped_storage().data_ptr(), x._version
    assert change(x) is x
    assert x.shape == shape
    assert address <= x.data_ptr() < address + 24
    assert x._version > version


def test_backward_goes_through_a_change_of_layout():
    a = resilin.ones(2, 3, requires_grad=True)
    b = a * 2
    b.t_().unsqueeze_(0)
    (b * resilin.arange(6.0).reshape(1, 3, 2)).sum().backward()
    assert a.grad.tolist() == [[0.0, 4.0, 8.0], [2.0, 6.0, 10.0]]


def test_a_view_can_change_its_layout_and_still_be_written_through():
    a = resilin.ones(2, 3, requires_grad=True)
    b = a * 2
    v = b[:, :2]
    v.t_()
    v.mul_(resilin.tensor([[1.0, 2.0], [3.0, 4.0]]))
    b.sum().backward()
    assert a.grad.tolist() == [[2.0, 6.0, 2.0], [4.0, 8.0, 2.0]]


def test_a_leaf_that_requires_grad_keeps_its_layout():
    a = resilin.ones(2, 3, requires_grad=True)
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        a.t_()
    with resilin.no_grad():
        assert a.t_().shape == (3, 2)


def test_a_write_through_a_view_of_the_old_layout_is_refused_where_backward_would_follow_it():
    b = resilin.ones(2, 3, requires_grad=True) * 2
    row = b[0]
    b.t_()
    with pytest.raises(RuntimeError, match="another layout in place"):
        row.mul_(2)
    plain = resilin.zeros(2, 3)
    row = plain[0]
    plain.t_()
    row.fill_(1.0)
    assert plain[:, 0].tolist() == [1.0, 1.0, 1.0]


def test_resizing_keeps_the_first_elements():
    x = resilin.arange(6)
    assert x.resize_(2, 2).tolist() == [[0, 1], [2, 3]]
    assert x.resize_((3, 3)).reshape(-1)[:4].tolist() == [0, 1, 2, 3]
    assert x.resize_as_(resilin.zeros(2)).tolist() == [0, 1]
    assert resilin.arange(4).reshape(2, 2).t().resize_(4).tolist() == [0, 2, 1, 3]
    with pytest.raises(RuntimeError, match="require grad"):
        resilin.ones(2, requires_grad=True).resize_(3)
    with pytest.raises(RuntimeError, match="negative"):
        x.resize_(-1)


def test_set_shows_the_memory_of_another_tensor():
    source, x = resilin.arange(6), resilin.zeros(2, dtype=resilin.int64)
    x.set_(source)
    x[0] = 9
    assert source[0].item() == 9
    assert x.set_(source, 1, (2, 2), (2, 1)).tolist() == [[1, 2], [3, 4]]
    assert x.set_().shape == (0,)
    with pytest.raises(RuntimeError, match="expected a source of"):
        x.set_(resilin.zeros(2))


def test_tensors_are_made_with_the_strides_asked_for():
    assert resilin.empty_strided((2, 3), (1, 2)).stride() == (1, 2)
    assert resilin.empty_permuted((2, 3, 4), (0, 2, 1)).stride() == (12, 1, 3)
    assert resilin.ones(2).new_empty_strided((2, 2), (1, 2)).dim_order() == (1, 0)
    with pytest.raises(RuntimeError, match="mismatch in length"):
        resilin.empty_strided((2,), (1, 2))
    with pytest.raises(RuntimeError, match="name each of the 2 dimensions once"):
        resilin.empty_permuted((2, 3), (0, 0))


def test_tensors_over_one_memory_have_equal_storages():
    x = resilin.zeros(3, 4)
    assert x.untyped_storage() == x[1].untyped_storage()
    assert x.untyped_storage() != resilin.zeros(3, 4).untyped_storage()
    assert len(x[1].untyped_storage()) == x.untyped_storage().nbytes() == 48


def test_complex_views_share_memory_and_refuse_what_is_no_pair():
    x = resilin.zeros(3, 2)
    resilin.view_as_complex(x)[1] = 2 + 3j
    assert x[1].tolist() == [2.0, 3.0]
    resilin.view_as_real(resilin.view_as_complex(x))[0, 1] = 7.0
    assert x[0].tolist() == [0.0, 7.0]
    for bad, text in (
        (resilin.zeros(3), "size 2"),
        (resilin.zeros(2, 3).t(), "stride 1"),
        (resilin.zeros(()), "one or more dimensions"),
        (resilin.zeros(3, 3)[:, 1:], "divisible by 2"),
        (resilin.zeros(2, dtype=resilin.float16), "float32 and float64"),
    ):
        with pytest.raises(RuntimeError, match=text):
            resilin.view_as_complex(bad)
    with pytest.raises(RuntimeError, match="only supported for complex"):
        resilin.view_as_real(x)


def test_complex_numbers_keep_infinite_and_missing_parts():
    made = resilin.complex(resilin.tensor([1.0, float("inf")]), resilin.tensor([float("inf"), 0.0]))
    assert made.real.tolist() == [1.0, float("inf")]
    assert made.imag.tolist() == [float("inf"), 0.0]
    with pytest.raises(RuntimeError, match="one dtype"):
        resilin.complex(resilin.zeros(1), resilin.zeros(1, dtype=resilin.float64))
