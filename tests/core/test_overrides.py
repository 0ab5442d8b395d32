"""resilin.overrides: switching the protocol off, modes that see every call, functions of users that take part."""

import inspect
import threading

import pytest

import resilin
import resilin.nn.functional as F
from resilin import Tensor, nn, overrides


class Duck:
    """Not a Tensor; answers with what was called."""

    @classmethod
    def __tensor_function__(cls, func, types, args=(), kwargs=None):
        return overrides.resolve_name(func), types, args, kwargs


class Sub(Tensor):
    pass


def test_disabling_is_for_this_thread_and_nests():
    x = resilin.ones(2).as_subclass(Sub)
    with overrides.DisableTensorFunctionSubclass():
        assert not overrides.has_tensor_function((x,))
        with overrides.DisableTensorFunction():
            assert type(x + 1) is Tensor
        assert type(x + 1) is Tensor
        found = []
        thread = threading.Thread(target=lambda: found.append(type(x + 1)))
        thread.start()
        thread.join(10)
        assert found == [Sub]
    assert type(x + 1) is Sub


def test_a_mode_gets_every_call_and_may_call_on():
    class Doubling(overrides.TensorFunctionMode):
        def __init__(self):
            self.seen = []

        def __tensor_function__(self, func, types, args=(), kwargs=None):
            self.seen.append(overrides.resolve_name(func))
            result = func(*args, **(kwargs or {}))
            return result * 2 if func is resilin.ones else result

    with Doubling() as outer, Doubling() as inner:
        x = resilin.ones(2)
        y = F.relu(x).sum()
        with overrides.DisableTensorFunction():
            resilin.zeros(1)
    assert y.item() == 8.0
    assert inner.seen == ["resilin.ones", "resilin.nn.functional.relu", "resilin.Tensor.sum"]
    assert outer.seen == ["resilin.ones", "resilin.Tensor.mul", "resilin.nn.functional.relu", "resilin.Tensor.sum"]
    assert resilin.ones(1).item() == 1.0
    with pytest.raises(NotImplementedError, match="must define"), overrides.TensorFunctionMode():
        resilin.ones(1)
    assert resilin.ones(1).item() == 1.0


def test_a_mode_is_for_its_thread_only():
    class Refuses(overrides.TensorFunctionMode):
        def __tensor_function__(self, func, types, args=(), kwargs=None):
            return NotImplemented

    found = []
    with Refuses():
        thread = threading.Thread(target=lambda: found.append((resilin.ones(1) + 1).item()))
        thread.start()
        thread.join(10)
        with pytest.raises(TypeError, match=r"no implementation found for 'resilin\.ones'"):
            resilin.ones(1)
    assert found == [2.0]


def test_a_handler_may_run_the_function_and_see_the_calls_inside_it():
    calls = []

    class Inner(Tensor):
        @classmethod
        def __tensor_function__(cls, func, types, args=(), kwargs=None):
            calls.append(getattr(func, "__name__", "?"))
            return overrides.redispatch_function(func, types, args, kwargs)

    def scaled(a, b):
        if overrides.has_tensor_function((a, b)):
            return overrides.handle_tensor_function(scaled, (a, b), a, b)
        return a * b + 1

    x = Inner([3.0])
    result = scaled(x, x)
    assert result.tolist() == [10.0]
    assert type(result) is Tensor
    assert calls == ["scaled", "mul"]
    assert x.shape == (1,)
    assert calls == ["scaled", "mul", "__get__"]


def test_the_plain_mode_and_the_testing_overrides_cover_every_function():
    with overrides.BaseTensorFunctionMode():
        assert resilin.ones(2).sum().item() == 2.0
    made = overrides.get_testing_overrides()
    everything = {f for functions in overrides.get_overridable_functions().values() for f in functions}
    assert everything <= set(made)
    assert made[resilin.add](1, 2) == -1
    assert inspect.signature(made[F.linear]) == inspect.signature(F.linear)


def test_start_values_are_offered_and_a_plain_method_works_as_a_handler():
    class Plain:
        def __tensor_function__(self, func, types, args=(), kwargs=None):
            return self, overrides.resolve_name(func)

    duck = Plain()
    assert nn.init.uniform_(duck, 0, 1) == (duck, "resilin.nn.init.uniform_")


def test_functions_of_users_can_be_taken_over():
    @overrides.wrap_tensor_function(lambda a, b=None: (a, b))
    def mine(a, b=None):
        return "plain"

    assert mine(resilin.ones(1)) == "plain"
    name, types, args, kwargs = mine(1, b=Duck())
    assert name.endswith("mine")
    assert (types, args) == ((Duck,), (1,))
    assert list(kwargs) == ["b"]
    answer = overrides.handle_tensor_function(mine, (3, Duck()), 7)
    assert answer[1:] == ((Duck,), (7,), {})
