"""Tests that the op registry generates from the declarations."""

import extent
import pytest

import resilin.fft
import resilin.linalg
import resilin.nn
import resilin.special  # noqa: F401 - declare their ops, as the next does
from resilin.core import dtype as dtypes
from resilin.core.ops.registry import OPS
from resilin.core.public import methods  # noqa: F401
from resilin.testing import check_dtypes, check_ops, coverage, references

coverage.load()


@pytest.mark.parametrize(("name", "number"), list(check_ops.cases()))
def test_the_forward_equals_its_reference(name, number):
    check_ops.check_forward(name, number)


@pytest.mark.parametrize(("name", "number"), [case for case in check_ops.cases() if case[0] in references.names()])
def test_the_forward_equals_that_of_numpy_or_scipy(name, number):
    check_ops.check_reference(name, number, references.find(name))


@pytest.mark.parametrize(("name", "number"), list(check_ops.cases(gradients=True)))
def test_the_first_derivative_agrees_with_finite_differences(name, number):
    check_ops.check_gradient(name, number, order=1)


@pytest.mark.parametrize(("name", "number"), extent.first_of_each(check_ops.cases(gradients=True)))
def test_the_second_derivative_agrees_with_finite_differences(name, number):
    check_ops.check_gradient(name, number, order=2)


@pytest.mark.parametrize(("name", "number"), list(check_ops.cases(gradients=True, complex_only=True)))
def test_the_complex_derivative_agrees_with_finite_differences(name, number):
    check_ops.check_gradient(name, number, order=1, as_complex=True)


@pytest.mark.parametrize(("name", "number"), extent.first_of_each(check_ops.cases(gradients=True, complex_only=True)))
def test_the_second_complex_derivative_agrees_with_finite_differences(name, number):
    check_ops.check_gradient(name, number, order=2, as_complex=True)


@pytest.mark.parametrize(
    ("name", "number"), extent.first_of_each(case for case in check_ops.cases() if check_ops.layouts(case[0]))
)
def test_tensors_that_lie_otherwise_in_memory_give_the_same(name, number):
    for layout in check_ops.layouts(name):
        check_ops.check_layout(name, number, layout)


@pytest.mark.parametrize(("name", "number"), extent.first_of_each(check_ops.cases()))
def test_every_dtype_is_computed_as_the_reference_does_or_refused_by_name(name, number):
    for dtype in check_dtypes.TOLERANCES:
        check_dtypes.check_dtype(name, number, dtype)


MAY_BE_THEIR_INPUT = ["ascontiguous", "astype", "conj", "moveaxis", "split_parts"]  # used on arrays of one's own


@pytest.mark.parametrize(
    ("name", "number"), extent.first_of_each(case for case in check_ops.cases() if case[0] not in MAY_BE_THEIR_INPUT)
)
def test_only_views_share_memory_with_an_input(name, number):
    check_ops.check_memory(name, number)


ELEMENTWISE = sorted(name for name, op in OPS.items() if op.elementwise and op.samples is not None)
PAIRS = [name for name in ELEMENTWISE if OPS[name].n == 2]


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_every_element_is_treated_alike_whatever_their_number(name):
    check_ops.check_sizes(name)


@pytest.mark.parametrize("name", PAIRS)
def test_operands_are_stretched_and_their_gradients_summed_back(name):
    check_ops.check_broadcast(name)


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_a_mistake_is_answered_with_the_ops_name(name):
    check_ops.check_refusals(name)


@pytest.mark.parametrize(
    ("name", "number"), [case for case in check_ops.cases(gradients=True) if "cpu" in OPS[case[0]].impls]
)
def test_the_fused_kernel_agrees_with_the_declared_form(name, number):
    check_ops.check_override(name, number)


@pytest.mark.parametrize(
    ("name", "number"),
    # astype's result has the dtype asked for, "full" says that 16 bits are refused
    extent.first_of_each(case for case in check_ops.cases() if case[0] != "astype" and OPS[case[0]].dtypes != "full"),
)
def test_sixteen_bit_floats_stay_what_they_are(name, number):
    for half in (dtypes.bfloat16.np, dtypes.float16.np):
        check_ops.check_half(name, number, half)


def test_every_differentiable_op_declares_samples():
    silent = [name for name, op in OPS.items() if op.differentiable and op.order and op.samples is None]
    assert silent == []
