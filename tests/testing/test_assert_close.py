"""assert_close: PyTorch 2.13's rules, tolerances and texts, which were written down from its own run."""

import numpy as np
import pytest

import resilin as torch
from resilin.testing import assert_allclose, assert_close

T, NAN, INF = torch.tensor, float("nan"), float("inf")


@pytest.mark.parametrize(
    ("actual", "expected", "options"),
    [
        (T([1.0]), T([1.0 + 1e-6]), {}),
        (T([1.0, INF]), T([1.0, INF]), {}),
        (T([NAN]), T([NAN]), {"equal_nan": True}),
        (T([1.0]), T([1.00001], dtype=torch.float64), {"check_dtype": False}),
        (None, None, {}),
        ([], [], {}),
        (T([]), T([]), {}),
        ((1, {"a": 2.0}), [1, {"a": 2.0}], {}),
        (1, 1.0, {"check_dtype": False}),
        (torch.nn.Parameter(T([1.0])), T([1.0]), {}),
        (np.array([1.0]), np.array([1.0 + 1e-9]), {}),
        (T([1.0], dtype=torch.bfloat16), T([1.01], dtype=torch.bfloat16), {}),
        (T([5]), T([6]), {"rtol": 0, "atol": 1}),
    ],
)
def test_what_is_close_passes(actual, expected, options):
    assert_close(actual, expected, **options)


DIFFERENT = [
    (
        T([1.0, 2.0]),
        T([1.0, 3.0]),
        {},
        "Tensor-likes are not close!\n\nMismatched elements: 1 / 2 (50.0%)\n"
        "Greatest absolute difference: 1.0 at index (1,) (up to 1e-05 allowed)\n"
        "Greatest relative difference: 0.3333333432674408 at index (1,) (up to 1.3e-06 allowed)",
    ),
    (
        T([True, False]),
        T([True, True]),
        {},
        "Tensor-likes are not equal!\n\nMismatched elements: 1 / 2 (50.0%)\n"
        "Greatest absolute difference: 1 at index (1,)\nGreatest relative difference: 1.0 at index (1,)",
    ),
    (
        1.0,
        2.0,
        {},
        "Scalars are not close!\n\nExpected 2.0 but got 1.0.\nAbsolute difference: 1.0 (up to 1e-07 allowed)\n"
        "Relative difference: 0.5 (up to 1e-07 allowed)",
    ),
    (
        T(1.0),
        T(0.0),
        {"rtol": 0, "atol": 0},
        "Scalars are not equal!\n\nExpected 0.0 but got 1.0.\nAbsolute difference: 1.0\nRelative difference: inf",
    ),
    (
        {"a": [T(1.0)]},
        {"a": [T(2.0)]},
        {"rtol": 0.0, "atol": 0.0},
        "Scalars are not equal!\n\nExpected 2.0 but got 1.0.\nAbsolute difference: 1.0\nRelative difference: 0.5\n\n"
        "The failure occurred for item ['a'][0]",
    ),
    (1, 1.0, {}, "The (d)types do not match: <class 'int'> != <class 'float'>."),
    ([1], [1, 2], {}, "The length of the sequences mismatch: 1 != 2"),
    (
        {"a": 1, "b": 1},
        {"a": 1, "c": 1},
        {},
        "The keys of the mappings do not match:\nMissing keys in the actual mapping: ['c']\n"
        "Additional keys in the actual mapping: ['b']",
    ),
    (
        T([1.0]),
        T([1.0, 2.0]),
        {},
        "The values for attribute 'shape' do not match: resilin.Size([1]) != resilin.Size([2]).",
    ),
    (
        T([1.0]),
        T([1.0], dtype=torch.float64),
        {},
        "The values for attribute 'dtype' do not match: resilin.float32 != resilin.float64.",
    ),
    (None, 1, {}, "None mismatch: None is not 1"),
    (True, False, {}, "Booleans mismatch: True is not False"),
    (T([1.0]), T([2.0]), {"msg": "mine"}, "mine"),
    (T([1.0]), T([2.0]), {"msg": lambda text: "H " + text[:12]}, "H Tensor-likes"),
]


@pytest.mark.parametrize(("actual", "expected", "options", "text"), DIFFERENT)
def test_what_is_not_close_is_told_as_pytorch_tells_it(actual, expected, options, text):
    with pytest.raises(AssertionError) as caught:
        assert_close(actual, expected, **options)
    assert str(caught.value) == text.replace("resilin.Size", f"{torch.Size([1])!r}".partition("(")[0])


@pytest.mark.parametrize(
    ("actual", "expected"),
    [(T([NAN]), T([NAN])), (NAN, NAN), (T([1e30]), T([INF])), (T([1j]), T([2j])), (T([1.0]), T([1.001]))],
)
def test_what_is_no_number_or_far_is_not_close(actual, expected):
    with pytest.raises(AssertionError, match="not close"):
        assert_close(actual, expected)


@pytest.mark.parametrize(
    ("actual", "expected", "options", "kind"),
    [
        ("a", "a", {}, TypeError),
        (T([1.0]), "a", {}, TypeError),
        (T([1.0]), 1.0, {}, TypeError),
        (T([1.0]), np.array([1.0], dtype=np.float32), {}, TypeError),
        (torch.nn.Parameter(T([1.0])), T([1.0]), {"allow_subclasses": False}, TypeError),
        (T([1.0]), T([1.0]), {"rtol": 0.1}, ValueError),
        (T([1.0]), T([1.0]), {"atol": 0.1}, ValueError),
    ],
)
def test_what_cannot_be_compared_is_refused(actual, expected, options, kind):
    with pytest.raises(kind):
        assert_close(actual, expected, **options)


def test_strides_and_places_of_several_mismatches_are_told():
    with pytest.raises(AssertionError, match=r"absolute difference: 4\.0 at index \(1, 1\).*\n.*inf at index \(1, 1\)"):
        assert_close(T([[1.0, 2], [3, 4]]), T([[1.0, 2], [3.5, 0]]))
    with pytest.raises(AssertionError, match=r"stride\(\)"):
        assert_close(torch.ones(2, 3), torch.ones(3, 2).t(), check_stride=True)


def test_assert_allclose_has_its_former_tolerances():
    with pytest.warns(FutureWarning, match="deprecated"):
        assert_allclose(T([1.0]), [1.00005])
    with pytest.warns(FutureWarning), pytest.raises(AssertionError, match=r"up to 0\.0001 allowed"):
        assert_allclose(T([1.0]), T([1.1]))
