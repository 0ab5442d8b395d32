"""What kernels find wrong is raised where the host waits, and is not trained on."""

from __future__ import annotations

import numpy as np
import pytest

import resilin as torch
from resilin.core.kernels.cuda import faults, rows
from resilin.nn import functional as F


@pytest.fixture
def clean(cuda):
    """The device, with nothing noted before and after."""
    yield cuda
    cuda.xp.faults._pending = False
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
