"""Functions of a size want one, by place or by name, as in PyTorch: none is no size, () is that of no dimension."""

import pytest

import resilin

MAKERS = ("zeros", "ones", "empty", "rand", "randn")
METHODS = ("new_zeros", "new_ones", "new_empty", "reshape", "view", "expand", "repeat", "tile", "permute")


@pytest.mark.parametrize("name", MAKERS)
def test_making_a_tensor_wants_a_size(name):
    make = getattr(resilin, name)
    for options in ({}, {"dtype": resilin.float64}, {"requires_grad": True}):
        with pytest.raises(TypeError, match="missing 1 required positional argument: 'size'"):
            make(**options)
    with pytest.raises(TypeError, match="multiple values for argument 'size'"):
        make(2, size=(2,))
    assert make(()).shape == make([]).shape == make(size=()).shape == ()
    assert make(2).shape == make((2,)).shape == make(size=(2,)).shape == (2,)


@pytest.mark.parametrize("name", METHODS)
def test_methods_of_a_size_want_it(name):
    x = resilin.tensor(1.0)
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        getattr(x, name)()
    assert getattr(x, name)(()).shape == ()
