"""What an operator's kernel gets for arguments of a schema's types, and what is refused. Facts are PyTorch 2.13's."""

import numpy as np
import pytest

import resilin as torch
from resilin.library import Library, custom_op, registry

ONE, TWO = torch.tensor(2), torch.ones(2)


@pytest.fixture(autouse=True)
def _forget_operators():
    before = set(registry.OPERATORS)
    yield
    registry.forget(set(registry.OPERATORS) - before)


def taken(kind, value):
    got = []
    library = Library("ours", "FRAGMENT")
    library.define(f"f({kind} x) -> ()")
    library.impl("f", got.append, "CPU")
    torch.ops.ours.f(value)
    return got[0]


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("float", 3, 3.0),
        ("float", np.float32(1.5), 1.5),
        ("float?", None, None),
        ("float[]", (1, 2.5), [1.0, 2.5]),
        ("float[]", np.ones(2), [1.0, 1.0]),
        ("int", np.int64(3), 3),
        ("int", ONE, 2),
        ("int[]", torch.Size([1, 2]), [1, 2]),
        ("SymInt[]", range(2), [0, 1]),
        ("int[2]", 3, [3]),
        ("int[]?", None, None),
        ("bool", None, False),
        ("bool", 2, True),
        ("bool[]", [], []),
        ("str[]", ["a"], ["a"]),
        ("Scalar", 1j, 1j),
        ("ScalarType", torch.float16, torch.float16),
        ("Device", "cpu", torch.device("cpu")),
        ("Tensor?", None, None),
        ("Tensor?[]", [None], [None]),
        ("Generator?", None, None),
    ],
)
def test_a_kernel_gets_what_the_type_says(kind, value, expected):
    got = taken(kind, value)
    assert got == expected
    assert type(got) is type(expected)
    if isinstance(got, list):
        assert [type(one) for one in got] == [type(one) for one in expected]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("Tensor", "a"),
        ("Tensor", 1),
        ("Tensor(a!)", np.ones(2)),
        ("Tensor[]", TWO),
        ("Tensor[]", [1]),
        ("int", 1.5),
        ("int", "1"),
        ("int", TWO),
        ("int", None),
        ("int?", []),
        ("int[]", 3),
        ("int[]", ["a"]),
        ("int[]", [1.5]),
        ("float", "1"),
        ("float", 1j),
        ("float[]", "12"),
        ("bool", "a"),
        ("str", 1),
        ("str?", b"a"),
        ("Scalar", ONE),
        ("ScalarType", "float32"),
        ("Device", 0),
    ],
)
def test_what_is_not_of_the_type_is_refused(kind, value):
    with pytest.raises(RuntimeError, match=r"ours::f\(\) Expected a value of type .* for argument 'x' but instead"):
        taken(kind, value)


def test_the_error_names_type_place_value_and_schema():
    @custom_op("ours::added", mutates_args=())
    def added(x: torch.Tensor, n: list[int], k: float = 2) -> torch.Tensor:
        return x + len(n) + torch.full((2,), k)

    assert added(TWO, (1, 2)).tolist() == [5.0, 5.0]
    assert added(TWO, [], 3).dtype is torch.float32
    with pytest.raises(RuntimeError) as error:
        added(TWO, ["a"])
    assert str(error.value).splitlines() == [
        "ours::added() Expected a value of type 'List[int]' for argument 'n' but instead found type 'list'.",
        "Position: 1",
        "Value: ['a']",
        "Declaration: ours::added(Tensor x, SymInt[] n, float k=2) -> Tensor",
    ]
