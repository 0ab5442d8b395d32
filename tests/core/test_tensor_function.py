"""`__tensor_function__`: tensor-like objects and subclasses of Tensor that take over calls. Facts of PyTorch 2.13 where
a test names its functions."""

import copy
import inspect
import operator
import os
import pickle
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

import resilin
import resilin.nn.functional as F
from resilin import Tensor, nn, overrides
from resilin.core.public import dispatch


class Duck:
    """Not a Tensor. Records every call, and answers with its name."""

    def __init__(self):
        self.calls = []

    @classmethod
    def __tensor_function__(cls, func, types, args=(), kwargs=None):
        return overrides.resolve_name(func), types, args, kwargs


class Logged(Tensor):
    calls: ClassVar[list] = []

    @classmethod
    def __tensor_function__(cls, func, types, args=(), kwargs=None):
        Logged.calls.append(overrides.resolve_name(func).removeprefix("resilin."))
        return super().__tensor_function__(func, types, args, kwargs)


class Sub(Tensor):
    pass


@pytest.fixture
def logged():
    Logged.calls = []
    return resilin.ones(2, 2).as_subclass(Logged)


def test_every_public_function_that_takes_tensors_hands_a_tensor_like_object_the_call():
    duck = Duck()
    failed = []
    for functions in overrides.get_overridable_functions().values():
        for func in functions:
            if overrides.resolve_name(func).endswith("__set__"):
                continue
            answer = func(duck)
            if answer is NotImplemented or answer[1:] != ((Duck,), (duck,), {}):
                failed.append(overrides.resolve_name(func))
    assert not failed


def test_keywords_and_elements_of_lists_and_tuples_are_looked_at():
    duck, x = Duck(), resilin.ones(2)
    assert resilin.add(x, other=duck)[0] == "resilin.add"
    assert resilin.cat([x, duck])[0] == "resilin.cat"
    assert resilin.cat((x, duck), dim=0)[2:] == (((x, duck),), {"dim": 0})
    assert x[0, duck][0] == "resilin.Tensor.__getitem__"
    assert F.linear(x, duck)[0] == "resilin.nn.functional.linear"


def test_a_module_offers_what_it_computes():
    assert nn.Linear(2, 2)(Duck())[0] == "resilin.nn.functional.linear"
    assert nn.ReLU()(Duck())[0] == "resilin.nn.functional.relu"


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ("x + t", "Tensor.add"),
        ("t + x", "Tensor.add"),
        ("1 + x", "Tensor.add"),
        ("1 - x", "Tensor.__rsub__"),
        ("x - 1", "Tensor.sub"),
        ("x * 2", "Tensor.mul"),
        ("x / 2", "Tensor.div"),
        ("x // 2", "Tensor.__floordiv__"),
        ("x ** 2", "Tensor.pow"),
        ("2 ** x", "Tensor.__rpow__"),
        ("x @ t", "Tensor.matmul"),
        ("x == t", "Tensor.__eq__"),
        ("x < 1", "Tensor.lt"),
        ("-x", "Tensor.neg"),
        ("abs(x)", "Tensor.abs"),
        ("x[0]", "Tensor.__getitem__"),
        ("x.T", "Tensor.T.__get__"),
        ("x.shape", "Tensor.shape.__get__"),
        ("x.sum()", "Tensor.sum"),
        ("resilin.sum(x)", "sum"),
        ("resilin.cat([t, x])", "cat"),
        ("F.relu(x)", "nn.functional.relu"),
        ("F.cross_entropy(x, resilin.tensor([0, 1]))", "nn.functional.cross_entropy"),
        ("bool(x.all())", "Tensor.all Tensor.__bool__"),
        ("float(x.sum())", "Tensor.sum Tensor.__float__"),
        ("len(x)", "Tensor.__len__"),
        ("repr(x)", "Tensor.__repr__"),
        ("resilin.where(x > 0, x, t)", "Tensor.gt where"),
        ("nn.Linear(2, 2)(x)", "nn.functional.linear"),
        ("resilin.is_tensor(x)", ""),
        ("resilin.as_tensor(x)", ""),
        ("hash(x)", ""),
    ],
)
def test_handlers_get_the_functions_that_pytorch_names(logged, expression, names):
    eval(expression, {"x": logged, "t": resilin.ones(2, 2), "resilin": resilin, "F": F, "nn": nn})
    assert names.split() == Logged.calls


