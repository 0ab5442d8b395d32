"""What takes one launch on a device where it would take several, and gives what the CPU gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from device_work import WORK

import resilin as torch
from resilin.core.kernels.cuda import elementwise, layer_norm


@pytest.fixture
def standin(cuda):
    if not hasattr(cuda.cupy, "API"):
        pytest.skip("counts what the stand-in is asked to do, and this is a device")
    return cuda


def gradient(use: Any, where: str, *shape: int, seed: int = 0) -> np.ndarray:
    """The gradient of the sum of squares that `use` makes of a tensor, which is no leaf."""
    torch.manual_seed(seed)
    leaf = torch.randn(shape).to(where).requires_grad_()
    out = use(leaf * 2.0)
    sum((part * part).sum() for part in (out if isinstance(out, tuple | list) else [out])).backward()
    return leaf.grad.cpu().numpy()


PARTS = {
    "unbind": lambda x: x.unbind(0),
    "indices that move axes": lambda x: [x.permute(1, 0, 2)[i] for i in range(6)],
    "chunk": lambda x: x.chunk(3, 1),
    "split unevenly": lambda x: x.split([1, 3, 2], 1),
    "not all of it": lambda x: [x[0], x[2]],
    "the same part twice": lambda x: [x[0], x[1], x[2], x[3], x[1]],
    "parts along two axes": lambda x: [x[0], x[:, 1]],
    "every second": lambda x: [x[:, ::2], x[:, 1::2]],
    "parts and the whole": lambda x: [x[0], x, x[1:]],
    "from behind": lambda x: [x[-1], x[:-1]],
    "more than fit in one launch": lambda x: [x.reshape(24, 5)[i] for i in range(24)],
}


@pytest.mark.parametrize("name", PARTS)
def test_the_gradient_of_parts_is_that_of_the_cpu(cuda, name):
    ours, expected = (gradient(PARTS[name], where, 4, 6, 5) for where in ("cuda", "cpu"))
    np.testing.assert_allclose(ours, expected, rtol=1e-6)


def test_parts_that_are_all_of_a_tensor_are_laid_in_it_by_one_launch(standin):
    torch.manual_seed(0)
    leaf = torch.randn(4, 3, 5).to("cuda").requires_grad_()
    parts = leaf.unbind(1)
    given = [torch.randn(4, 5).to("cuda") for _ in parts]
    WORK.clear()
    torch.autograd.backward(parts, given)
    assert WORK.totals()["launches"] == 1
    np.testing.assert_array_equal(leaf.grad.cpu().numpy(), np.stack([one.cpu().numpy() for one in given], 1))


def test_arrays_of_one_shape_become_contiguous_in_one_launch(standin):
    xp = standin.xp
    host = [np.random.default_rng(i).standard_normal((3, 4, 2)).astype(np.float32) for i in range(3)]
    given = [xp.array(array).transpose(1, 0, 2) for array in host]
    whole = xp.array(host[0])
    WORK.clear()
    found = elementwise.contiguous(xp, [*given, whole])
    assert WORK.totals()["launches"] == 1
    assert found[3] is whole
    for array, expected in zip(found, host, strict=False):
        assert array.flags.c_contiguous
        np.testing.assert_array_equal(array.get(), expected.transpose(1, 0, 2))
    mixed = elementwise.contiguous(xp, [given[0], given[1].astype(np.float64), given[2][:, :1]])
    for array, expected in zip(mixed, (given[0], given[1], given[2][:, :1]), strict=True):
        np.testing.assert_array_equal(array.get(), expected.get())


class Residual(torch.nn.Module):
    """A block whose input gets its gradient by two ways, the second of them a norm's."""

    def __init__(self) -> None:
        super().__init__()
        self.before = torch.nn.Linear(6, 6, bias=False)
        self.norm = torch.nn.LayerNorm(6)
        self.after = torch.nn.Linear(6, 6, bias=False)

    def forward(self, x: Any) -> Any:
        x = self.before(x)
        return x + self.after(self.norm(x))


def trained(where: str, hook: Any = None) -> dict[str, np.ndarray]:
    torch.manual_seed(2)
    block = Residual().to(where)
    x = torch.randn(7, 6).to(where).requires_grad_()
    if hook is not None:
        block.norm.register_full_backward_hook(hook)
    block(x).square().sum().backward()
    return {name: part.grad.cpu().numpy() for name, part in [*block.named_parameters(), ("x", x)]}


