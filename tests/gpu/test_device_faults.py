"""What kernels find wrong is raised where the host waits, and is not trained on."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import numpy as np
import pytest
from device_work import WORK

import resilin as torch
from resilin.core.backends import cupy as backend
from resilin.core.kernels.cuda import faults, rows, sources
from resilin.errors import AcceleratorError, KernelError
from resilin.nn import functional as F


@pytest.fixture
def clean(cuda):
    """The device, with nothing noted before and after."""
    yield cuda
    cuda.xp.faults._pending.clear()
    cuda.xp.faults.word.fill(0)


def table():
    return torch.arange(6.0, device="cuda").reshape(3, 2).requires_grad_()


@pytest.mark.parametrize("wrong", [3, -1, 2**40])
def test_an_index_out_of_range_is_raised_where_the_host_waits(clean, wrong):
    y = F.embedding(torch.tensor([0, wrong], device="cuda"), table())
    with pytest.raises(IndexError, match=rf"embedding: index {wrong} is outside \[0, 3\); the table has 3 rows"):
        y.cpu()
    assert y.cpu().tolist() == [[0.0, 1.0], [0.0, 0.0]]  # said once


def test_a_target_out_of_range_is_raised_by_synchronize(clean):
    F.cross_entropy(torch.zeros(2, 3, device="cuda"), torch.tensor([1, 5], device="cuda"))
    with pytest.raises(IndexError, match=r"cross_entropy: a target is 5; expected a class in \[0, 3\)"):
        torch.cuda.synchronize()


def test_an_optimizer_does_nothing_with_gradients_of_what_is_wrong(clean):
    weight = table()
    optimizer = torch.optim.SGD([weight], lr=1.0)
    F.embedding(torch.tensor([0, 3], device="cuda"), weight).sum().backward()
    optimizer.step()
    with pytest.raises(IndexError, match="index 3 is outside"):
        weight.detach().cpu()
    assert weight.detach().cpu().tolist() == [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]
    optimizer.zero_grad()
    F.embedding(torch.tensor([0, 2], device="cuda"), weight).sum().backward()
    optimizer.step()
    assert weight.detach().cpu().tolist() == [[-1.0, 0.0], [2.0, 3.0], [3.0, 4.0]]


def test_with_launch_blocking_it_is_raised_at_once(clean, monkeypatch):
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    monkeypatch.setattr(clean.xp, "faults", faults.Faults(clean.xp))
    with pytest.raises(IndexError, match="index 9 is outside"):
        F.embedding(torch.tensor([9], device="cuda"), table())


def test_rows_of_any_size_are_taken_and_none_is_fine(clean):
    xp = clean.xp
    for dtype in (np.int8, np.float16, np.float32, np.int64, np.complex64):
        whole = np.arange(12).reshape(4, 3).astype(dtype)
        index = np.array([[3, 0], [1, 1]])
        found = rows.take_rows(xp, xp.asarray(whole), xp.asarray(index))
        np.testing.assert_array_equal(found.get(), whole[index])
        assert rows.take_rows(xp, xp.asarray(whole), xp.asarray(index[:0])).shape == (0, 2, 3)
    clean.synchronize(0)


def test_the_mean_loss_of_nothing_is_no_number_and_has_no_gradient(cuda):
    logits = torch.zeros(2, 3, device="cuda", requires_grad=True)
    loss = F.cross_entropy(logits, torch.tensor([-100, -100], device="cuda"))
    loss.backward()
    assert np.isnan(loss.item())
    assert logits.grad.cpu().tolist() == [[0.0] * 3] * 2


WRONG = {
    "gather": (lambda x, i: x.gather(0, i.reshape(2, 1)), RuntimeError, r"gather\(\): index 3 is out of bounds"),
    "index_select": (lambda x, i: x.index_select(0, i), IndexError, r"index_select\(\): index 3 is out of bounds"),
    "take_along_dim": (lambda x, i: torch.take_along_dim(x, i.reshape(2, 1), 0), RuntimeError, "index 3 is out of"),
    "scatter": (lambda x, i: x.scatter(0, i.reshape(2, 1), 1.0), RuntimeError, r"scatter\(\): index 3 is out of"),
    "scatter_add": (
        lambda x, i: x.scatter_add(0, i.reshape(2, 1), torch.ones(2, 1, device="cuda")),
        RuntimeError,
        r"scatter_add\(\): index 3 is out of bounds",
    ),
    "index_add": (lambda x, i: x.index_add(0, i, x[:2] * 1), IndexError, r"index_add\(\): index 3 is out of bounds"),
    "index_copy": (lambda x, i: x.index_copy(0, i, x[:2] * 1), IndexError, r"index_copy\(\): index 3 is out of"),
    "index_fill": (lambda x, i: x.index_fill(0, i, 2.0), IndexError, r"index_fill\(\): index 3 is out of bounds"),
    "getitem": (lambda x, i: x[i], IndexError, "index 3 is out of bounds for dimension 0 with size 3"),
    "two of them": (lambda x, i: x[i - 3, i - 1], IndexError, "index 2 is out of bounds for dimension 1 with size 2"),
    "take": (lambda x, i: x.take(i + 3), IndexError, r"take\(\): index 6 is out of range for 6 elements"),
    "put": (lambda x, i: x.put(i + 3, x[0] * 1), IndexError, r"put_\(\): index 6 is out of range for 6 elements"),
    "one_hot": (lambda x, i: F.one_hot(i, 3), RuntimeError, "smaller than num_classes=3, got 3"),
    "nll_loss": (lambda x, i: F.nll_loss(x[:2], i), IndexError, r"nll_loss: target out of bounds: .*\[0, 2\), got 3"),
    "multi_margin_loss": (lambda x, i: F.multi_margin_loss(x[:2], i), RuntimeError, "out of range 0 to 1, got 3"),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("kind", [torch.int64, torch.int32])
def test_the_host_does_not_wait_for_the_range_of_indices_and_hears_of_it_with_op_and_line(clean, name, kind):
    act, error, said = WRONG[name]
    x, i = table().detach(), torch.tensor([0, 3], device="cuda").to(kind)
    WORK.clear()
    made = act(x, i)
    assert not hasattr(clean.cupy, "API") or WORK.waits.total() == 0, WORK.waits
    with pytest.raises(error, match=rf"{said}.* \(queued by .*test_device_faults\.py:\d+\)"):
        made.cpu()
    torch.cuda.synchronize()  # said once


def test_what_is_in_range_is_what_it_is_on_the_cpu_and_nothing_is_said(clean):
    on_cpu, i = torch.arange(6.0).reshape(3, 2), torch.tensor([2, -1, 0])
    x, there = on_cpu.cuda(), i.cuda()
    for act in (lambda a, b: a[b], lambda a, b: a[:, b % 2], lambda a, b: a.take(b), lambda a, b: a[b, b % 2]):
        assert act(x, there).tolist() == act(on_cpu, i).tolist()
    assert x[there[:0]].shape == (0, 2)


def test_an_optimizer_without_a_kernel_waits_to_hear_of_a_fault(clean):
    wide = torch.zeros(3, 4, device="cuda")[:, ::2].detach().requires_grad_()  # gaps in memory: step by step
    optimizer = torch.optim.SGD([wide], lr=1.0)
    wide[torch.tensor([0, 3], device="cuda")].sum().backward()
    with pytest.raises(IndexError, match="index 3 is out of bounds"):
        optimizer.step()
    assert wide.detach().tolist() == [[0.0, 0.0]] * 3


def test_what_a_stream_or_an_event_is_waited_for_says_it_too(clean):
    for wait in (torch.cuda.Stream().synchronize, torch.cuda.Event().synchronize):
        table().detach()[torch.tensor([9], device="cuda")]
        with pytest.raises(IndexError, match="index 9 is out of bounds"):
            wait()


def test_what_a_kernel_on_another_stream_notes_later_is_heard_of_where_that_stream_is_waited_for(clean, monkeypatch):
    other = torch.cuda.Stream()
    other._stream = types.SimpleNamespace(ptr=0x5, synchronize=lambda: None)
    code = clean.xp.faults.code(IndexError, "index {value} is outside")
    monkeypatch.setattr(clean.cupy.cuda, "get_current_stream", lambda: other._stream)
    clean.xp.faults.launched()
    monkeypatch.undo()
    torch.ones(1, device="cuda").cpu()  # nothing is noted yet: the kernel still waits there
    clean.xp.faults.word.fill(int(code) + 7)
    with pytest.raises(IndexError, match="index 7 is outside"):
        other.synchronize()
    other.synchronize()
    torch.cuda.synchronize()  # said once


def test_values_of_any_size_are_named_as_far_as_the_word_goes(clean):
    table().detach()[torch.tensor([2**62], device="cuda")]
    with pytest.raises(IndexError, match=rf"index {2**43 - 1} is out of bounds"):
        torch.cuda.synchronize()


def test_a_padded_embedding_trains_without_a_wait_and_its_row_stays(clean):
    weight, index = table(), torch.tensor([0, 1, 1], device="cuda")
    WORK.clear()
    F.embedding(index, weight, padding_idx=1).sum().backward()
    assert not hasattr(clean.cupy, "API") or WORK.waits.total() == 0, WORK.waits
    assert weight.grad.tolist() == [[1.0, 1.0], [0.0, 0.0], [0.0, 0.0]]


class Illegal(RuntimeError):  # as CuPy's are
    """CUDA's error of a device that is lost."""


