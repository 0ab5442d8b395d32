"""PyTorch's behaviour at the surface: shapes, errors, printing, conversion out of the library."""

import copy
import operator
import pickle
import subprocess
import sys

import numpy as np
import pytest

import resilin

A = resilin.arange(12.0).reshape(3, 4)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: A.view(5, 5), RuntimeError, "invalid for input of size 12"),
        (lambda: A.t().view(12), RuntimeError, "stride"),
        (lambda: A.unsqueeze(5), IndexError, "Dimension out of range"),
        (lambda: A.size(7), IndexError, "Dimension out of range"),
        (lambda: A[5], IndexError, "index"),
        (lambda: A[:, resilin.tensor([0.5])], IndexError, "integer or bool"),
        (lambda: A.expand(2, 2), RuntimeError, "cannot be expanded"),
        (lambda: A @ A, RuntimeError, "cannot be multiplied"),
        (lambda: A @ A.T.double(), RuntimeError, "same dtype"),
        (lambda: A + resilin.ones(5), RuntimeError, r"\(3, 4\) and \(5,\)"),
        (lambda: A.gather(1, resilin.tensor([[9]])), RuntimeError, "out of bounds"),
        (lambda: resilin.cat([A, resilin.ones(2, 2)]), RuntimeError, "do not fit"),
        (lambda: resilin.stack([]), RuntimeError, "non-empty"),
        (lambda: A.topk(9), RuntimeError, "out of range"),
        (lambda: A.item(), RuntimeError, "12 elements"),
        (lambda: bool(A), RuntimeError, "ambiguous"),
        (lambda: len(resilin.tensor(1)), TypeError, "0-d"),
        (lambda: resilin.zeros(-1), RuntimeError, "negative dimension"),
        (lambda: resilin.tensor([[1], [2, 3]]), ValueError, "expected sequence of length 1 at dim 1"),
        (lambda: resilin.tensor("a"), TypeError, "text"),
        (lambda: resilin.tensor([1]).requires_grad_(), RuntimeError, "floating point"),
        (lambda: resilin.tensor([1]).float().mean(dim=3), IndexError, "Dimension"),
        (lambda: resilin.tensor([1, 2]).mean(), RuntimeError, "floating point"),
        (lambda: A.softmax(3), IndexError, "Dimension"),
        (lambda: A.clamp(), RuntimeError, "at least one"),
        (lambda: A.exp(3), TypeError, "argument"),
        (lambda: resilin.nonsense, AttributeError, "nonsense"),
        (lambda: A.nonsense, AttributeError, "nonsense"),
        (lambda: A + "x", TypeError, "unsupported operand type"),
    ],
)
def test_a_mistake_raises_pytorchs_error_type(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize(
    ("tensor", "text"),
    [
        (resilin.tensor([1.0, 2.0]), "tensor([1., 2.])"),
        (resilin.tensor([1.5, 2.0]), "tensor([1.5000, 2.0000])"),
        (resilin.tensor([1e-8, 1.0]), "tensor([1.0000e-08, 1.0000e+00])"),
        (resilin.tensor([-1.0, 1.0]), "tensor([-1.,  1.])"),
        (resilin.tensor([True]), "tensor([True])"),
        (resilin.tensor(3), "tensor(3)"),
        (resilin.tensor([1, 2], dtype=resilin.int32), "tensor([1, 2], dtype=resilin.int32)"),
        (resilin.tensor([1 + 2j]), "tensor([1.+2.j])"),
        (resilin.zeros(2, 0), "tensor([], size=(2, 0))"),
        (resilin.ones(1, requires_grad=True), "tensor([1.], requires_grad=True)"),
        (resilin.ones(1, device="sim:1"), "tensor([1.], device='sim:1')"),
        (resilin.ones(1, dtype=resilin.bfloat16), "tensor([1.], dtype=resilin.bfloat16)"),
    ],
)
def test_tensors_print_like_pytorchs(tensor, text):
    assert repr(tensor) == text


def test_a_computed_tensor_prints_its_operation_and_formats_as_a_number():
    x = resilin.ones((), requires_grad=True) * 2
    assert repr(x) == "tensor(2., grad_fn=<MulBackward0>)"
    assert f"{x:.2f}" == "2.00"


def test_numpy_shares_memory_both_ways():
    array = np.zeros(3, np.float32)
    x = resilin.from_numpy(array)
    x.add_(1)
    assert array.tolist() == [1.0, 1.0, 1.0]
    assert np.asarray(x) is x.numpy()
    assert np.sum(resilin.ones(2, 2)) == 4
    with pytest.raises(RuntimeError, match="detach"):
        resilin.ones(1, requires_grad=True).numpy()


def test_tensors_hash_by_identity_and_compare_elementwise():
    x = resilin.ones(2)
    assert {x: 1}[x] == 1
    assert (x == x.clone()).tolist() == [True, True]
    assert (x == None) is False  # noqa: E711
    assert x in [x]


def test_copies_and_pickles_keep_flags_and_values():
    p = resilin.core.tensor.Parameter(resilin.randn(3))
    p.note = "kept"
    for back in (copy.deepcopy(p), pickle.loads(pickle.dumps(p))):
        assert type(back) is type(p)
        assert back.requires_grad
        assert resilin.equal(back, p)
        assert not np.shares_memory(back._array, p._array)
    assert copy.deepcopy(p).note == "kept"
    with pytest.raises(RuntimeError, match="leaves"):
        copy.deepcopy(p * 2)


def test_max_over_a_dimension_names_values_and_indices():
    found = A.max(dim=1)
    assert found.values.tolist() == [3.0, 7.0, 11.0]
    assert found.indices.tolist() == [3, 3, 3]
    values, indices = A.sort(descending=True)
    assert values[0].tolist() == [3.0, 2.0, 1.0, 0.0]
    assert indices.dtype is resilin.int64


def test_sorting_is_stable_in_both_directions():
    x = resilin.tensor([1, 0, 1, 0])
    assert x.argsort().tolist() == [1, 3, 0, 2]
    assert x.argsort(descending=True).tolist() == [0, 2, 1, 3]


def test_every_public_name_exists_and_has_a_docstring():
    from resilin.core.public import names

    silent = [n for n in names.__all__ if callable(getattr(resilin, n)) and not getattr(resilin, n).__doc__]
    silent += [n for n in dir(resilin.Tensor) if not n.startswith("_") and not getattr(resilin.Tensor, n).__doc__]
    assert silent == []
    assert {"tensor", "zeros", "randn", "float32", "no_grad", "matmul", "save", "nn", "dist"} <= set(dir(resilin))


def test_the_agents_packages_load_neither_numpy_nor_core():
    code = (
        "import sys, resilin, resilin.launcher, resilin.store, resilin.elastic, resilin.errors\n"
        "assert 'numpy' not in sys.modules and 'resilin.core' not in sys.modules, sorted(sys.modules)\n"
        "resilin.tensor\n"
        "assert 'numpy' in sys.modules\n"
        "assert not {'grpc', 'scipy', 'torch'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_numpys_warnings_stay_silent_as_in_pytorch():
    x = resilin.tensor([0.0, -1.0, 1e38], requires_grad=True)
    with np.errstate(all="warn"):
        (1 / x + x.log() + x.sqrt() + (x * 100).exp() + x**200).sum().backward()
    assert np.isnan(x.grad.numpy()[1])


AUGMENTED = ["iadd", "isub", "imul", "ifloordiv", "imod", "ipow", "iand", "ior", "ixor", "ilshift", "irshift"]


@pytest.mark.parametrize("name", AUGMENTED)
def test_an_augmented_assignment_writes_where_the_tensor_lies(name):
    x = resilin.tensor([4, 7])
    y = x
    y = getattr(operator, name)(y, 2)
    assert y is x
    assert x.tolist() == [getattr(operator, name)(n, 2) for n in (4, 7)]


def test_what_is_made_of_a_shape_is_a_shape():
    size = resilin.ones(2, 3, 4).shape
    made = [size[1:], size + (1,), (1,) + size, size + size, size * 2, 2 * size]  # noqa: RUF005
    assert [type(m) for m in made] == [resilin.Size] * 6
    assert [tuple(m) for m in made[:4]] == [(3, 4), (2, 3, 4, 1), (1, 2, 3, 4), (2, 3, 4, 2, 3, 4)]
    assert size[1:].numel() == 12
    assert (size[-1], size == (2, 3, 4)) == (4, True)


def test_the_parts_of_complex_numbers_are_assigned():
    x = resilin.tensor([1 + 2j, 3 + 4j])
    x.real = 5
    x.imag = resilin.tensor([7.0, 8.0])
    assert x.tolist() == [5 + 7j, 5 + 8j]
    y = resilin.ones(2)
    y.real = 3
    assert y.tolist() == [3, 3]
    with pytest.raises(RuntimeError, match="imag"):
        y.imag = 3


def test_a_number_is_copied_everywhere():
    assert resilin.zeros(2).copy_(5).tolist() == [5, 5]


def test_what_numpys_functions_make_of_tensors_is_a_tensor():
    x = resilin.tensor([0.0, 1.0])
    for found, expected in ((np.add(x, 1), [1, 2]), (np.maximum(np.ones(2), x), [1, 1]), (np.isnan(x), [False, False])):
        assert type(found) is resilin.Tensor
        assert found.tolist() == expected
    assert type(np.asarray(x)) is np.ndarray