@pytest.mark.parametrize("hook", [None, lambda module, given, out: None], ids=["plain", "hooked"])
def test_a_norm_adds_what_waits_for_its_input_already(cuda, hook):
    ours, expected = trained("cuda", hook), trained("cpu", hook)
    for name, found in ours.items():
        np.testing.assert_allclose(found, expected[name], rtol=2e-5, atol=2e-5, err_msg=name)


def test_the_norm_and_the_sum_of_its_gradients_are_one_launch(standin):
    trained("cuda")
    WORK.clear()
    trained("cuda")
    assert [name for name in WORK.launches if "layer_norm_backward" in name] != []
    assert WORK.launches["__add__"] == 1  # that of the forward: the gradient's is in the norm's kernel


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16], ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize(("N", "D"), [(1, 1), (33, 31), (700, 65)])
def test_what_a_norm_adds_is_added_before_it_rounds(cuda, N, D, dtype):
    xp, rng = cuda.xp, np.random.default_rng(N)
    x, g, more = (xp.array(rng.standard_normal((N, D)).astype(dtype)) for _ in range(3))
    weight = xp.ones(D, np.float32 if dtype == np.float16 else dtype)
    _y, mean, rstd = layer_norm.forward(xp, x, weight, None, 1e-2, D)
    alone, with_more = (layer_norm.backward(xp, g, x, weight, mean, rstd, one) for one in (None, more))
    tolerance = 1e-2 if dtype == np.float16 else 1e-5
    expected = alone[0].get().astype(np.float64) + more.get()
    np.testing.assert_allclose(with_more[0].get().astype(np.float64), expected, rtol=tolerance, atol=tolerance)
    for ours, other in zip(with_more[1:], alone[1:], strict=True):
        np.testing.assert_array_equal(ours.get(), other.get())


@pytest.mark.parametrize(
    ("start", "method", "value"),
    [
        ([1, 2, 3], "add_", 4),
        ([1, 2, 3], "mul_", -2),
        ([1.5, 2.0, 3.0], "add_", 0.25),
        ([1.5, 2.0, 3.0], "div_", 2),
        ([1.5, 2.0, 3.0], "sub_", torch.tensor([1.0, 2.0, 4.0])),
        ([[1.0, 2.0], [3.0, 4.0]], "mul_", torch.tensor([2.0, 3.0])),
    ],
)
def test_an_operation_in_place_is_one_launch(standin, start, method, value):
    expected = getattr(torch.tensor(start), method)(value).numpy()
    x = torch.tensor(start).to("cuda")
    other = value.to("cuda") if isinstance(value, torch.Tensor) else value
    version = x._version
    WORK.clear()
    assert getattr(x, method)(other) is x
    assert WORK.totals()["launches"] == 1
    assert x._version == version + 1
    np.testing.assert_array_equal(x.cpu().numpy(), expected)


@pytest.mark.parametrize(
    ("start", "method", "value"),
    [
        (torch.tensor([1, 2], dtype=torch.uint8), "add_", 255),  # wraps around
        (torch.tensor([1, 2], dtype=torch.int32), "add_", True),
        (torch.tensor([1.0, 2.0], dtype=torch.float16), "mul_", 1.0009),  # the number is not rounded to 16 bits
        (torch.tensor([1.0, 2.0]), "add_", torch.tensor([1, 2])),
        (torch.tensor([True, False]), "mul_", True),
    ],
)
def test_operations_in_place_that_convert_give_what_the_cpu_gives(cuda, start, method, value):
    x = start.to("cuda")
    getattr(x, method)(value.to("cuda") if isinstance(value, torch.Tensor) else value)
    expected = getattr(start.clone(), method)(value)
    assert x.dtype == expected.dtype
    np.testing.assert_array_equal(x.cpu().numpy(), expected.numpy())


def test_what_cannot_be_written_in_place_still_raises(cuda):
    with pytest.raises(RuntimeError, match="can't be cast"):
        torch.tensor([1, 2]).to("cuda").add_(0.5)
    with pytest.raises(RuntimeError):
        torch.ones(2).to("cuda").add_(torch.ones(3, 2).to("cuda"))
