"""Small things that programs written for PyTorch count on: how numbers are written, what is written in
place, what indexes."""

import operator

import pytest

import resilin


def test_a_single_number_is_formatted_as_the_number():
    loss = resilin.tensor(3.14, requires_grad=True)
    assert f"{loss} {resilin.tensor(7)} {resilin.tensor(True)}" == "3.140000104904175 7 True"
    assert f"{loss:.2f} {resilin.tensor(2.5, dtype=resilin.bfloat16)}" == "3.14 2.5"
    assert f"{resilin.ones(2)}" == "tensor([1., 1.])"


@pytest.mark.parametrize("x", [resilin.ones(2), resilin.ones(1)])
def test_a_format_is_for_a_single_number(x):
    with pytest.raises(TypeError, match=r"unsupported format string passed to Tensor\.__format__"):
        f"{x:.3f}"


AUGMENTED = ["iadd", "isub", "imul", "ifloordiv", "imod", "ipow", "iand", "ior", "ixor", "ilshift", "irshift"]


@pytest.mark.parametrize("name", AUGMENTED)
def test_an_augmented_assignment_writes_where_the_tensor_lies(name):
    x = resilin.tensor([4, 7])
    y = x
    y = getattr(operator, name)(y, 2)
    assert y is x
    assert x.tolist() == [getattr(operator, name)(n, 2) for n in (4, 7)]
