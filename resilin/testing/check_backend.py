"""The conformance suite of `resilin.core.backends.ArrayBackend`: what every device type must do, as tests to inherit.

    resilin.register_backend(Mine())

    class TestMine(BackendConformance):
        @pytest.fixture
        def where(self):
            return "mine:0"

Every op of the registry, its gradient and the gradient's gradient must give there what they give on the CPU, or raise
the NotImplementedError that names the op and the device type.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import resilin
from resilin.core import dtype as dtypes
from resilin.core.device import device
from resilin.core.ops.registry import OPS, Op
from resilin.core.tensor import Tensor, wrap
from resilin.testing import check_ops, coverage, domains

coverage.load()

# Ops whose arguments beside tensors are arrays of the host on every device: windows and weights that are small
HOST_ARGUMENTS = frozenset(("avg_pool2d", "avg_pool2d_spread", "resample"))
# dtype, whether complex, tolerance
KINDS = ((np.float64, False, 1e-10), (np.float32, False, 1e-4), (np.float64, True, 1e-10))
CASES = [case for case in check_ops.cases() if case[0] != "transfer"]  # which is about devices itself
TWICE = [case for case in CASES if OPS[case[0]].differentiable and OPS[case[0]].order > 1]
DTYPES = [dtypes.bool_, dtypes.uint8, dtypes.int64, dtypes.float16, dtypes.bfloat16, dtypes.float32, dtypes.complex64]


def place(value: Any, dev: Any) -> Any:
    """A sample's argument on `dev`: tensors and arrays moved, everything else as it is."""
    if isinstance(value, Tensor):
        return wrap(dev.backend.from_host(value._array, dev.index or 0), dev)
    if isinstance(value, np.ndarray):
        return dev.backend.from_host(value, dev.index or 0)
    if isinstance(value, tuple | list):
        return type(value)(place(part, dev) for part in value)
    return value


def arguments(op: Op, sample: tuple[Any, ...], where: str) -> tuple[Any, ...]:
    """The sample's arguments on a device."""
    if where == "cpu":
        return sample
    first = place(sample[: max(op.n, 1)], device(where))
    rest = sample[max(op.n, 1) :]
    return (*first, *(rest if op.name in HOST_ARGUMENTS else place(rest, device(where))))


def results(op: Op, sample: tuple[Any, ...], where: str, order: int) -> list[Any]:
    """Outputs, then gradients (of gradients, for order 2) of a sample computed on a device, as numpy arrays."""
    given = arguments(op, sample, where)
    inputs = [t for t in (given[0] if op.n < 0 else given[: op.n]) if isinstance(t, Tensor)]
    for tensor in inputs:
        tensor.requires_grad_(op.differentiable and op.order > 0 and tensor._array.dtype.kind in "fcV")
    found = domains.of(op.name).leave(op.call(*given))
    outs = list(found) if isinstance(found, tuple) else [found]
    graded = [t for t in inputs if t.requires_grad]
    for _ in range(order):
        wanted = [t for t in outs if t.requires_grad]
        if not (graded and wanted):
            break
        seeds = [_seed(t) for t in wanted]
        grads = resilin.autograd.grad(wanted, graded, seeds, create_graph=order > 1, allow_unused=True)
        outs = [*outs, *(g for g in grads if g is not None)]
    own = type(device(where).backend.from_host(np.zeros(1), 0))
    for out in outs:
        _expect(out.device is device(where), f"{op}: a result is on {out.device}, expected {where}")
        _expect(type(out._array) is own, f"{op}: a result is a {type(out._array)}, expected a {own} of {where}")
    return [out.detach().cpu().numpy() for out in outs]


def _seed(like: Tensor) -> Tensor:
    """What comes back to an output: numbers that differ, since equal ones hide what sums to nothing."""
    seed: Tensor = (resilin.arange(like.numel()).reshape(like.shape) % 7 / 8 + 1).to(like.device).to(like.dtype)
    return seed


def _expect(holds: bool, message: str) -> None:
    if not holds:
        raise AssertionError(message)


