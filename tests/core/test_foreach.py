"""`_foreach_*`: each is the method, for one tensor after another. Forms, results and errors are PyTorch 2.13's."""

import math

import pytest

import resilin as torch
from resilin.core.api import foreach

TWO = [torch.ones(1)] * 2


def lists():
    return [torch.tensor([1.0, 2.0]), torch.tensor([4.0])], [torch.tensor([0.5, 0.25]), torch.tensor([2.0])]


def values(tensors):
    return [tensor.tolist() for tensor in tensors]


def test_every_function_is_there_and_says_which_method_it_is():
    for name, function in foreach.FUNCTIONS.items():
        assert getattr(torch, name) is function
        assert function.__name__ == name
        assert f"Tensor.{name.removeprefix('_foreach_')}`" in function.__doc__


@pytest.mark.parametrize("name", [*foreach._UNARY, "clone", "zero_"])
def test_functions_of_one_list_are_the_method(name):
    xs, _ = lists()
    if name in ("acos", "asin"):
        xs = [x / 4 for x in xs]
    expected = [getattr(x.clone(), name)() for x in xs]
    found = getattr(torch, f"_foreach_{name}")(xs)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    if name not in ("clone", "zero_"):
        assert isinstance(found, tuple)
        same = getattr(torch, f"_foreach_{name}_")(xs)
        assert same is xs
        assert all(torch.equal(a, b) for a, b in zip(xs, expected, strict=True))


@pytest.mark.parametrize("name", foreach._BINARY)
def test_functions_of_two_take_a_number_numbers_or_tensors(name):
    xs, ys = lists()
    method = {"maximum": "clamp_min", "minimum": "clamp_max"}.get(name, name)
    call = getattr(torch, f"_foreach_{name}")
    assert values(call(xs, 2)) == [getattr(x, method)(2).tolist() for x in xs]
    assert values(call(xs, [2, 3.0])) == [getattr(x, method)(n).tolist() for x, n in zip(xs, [2, 3.0], strict=True)]
    expected = [getattr(x, method)(y).tolist() for x, y in zip(xs, ys, strict=True)]
    assert values(call(xs, ys)) == expected
    assert values(call(xs, torch.tensor(2.0))) == values(call(xs, 2.0))
    assert getattr(torch, f"_foreach_{name}_")(xs, ys) is xs
    assert values(xs) == expected


def test_alpha_and_names_of_arguments():
    xs, ys = lists()
    assert values(torch._foreach_add(xs, ys, alpha=2)) == [[2.0, 2.5], [8.0]]
    assert values(torch._foreach_add(xs, torch.tensor(2.0), alpha=3)) == [[7.0, 8.0], [10.0]]
    assert values(torch._foreach_sub(xs, other=ys, alpha=2)) == [[0.0, 1.5], [0.0]]
    assert values(torch._foreach_mul(xs, scalar=2)) == values(torch._foreach_mul(xs, scalars=[2, 2]))
    assert values(torch._foreach_pow(2, xs)) == [[2.0, 4.0], [16.0]]
    with pytest.raises(TypeError, match="alpha"):
        torch._foreach_mul(xs, ys, alpha=2)
    with pytest.raises(TypeError, match="exactly one argument"):
        torch._foreach_add(xs)


@pytest.mark.parametrize("scales", [3, [3, 2], torch.tensor([3.0, 2.0])])
@pytest.mark.parametrize("name", ["addcmul", "addcdiv"])
def test_scaled_products_and_quotients(name, scales):
    xs, ys = lists()
    numbers = [3, 3] if isinstance(scales, int) else [3, 2]
    rows = zip(xs, ys, numbers, strict=True)
    expected = [getattr(x, name)(x, y, value=n).tolist() for x, y, n in rows]
    assert values(getattr(torch, f"_foreach_{name}")(xs, xs, ys, scales)) == expected
    if not isinstance(scales, list):
        getattr(torch, f"_foreach_{name}_")(xs, [x.clone() for x in xs], ys, scales)
        assert values(xs) == expected


def test_lerp_norm_max_and_copy():
    xs, ys = lists()
    assert values(torch._foreach_lerp(xs, ys, 0.5)) == [[0.75, 1.125], [3.0]]
    assert values(torch._foreach_lerp(xs, ys, weights=[1.0, 0.5])) == [[0.5, 0.25], [3.0]]
    assert values(torch._foreach_lerp(xs, ys, [torch.ones(2), torch.zeros(1)])) == [[0.5, 0.25], [4.0]]
    assert torch._foreach_norm(xs)[0].item() == pytest.approx(math.sqrt(5))
    assert values(torch._foreach_norm(xs, float("inf"))) == [2.0, 4.0]
    assert torch._foreach_norm(xs, 1, torch.float64)[0].dtype is torch.float64
    assert values(torch._foreach_max(xs)) == [2.0, 4.0]
    assert torch._foreach_copy_(xs, ys) is xs
    assert values(xs) == values(ys)


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda: torch._foreach_add([], 1), RuntimeError, "at least one tensor"),
        (
            lambda: torch._foreach_add(TWO, TWO[:1]),
            RuntimeError,
            "same number of tensors, got 2",
        ),
        (lambda: torch._foreach_add([torch.ones(1)], [1, 2]), RuntimeError, "same number of elements as scalar list"),
        (lambda: torch._foreach_mul([torch.ones(1)], torch.ones(2)), RuntimeError, "expected to be 0 dim"),
        (lambda: torch._foreach_add(torch.ones(2), 1), TypeError, "list or tuple of Tensors"),
        (lambda: torch._foreach_add_([torch.tensor([1])], 1.5), RuntimeError, "can't be cast"),
        (lambda: torch._foreach_norm([torch.tensor([1])]), RuntimeError, "floating point"),
        (
            lambda: torch._foreach_addcmul(TWO, TWO, TWO, torch.ones(1)),
            RuntimeError,
            "length of scalars",
        ),
    ],
)
def test_misfits_are_refused_as_in_pytorch(call, kind, text):
    with pytest.raises(kind, match=text):
        call()


def test_methods_of_subclasses_in_a_list_are_their_own():
    class Loud(torch.Tensor):
        def mul(self, other):
            return super().mul(other) + 1

    plain, loud = torch.ones(2), torch.ones(2).as_subclass(Loud)
    for tensors, expected in (([plain, loud], [[2, 2], [3, 3]]), ([loud, loud], [[3, 3], [3, 3]])):
        assert [x.tolist() for x in torch._foreach_mul(tensors, 2)] == expected


def test_gradients_flow_and_integers_promote():
    x = torch.ones(2, requires_grad=True)
    torch._foreach_mul([x, x], [2, 3])[1].sum().backward()
    assert x.grad.tolist() == [3.0, 3.0]
    assert torch._foreach_add([torch.tensor([1])], 1.5)[0].tolist() == [2.5]
