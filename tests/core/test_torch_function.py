"""PyTorch's `__torch_function__` takes calls over as `__tensor_function__` does: classes, subclasses, modes."""

import pickle
from typing import ClassVar

import pytest

import resilin as torch
from resilin import overrides
from resilin.overrides import TorchFunctionMode, handle_torch_function, has_torch_function

HANDLED = {}


def implements(function):
    def register(own):
        HANDLED[function] = own
        return own

    return register


class Diagonal:
    def __init__(self, n, value):
        self.n, self.value = n, value

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func not in HANDLED or not all(issubclass(kind, (torch.Tensor, cls)) for kind in types):
            return NotImplemented
        return HANDLED[func](*args, **(kwargs or {}))


@implements(torch.mean)
def mean(input):
    return float(input.value) / input.n


@implements(torch.add)
def add(input, other):
    return Diagonal(input.n, input.value + other.value)


def test_a_class_takes_over_what_it_implements():
    x = Diagonal(4, 2)
    assert torch.mean(x) == 0.5
    assert torch.add(x, x).value == 4
    with pytest.raises(TypeError, match=r"found for 'resilin\.sub'.*__torch_function__ of .*Diagonal"):
        torch.sub(x, x)
    assert overrides.is_tensor_like(x)
    assert not overrides.is_tensor_like(3)
    assert has_torch_function((x,))
    assert not has_torch_function((torch.ones(1),))


class Logged(torch.Tensor):
    calls: ClassVar = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.calls.append(func.__name__)
        return super().__torch_function__(func, types, args, kwargs)


def test_a_subclass_sees_calls_and_results_are_of_it():
    Logged.calls = []
    x = torch.ones(2).as_subclass(Logged)
    y = torch.relu(x + 1)
    assert type(y) is Logged
    assert Logged.calls == ["add", "relu"]
    with overrides.DisableTorchFunctionSubclass():
        assert type(torch.relu(x)) is torch.Tensor
    assert torch._C.DisableTorchFunctionSubclass is overrides.DisableTorchFunctionSubclass


def test_a_subclass_may_take_over_nothing():
    class Plain(torch.Tensor):
        __torch_function__ = torch._C._disabled_torch_function_impl

    x = torch.ones(2).as_subclass(Plain)
    assert type(x + 1) is torch.Tensor
    assert not has_torch_function((x,))


def test_a_subclass_of_parameter_may_take_calls_over():
    class Counted(torch.nn.Parameter):
        seen = 0

        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            cls.seen += 1
            with overrides.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))

    x = Counted(torch.ones(2))
    assert (x * 2).tolist() == [2.0, 2.0]
    assert Counted.seen >= 1


def test_the_nearest_class_counts_by_whichever_name():
    class Ours(Logged):
        @classmethod
        def __tensor_function__(cls, func, types, args=(), kwargs=None):
            return "ours"

    class Theirs(Ours):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            return "theirs"

    assert torch.relu(torch.ones(1).as_subclass(Ours)) == "ours"
    assert torch.relu(torch.ones(1).as_subclass(Theirs)) == "theirs"


def test_a_mode_sees_all_calls_in_its_block():
    class Counting(TorchFunctionMode):
        def __init__(self):
            self.seen = []

        def __torch_function__(self, func, types, args=(), kwargs=None):
            self.seen.append(func.__name__)
            return func(*args, **(kwargs or {}))

    with Counting() as outer, Counting() as inner:
        torch.relu(torch.ones(2))
    torch.relu(torch.ones(2))
    assert inner.seen == outer.seen == ["ones", "relu"]

    with overrides.BaseTorchFunctionMode():
        assert torch.ones(1).tolist() == [1.0]
    with pytest.raises(NotImplementedError, match="__torch_function__"), TorchFunctionMode():
        torch.ones(1)


def test_a_mode_sees_what_makes_tensors_of_data_and_a_class_does_not():
    class Counting(TorchFunctionMode):
        def __init__(self):
            self.seen = []

        def __torch_function__(self, func, types, args=(), kwargs=None):
            self.seen.append((func, types))
            return func(*args, **(kwargs or {}))

    class Refusing(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            raise AssertionError(func)

    makers = (torch.tensor, torch.as_tensor, torch.asarray)
    with Counting() as mode:
        made = [make([1.0, 2.0], dtype=torch.float64) for make in makers]
    assert mode.seen == [(make, ()) for make in makers]
    assert all(x.tolist() == [1, 2] and x.dtype is torch.float64 for x in made)
    data = torch.ones(2).as_subclass(Refusing)
    assert type(torch.tensor(data)) is torch.Tensor
    assert torch.as_tensor(data) is data
    for make in makers:
        assert pickle.loads(pickle.dumps(make)) is make
        assert make in overrides.get_ignored_functions()


def test_functions_of_programs_offer_their_calls():
    def double(x):
        if has_torch_function((x,)):
            return handle_torch_function(double, (x,), x)
        return x * 2

    @implements(double)
    def _(x):
        return Diagonal(x.n, x.value * 2)

    assert double(Diagonal(2, 3)).value == 6
    assert double(2) == 4

    @overrides.wrap_torch_function(lambda x: (x,))
    def triple(x):
        return x * 3

    HANDLED[triple] = lambda x: x.value * 3
    assert triple(Diagonal(2, 3)) == 9
    assert triple(2) == 6