def sample_of(op: Op, number: int, dtype: Any, as_complex: bool = False) -> tuple[Any, ...]:
    """A sample of the registry, made one of the op's domain."""
    first, *rest = check_ops.samples(op, dtype, as_complex)[number]
    entered = domains.of(op.name).enter(first)
    return (entered.detach() if isinstance(entered, Tensor) else entered, *rest)


def check_op(
    name: str, number: int, where: str, dtype: Any, as_complex: bool, tolerance: float, order: int = 1
) -> None:
    """An op and its derivatives up to `order` give on device `where` what they give on the CPU."""
    op = OPS[name]
    on_cpu, there = (results(op, sample_of(op, number, dtype, as_complex), at, order) for at in ("cpu", where))
    _expect(len(there) == len(on_cpu), f"{op} sample {number}: {len(there)} results, {len(on_cpu)} on the CPU")
    for found, expected in zip(there, on_cpu, strict=True):
        _expect(found.dtype == expected.dtype, f"{op}: {found.dtype}, {expected.dtype} on the CPU")
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance, err_msg=f"{op} sample {number}")


class BackendConformance:
    """Inherit it and give a `where` fixture: the name of a device, such as "mine:0"."""

    def _check(
        self, name: str, number: int, where: str, dtype: Any, as_complex: bool, tolerance: float, n: int
    ) -> None:
        try:
            check_op(name, number, where, dtype, as_complex, tolerance, n)
        except NotImplementedError as error:
            _expect(f"is not supported on {device(where).type} devices" in str(error), f"{name}: {error}")

    @pytest.mark.parametrize(("name", "number"), CASES)
    def test_an_op_and_its_gradient_are_those_of_the_cpu(self, where: str, name: str, number: int) -> None:
        for dtype, as_complex, tolerance in KINDS[: 3 if OPS[name].complex and OPS[name].order else 2]:
            self._check(name, number, where, dtype, as_complex, tolerance, 1)

    @pytest.mark.parametrize(("name", "number"), TWICE)
    def test_the_gradient_of_the_gradient_is_that_of_the_cpu(self, where: str, name: str, number: int) -> None:
        self._check(name, number, where, np.float64, False, 1e-9, 2)

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)], ids=str)
    def test_a_tensor_comes_back_as_it_went(self, where: str, dtype: Any, shape: tuple[int, ...]) -> None:
        x = resilin.ones(*shape).to(dtype) if shape else resilin.tensor(1).to(dtype)
        back = x.to(where).cpu()
        assert back.dtype is dtype
        assert back.shape == x.shape
        assert resilin.equal(back, x)

    def test_a_tensor_that_is_not_contiguous_comes_back_as_it_went(self, where: str) -> None:
        x = resilin.arange(24).reshape(2, 3, 4).permute(2, 0, 1)[::2]
        assert resilin.equal(x.to(where).cpu(), x)
        assert resilin.equal(x.to(where).permute(1, 0, 2).cpu(), x.permute(1, 0, 2))

    def test_a_copy_has_memory_of_its_own(self, where: str) -> None:
        x = resilin.ones(3)
        there = x.to(where)
        back = there.cpu()
        there.add_(1)
        assert x.tolist() == back.tolist() == [1.0] * 3
        assert there.tolist() == [2.0] * 3

    def test_tensors_of_other_devices_are_refused(self, where: str) -> None:
        with pytest.raises(RuntimeError, match="same device"):
            resilin.ones(2, device=where) + resilin.ones(2)

    def test_draws_are_those_of_the_cpu(self, where: str) -> None:
        for draw in (resilin.rand, resilin.randn):
            here, there = resilin.Generator().manual_seed(3), resilin.Generator().manual_seed(3)
            assert resilin.equal(draw(5, generator=here), draw(5, generator=there, device=where).cpu())

    def test_synchronize_returns(self, where: str) -> None:
        made = device(where)
        made.backend.synchronize(made.index or 0)

    def test_a_device_beyond_the_count_is_refused(self, where: str) -> None:
        made = device(where)
        with pytest.raises(RuntimeError, match="does not exist"):
            device(made.type, made.backend.count())