@pytest.fixture
def lost(clean, monkeypatch):
    """A device on which whatever is waited for fails."""
    if not hasattr(clean.cupy, "API"):
        pytest.skip("no real device is broken for a test")

    def fail(*args, **kwargs):
        raise Illegal("cudaErrorIllegalAddress: an illegal memory access was encountered")

    monkeypatch.setattr(clean.cupy.cuda.runtime, "CUDARuntimeError", Illegal)
    monkeypatch.setenv("RANK", "3")
    return lambda owner, name: monkeypatch.setattr(owner, name, fail)


def test_an_illegal_address_names_rank_work_and_stream(clean, lost):
    x = torch.ones(3, device="cuda").exp() * 2
    lost(type(x._array), "get")
    with pytest.raises(
        AcceleratorError, match=r"rank 3: the CUDA device failed: cudaErrorIllegalAddress.*a copy from the"
    ):
        x.cpu()
    lost(clean.cupy.cuda.Device, "synchronize")
    said = r"synchronize, stream 0x0; kernels launched last: .*CUDA_LAUNCH_BLOCKING=1 finds which.*start it again"
    with pytest.raises(AcceleratorError, match=said):
        torch.cuda.synchronize()
    clean.xp.kernels["philox", "uniform<float>"] = lambda *args: type(x._array).get(None)
    with pytest.raises(AcceleratorError, match="noticed in the launch of uniform<float>"):
        torch.rand(3, device="cuda")
    del clean.xp.kernels["philox", "uniform<float>"]


