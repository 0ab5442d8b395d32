"""Tensors of two devices are refused by every public function, with both named; what may meet is listed here."""

import pytest

import resilin
from resilin.core.public import device_check, dispatch
from resilin.nn import functional

A = resilin.ones(2, 2, device="sim:0")
C = resilin.ones(2, 2)
PLACES = resilin.tensor([0, 1])
MASK = resilin.tensor([[True, False], [True, True]])

REFUSED = {
    "equal": lambda: resilin.equal(A, C),
    "allclose": lambda: A.allclose(C),
    "isclose": lambda: resilin.isclose(A, C),
    "isin": lambda: resilin.isin(A, C),
    "searchsorted": lambda: resilin.searchsorted(A, C),
    "bucketize": lambda: resilin.bucketize(A, C[0]),
    "bincount": lambda: resilin.bincount(PLACES.to("sim:0"), C[0]),
    "histogram": lambda: resilin.histogram(A, C[0]),
    "quantile": lambda: resilin.quantile(A, C[0]),
    "masked_fill": lambda: A.masked_fill(MASK, 1.0),
    "masked_select": lambda: A.masked_select(MASK),
    "gather": lambda: A.gather(0, MASK.long()),
    "index_select": lambda: A.index_select(0, PLACES),
    "index_add": lambda: A.index_add(0, PLACES, A),
    "scatter": lambda: A.scatter(0, MASK.long(), A),
    "take": lambda: A.take(PLACES),
    "getitem": lambda: A[PLACES.to("sim:1"), 0],
    "nll_loss": lambda: functional.nll_loss(A, target=PLACES),
    "cat": lambda: resilin.cat([A, C]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_tensors_of_two_devices_are_refused_with_both_named(name):
    with pytest.raises(
        RuntimeError, match=rf"{name}: expected all tensors .* found (sim:0 and (cpu|sim:1)|cpu and sim)"
    ):
        REFUSED[name]()


@pytest.mark.parametrize("name", ["isin", "nll_loss"])
def test_the_form_in_python_refuses_them_too(name, monkeypatch):
    owner = functional if name == "nll_loss" else resilin
    public = dispatch._in_python(getattr(owner, name).__wrapped__, None)
    public.__name__ = name
    with pytest.raises(RuntimeError, match="found sim:0 and cpu"):
        public(A, C)


def test_tensors_of_the_cpu_are_not_indexed_by_those_of_other_devices():
    with pytest.raises(RuntimeError, match="found cpu and sim:0"):
        C[PLACES.to("sim:0")]


def test_indices_and_single_numbers_of_the_cpu_may_be_beside_tensors_of_any_device():
    assert resilin.equal(A[PLACES].cpu(), C)
    assert A[MASK].tolist() == [1.0, 1.0, 1.0]
    assert (A + resilin.tensor(2.0)).tolist() == [[3.0, 3.0], [3.0, 3.0]]
    assert A.clone().copy_(C * 3).tolist() == [[3.0, 3.0], [3.0, 3.0]]
    assert C.to(A).device == C.type_as(A).device == A.device


def test_what_may_meet_names_functions_that_there_are():
    named = {function.__name__ for function in dispatch.PUBLIC} | {"__set__"}
    missing = (device_check._ANY | device_check._BESIDE_CPU) - named
    assert not missing, missing


def test_the_gradient_of_a_moved_tensor_is_shown_on_its_device():
    x = resilin.ones(2, requires_grad=True)
    moved = x.to("sim:1")
    moved.retain_grad()
    seen = []
    moved.register_hook(lambda g: seen.append(str(g.device)))
    (moved * 2).sum().backward()
    assert seen == ["sim:1"]
    assert str(moved.grad.device) == "sim:1"
    assert str(x.grad.device) == "cpu"
