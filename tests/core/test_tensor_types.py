"""PyTorch's older types of tensors: called, asked by isinstance, given to `type`. Values are those of PyTorch 2.13."""

import pickle

import numpy as np
import pytest

import resilin as torch

NAMES = "BFloat16 Bool Byte Char Double Float Half Int Long Short".split()  # noqa: SIM905 - as PyTorch lists them


@pytest.mark.parametrize("word", NAMES)
def test_a_type_knows_its_tensors_and_they_its_name(word):
    kind, other = getattr(torch, f"{word}Tensor"), torch.IntTensor if word != "Int" else torch.FloatTensor
    made = kind([1, 0])
    assert made.type() == f"torch.{word}Tensor"
    assert torch.typename(made) == made.type()
    assert made.dtype is kind.dtype
    assert isinstance(made, kind)
    assert isinstance(torch.nn.Parameter(made, requires_grad=False), kind)
    assert not isinstance(made, other)
    assert not isinstance(made, getattr(torch.cuda, f"{word}Tensor"))
    assert not isinstance(3, kind)
    assert torch.ones(2, dtype=torch.complex64).type(kind).dtype is kind.dtype
    assert torch.zeros(2).type(made.type()).dtype is kind.dtype
    assert pickle.loads(pickle.dumps(kind)) is kind


@pytest.mark.parametrize(
    ("given", "shape", "values"),
    [
        ((), (0,), []),
        ((2, 3), (2, 3), None),
        ((torch.Size([2, 3]),), (2, 3), None),
        (([1, 2],), (2,), [1.0, 2.0]),
        (((2, 3),), (2,), [2.0, 3.0]),
        ((np.array([1, 2]),), (2,), [1.0, 2.0]),
        (([],), (0,), []),
        (([[1.5], [2]],), (2, 1), [[1.5], [2.0]]),
    ],
)
def test_a_type_makes_tensors_of_lengths_and_of_data(given, shape, values):
    made = torch.FloatTensor(*given)
    assert (made.shape, made.dtype) == (shape, torch.float32)
    assert values is None or made.tolist() == values


def test_numbers_are_cut_wrapped_and_refused_as_by_tensor():
    assert torch.LongTensor([1.5, 2]).tolist() == [1, 2]
    assert torch.ByteTensor([-1]).tolist() == [255]
    with pytest.raises(RuntimeError, match="overflow"):
        torch.ByteTensor([300])


def test_a_tensor_of_the_type_shares_its_memory_and_of_another_is_refused():
    x = torch.zeros(2)
    torch.FloatTensor(x)[0] = 1
    assert x.tolist() == [1.0, 0.0]
    with pytest.raises(TypeError, match=r"FloatTensor.*int64"):
        torch.FloatTensor(x.long())


@pytest.mark.parametrize("wrong", [(3.5,), (2.0, 3), ("ab",), (None,)])
def test_what_is_neither_is_refused(wrong):
    with pytest.raises(TypeError, match="expected lengths, one sequence or one array"):
        torch.FloatTensor(*wrong)


def test_a_type_without_its_device_is_a_value_whose_call_says_so():
    if torch.cuda.is_available():
        pytest.skip("there is a device")
    with pytest.raises(TypeError, match=r"torch\.cuda\.FloatTensor not available"):
        torch.cuda.FloatTensor(2)


def test_types_are_no_bases_of_classes():
    with pytest.raises(TypeError, match="not an acceptable base type"):

        class Mine(torch.FloatTensor):
            pass


def test_type_takes_dtypes_types_and_names_and_refuses_others():
    x = torch.tensor([1.5, 2])
    assert x.type(torch.FloatTensor) is x
    assert x.type(torch.float16).dtype is torch.float16
    assert torch.tensor([1]).type(torch.Tensor).dtype is torch.float32
    assert x.type("torch.LongTensor").tolist() == [1, 2]
    for wrong in ("torch.Foo", "LongTensor", int):
        with pytest.raises(ValueError, match="invalid type"):
            x.type(wrong)


def test_new_makes_tensors_of_the_same_dtype():
    x = torch.ones(2, 3, dtype=torch.float64)
    assert x.new().shape == (0,)
    assert (x.new(2, 2).shape, x.new(2, 2).dtype) == ((2, 2), torch.float64)
    assert x.long().new([1.5, 2]).tolist() == [1, 2]
    assert x.new(x).data_ptr() == x.data_ptr()
    assert x.new(x.size()).shape == (2, 3)
    assert x.new(x.untyped_storage()).tolist() == [1.0] * 6
    assert x.new().resize_as_(x).zero_().share_memory_().is_shared()
    assert torch.ones(1, dtype=torch.complex64).new(2).dtype is torch.complex64
    with pytest.raises(TypeError, match=r"new\(\): expected a device of type cpu, got meta"):
        x.new(2, device="meta")
    with pytest.raises(TypeError, match=r"expected a tensor of .*float64"):
        x.new(x.float())