def test_an_illegal_address_that_the_array_library_meets_names_rank_and_work(clean, lost):
    x = torch.ones(3, device="cuda", requires_grad=True)
    sums, optimizer = x.cumsum(0).sum(), torch.optim.SGD([x])
    x.exp().sum().backward()
    lost(clean.xp, "flip")
    for work, act in (("flip", lambda: x.detach().flip(0)), ("the gradient of CumsumBackward0", sums.backward)):
        with pytest.raises(AcceleratorError, match=rf"rank 3: the CUDA device failed: .*noticed in {work}, stream 0x0"):
            act()
    lost(type(x._array), "get")
    with pytest.raises(AcceleratorError, match=r"rank 3: .*noticed in a copy from the device, stream 0x0"):
        torch.amp.GradScaler("cuda").unscale_(optimizer)


def test_a_forked_process_hears_why_it_cannot_use_its_parents_device(clean, lost, monkeypatch):
    x = torch.ones(3, device="cuda")
    lost(type(x._array), "get")
    monkeypatch.setattr(Illegal, "status", 3, raising=False)
    with pytest.raises(
        AcceleratorError, match=r"rank 3: a copy from the device: .*forked from one that used CUDA.*spawn"
    ):
        x.cpu()


def test_a_kernel_that_does_not_compile_names_file_and_line(clean, monkeypatch):
    broken = sources.text("index_range").replace("note(fault, code, value)", "nothing(fault, code, value)")
    own = (Path(sources.__file__).parent / "index_range.cu").read_text().splitlines()
    line = next(number for number, text in enumerate(own, 1) if "note(fault" in text)
    monkeypatch.setattr(sources, "text", lambda name: broken)
    monkeypatch.setattr(clean.xp, "compiled", {})
    monkeypatch.setattr(clean.xp, "kernels", {})
    with pytest.raises(KernelError, match=rf"index_range\.cu, line {line}: the CUDA kernel index_range"):
        table().detach()[torch.tensor([1], device="cuda")]


def cupy_of(**runtime):
    """A module that says it is CuPy, with these functions of CUDA's runtime."""
    library = types.ModuleType("cupy")
    library.__version__ = runtime.pop("version", "14.2.0")
    library.cuda = types.SimpleNamespace(runtime=types.SimpleNamespace(CUDARuntimeError=Illegal, **runtime))
    return library


def raising(text):
    def function():
        raise Illegal(text)

    return function


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (None, r"needs CuPy, which cannot be imported .*: pip install 'resilin\[cuda12\]'"),
        (cupy_of(version="13.6.0"), r"needs CuPy 14 or newer, found 13\.6\.0: pip install"),
        (cupy_of(getDeviceCount=lambda: 0), "needs a CUDA device, and CuPy finds none$"),
        (cupy_of(getDeviceCount=raising("cudaErrorNoDevice: none")), "CuPy finds none: cudaErrorNoDevice"),
        (
            cupy_of(
                getDeviceCount=raising("cudaErrorInsufficientDriver: too old"),
                runtimeGetVersion=lambda: 13000,
                driverGetVersion=lambda: 12040,
            ),
            r"needs a newer driver: the one here is for CUDA 12\.4, CuPy's libraries are of CUDA 13\.0 ",
        ),
    ],
    ids=["no CuPy", "an old CuPy", "no device", "no device that works", "an old driver"],
)
def test_why_there_is_no_device_is_said(monkeypatch, module, said):
    monkeypatch.setitem(sys.modules, "cupy", module)
    with pytest.raises(RuntimeError, match=said):
        backend.load(np)


def test_with_launch_blocking_indexing_raises_at_once(clean, monkeypatch):
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    monkeypatch.setattr(clean.xp, "faults", faults.Faults(clean.xp))
    x, wrong = table().detach(), torch.tensor([0, 3], device="cuda")
    with pytest.raises(IndexError, match="index 3 is out of bounds for dimension 0 with size 3"):
        x[wrong]
    with pytest.raises(RuntimeError, match=r"gather\(\): index 3 is out of bounds"):
        x.gather(0, wrong.reshape(2, 1))