def test_writing_is_offered_too(logged):
    x = logged
    x += 1
    x[0] = 3
    x.add_(1)
    x.requires_grad = False
    assert Logged.calls == ["Tensor.add_", "Tensor.__setitem__", "Tensor.add_", "Tensor.requires_grad.__set__"]
    assert type(x) is Logged


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x + 1,
        lambda x: x.T,
        lambda x: x[0],
        lambda x: x.to(resilin.float64),
        lambda x: resilin.stack([resilin.ones(2, 2), x]),
        lambda x: x.max(0).values,
        lambda x: x.split(1)[0],
        lambda x: resilin.meshgrid(x[0], x[0], indexing="ij")[1],
        lambda x: F.softmax(x, 0),
        lambda x: resilin.linalg.inv(x + resilin.eye(2)),
        lambda x: resilin.fft.fft(x),
        lambda x: nn.Linear(2, 2)(x),
        lambda x: x.detach(),
        lambda x: x.new_zeros(2),
        lambda x: resilin.zeros_like(x),
        lambda x: copy.deepcopy(x),
        lambda x: copy.copy(x),
        lambda x: pickle.loads(pickle.dumps(x)),
        lambda x: resilin.ones(2, 2).add_(1) * x,
    ],
)
def test_results_of_a_subclass_are_of_the_subclass(make):
    assert type(make(resilin.ones(2, 2).as_subclass(Sub))) is Sub


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.LSTM(3, 4), (2, 1, 3)),
        (nn.GRUCell(3, 4), (2, 3)),
        (nn.Conv2d(1, 2, 3), (1, 1, 5, 5)),
        (nn.BatchNorm1d(3), (2, 3)),
        (nn.MaxPool2d(2), (1, 1, 4, 4)),
        (nn.TransformerEncoderLayer(4, 2), (2, 1, 4)),
        (nn.LayerNorm(3), (2, 3)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_layers_give_instances_of_the_subclass(layer, shape):
    out = layer(resilin.ones(shape).as_subclass(Sub))
    assert all(type(part) is Sub for part in (out if isinstance(out, tuple) else (out,)) if isinstance(part, Tensor))
    assert type(out[0] if isinstance(out, tuple) else out) is Sub


def test_a_subclass_is_printed_under_its_name():
    x = resilin.ones(2, 2, dtype=resilin.float64).as_subclass(Sub)
    assert repr(x) == "Sub([[1., 1.],\n     [1., 1.]], dtype=resilin.float64)"
    assert str(nn.Buffer(resilin.ones(1))) == "tensor([1.])"


def test_a_result_that_was_an_argument_becomes_a_view_of_it():
    plain = resilin.ones(2)
    made = Sub.__tensor_function__(lambda a: a, (Sub,), (plain,))
    assert type(made) is Sub
    assert made._array.base is plain._array or np.shares_memory(made.numpy(), plain.numpy())
    assert type(plain) is Tensor


def test_the_subclass_of_two_classes_answers_and_unrelated_ones_refuse():
    class Deeper(Sub):
        pass

    class Other(Tensor):
        pass

    a, b = resilin.ones(2).as_subclass(Sub), resilin.ones(2).as_subclass(Deeper)
    assert type(a + b) is type(b + a) is Deeper
    with pytest.raises(TypeError, match=r"no implementation found for 'resilin.Tensor.add'.*Sub.*Other"):
        a + resilin.ones(2).as_subclass(Other)


def test_gradients_flow_through_a_subclass_and_grad_is_plain():
    x = resilin.ones(3, requires_grad=True).as_subclass(Sub)
    (x * x).sum().backward()
    leaf = Sub([1.0, 2.0]).requires_grad_()
    assert type(leaf) is Sub
    (leaf * leaf * 3).sum().backward()
    assert leaf.grad.tolist() == [6.0, 12.0]
    assert type(leaf.grad) is Tensor
    (g,) = resilin.autograd.grad((leaf**3).sum(), leaf)
    assert g.tolist() == [3.0, 12.0]


def test_as_subclass_shares_memory_and_history():
    base = resilin.ones(3, requires_grad=True)
    y = base * 2
    z = y.as_subclass(Sub)
    z.mul_(5)
    assert y.tolist() == [10.0] * 3
    y.sum().backward()
    assert base.grad.tolist() == [10.0] * 3
    with pytest.raises(TypeError, match="subclass of Tensor"):
        base.as_subclass(int)


def test_an_in_place_write_to_a_result_is_noticed_by_what_saved_it():
    x = resilin.ones(2, requires_grad=True).as_subclass(Sub)
    y = x.exp()
    z = (y * y).sum()
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.backward()


def test_the_ways_to_construct_a_subclass():
    class WithNew(Tensor):
        def __new__(cls, data, unit):
            made = super().__new__(cls, data)
            made.unit = unit
            return made

    class WithInit(Tensor):
        def __init__(self, data, unit):
            super().__init__(data)
            self.unit = unit

    class OnlyMarks(Tensor):
        def __init__(self, data):
            self.unit = "m"

    class Made(Tensor):
        @staticmethod
        def __new__(cls, data, unit="m"):
            made = Tensor._make_subclass(cls, resilin.as_tensor(data), False)
            made.unit = unit
            return made

    for made in (WithNew([1.0, 2.0], "m"), WithInit([1.0, 2.0], "m"), OnlyMarks([1.0, 2.0]), Made([1.0, 2.0])):
        assert made.tolist() == [1.0, 2.0]
        assert made.unit == "m"
        assert type(made * 2) is type(made)
    assert Sub(2, 3).shape == (2, 3)
    assert Sub([4]).tolist() == [4.0]
    with pytest.raises((TypeError, ValueError)):
        Tensor("a", None)


def test_attributes_of_a_subclass_survive_copies():
    x = Sub([1.0])
    x.unit = "m"
    assert copy.deepcopy(x).unit == copy.copy(x).unit == pickle.loads(pickle.dumps(x)).unit == "m"


def test_a_subclass_may_take_over_nothing():
    class Quiet(Sub):
        __tensor_function__ = None

    x = Quiet([1.0, 2.0])
    assert not overrides.has_tensor_function((x,))
    assert type(x + 1) is type(F.relu(x)) is type(x.T) is Tensor
    assert type(x.as_subclass(Sub) + x) is Sub


def test_parameters_take_over_nothing():
    w = nn.Parameter(resilin.ones(2))
    assert not overrides.has_tensor_function((w, resilin.ones(1), 3, None))
    assert type(w * 2) is Tensor
    assert overrides.has_tensor_function((w, Duck()))
    assert overrides.is_tensor_like(w)
    assert overrides.is_tensor_like(Duck())
    assert not overrides.is_tensor_like(3)


def test_not_implemented_by_all_is_a_type_error_that_names_function_and_classes():
    class Refuses:
        @classmethod
        def __tensor_function__(cls, func, types, args=(), kwargs=None):
            return NotImplemented

    for call in (
        lambda: resilin.add(resilin.ones(2), Refuses()),
        lambda: F.relu(Refuses()),
        lambda: resilin.ones(1) + Refuses(),
    ):
        with pytest.raises(TypeError, match=r"no implementation found for 'resilin\..*Refuses"):
            call()
    assert (resilin.ones(1) == Duck())[0] == "resilin.Tensor.__eq__"


def test_errors_of_a_handler_pass():
    class Breaks:
        @classmethod
        def __tensor_function__(cls, func, types, args=(), kwargs=None):
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        resilin.stack([Breaks()])


def test_an_operand_without_the_protocol_may_have_a_reflected_operator():
    class Reflects:
        def __radd__(self, other):
            return "radd"

        def __rmatmul__(self, other):
            return "rmatmul"

        def __lt__(self, other):
            return "lt"

    x = resilin.ones(2)
    assert x + Reflects() == "radd"
    assert x @ Reflects() == "rmatmul"
    assert (x > Reflects()) == "lt"
    with pytest.raises(TypeError, match=r"unsupported operand type.* -: 'Tensor' and 'Reflects'"):
        x - Reflects()
    with pytest.raises(TypeError, match="expected a Tensor or a number, got Reflects"):
        resilin.sub(x, Reflects())


def _of(operation, *operands):
    """What an operation gives, or the beginning of what Python says of it."""
    try:
        return operation(*operands)
    except TypeError as error:
        return str(error).partition(":")[0]


def test_python_decides_what_is_no_operand_of_a_tensor():
    two, unsupported = resilin.tensor(2), "unsupported operand type(s) for "
    for sequence in ([0], (1,), "a", b"a", bytearray(b"a")):
        assert sequence * two == two * sequence == sequence * 2
    symbols = {"add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "matmul": "@"}
    symbols |= {"and_": "&", "or_": "|", "xor": "^", "lshift": "<<", "rshift": ">>", "pow": "** or pow()"}
    for name, symbol in symbols.items():
        for other in (None, object(), {1}, {}, Decimal(1)):
            told = _of(getattr(operator, name), two, other)
            assert told == unsupported + symbol, (name, other, told)
            told = _of(getattr(operator, name), other, two)
            assert told == unsupported + symbol, (name, other, told)
            in_place = name.rstrip("_")
            told = _of(getattr(operator, f"i{in_place}"), two.clone(), other)
            assert told == unsupported + symbol.split()[0] + "=", (name, other, told)
    for name in ("lt", "le", "gt", "ge"):
        assert "not supported between instances of 'Tensor' and 'NoneType'" in _of(getattr(operator, name), two, None)
        assert "not supported between instances of 'str' and 'Tensor'" in _of(getattr(operator, name), "2", two)
    for other in (None, "2", [2], (2,), object()):
        assert (two == other, two != other) == (False, True)
    assert _of(operator.add, [1], two) == 'can only concatenate list (not "Tensor") to list'
    assert two.__add__(None) is two.__radd__("a") is two.__iadd__({}) is NotImplemented


def test_an_operand_of_another_library_has_the_last_word():
    class Foreign:
        def __radd__(self, other):
            return "radd"

        def __add__(self, other):
            return NotImplemented

        def __lt__(self, other):
            return "lt"

        def __eq__(self, other):
            return "eq"

        __hash__ = None

    x = resilin.ones(2)
    assert x + Foreign() == "radd"
    assert (x > Foreign()) == "lt"
    assert (x == Foreign()) == "eq"
    x += Foreign()
    assert x == "radd"
    assert _of(operator.add, Foreign(), resilin.ones(2)) == "unsupported operand type(s) for +"


def test_public_functions_are_good_citizens():
    for function in (resilin.add, F.relu, resilin.linalg.inv, Tensor.add, resilin.abs_):
        assert pickle.loads(pickle.dumps(function)) is function
        assert copy.deepcopy(function) is copy.copy(function) is function
        assert inspect.getdoc(function)
    assert list(inspect.signature(F.linear).parameters) == ["input", "weight", "bias"]
    assert next(iter(inspect.signature(resilin.ones(1).sum).parameters)) == "dim"
    assert resilin.ones(1).sum.__self__ is not None
    assert overrides.is_tensor_method_or_property(Tensor.add)
    assert overrides.is_tensor_method_or_property(Tensor.shape.__get__)
    assert not overrides.is_tensor_method_or_property(resilin.add)
    assert resilin.is_tensor in overrides.get_ignored_functions()
    assert resilin.add not in overrides.get_ignored_functions()


@pytest.mark.slow
def test_the_form_in_python_does_the_same():
    """Without native code these tests and those of overrides pass, too; a child process runs them."""
    if dispatch.native is None:
        pytest.skip("this process already runs without native code")
    files = [__file__, str(Path(__file__).with_name("test_overrides.py"))]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-n0", *files]
    environment = {**os.environ, "RESILIN_NATIVE": "0"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert "passed" in done.stdout
