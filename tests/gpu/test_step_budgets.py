"""A training step of the benchmark's models puts no more on the device than this: launches, waits of the host, copies.

The numbers do not depend on the sizes, so the models are small here. Whoever makes one smaller writes it down; one that
grows is a step that got slower.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from device_work import WORK

import resilin as torch
from benchmarks.cases.models import MODELS, _mlp, gpt


class _Gru(torch.nn.Module):
    """The benchmark's classifier by an LSTM, by a GRU."""

    def __init__(self):
        super().__init__()
        self.gru, self.head = torch.nn.GRU(12, 16, batch_first=True), torch.nn.Linear(16, 10)

    def forward(self, x):
        return self.head(self.gru(x)[0][:, -1])


SMALL = {
    "tiny": replace(MODELS["tiny"], build=_mlp(16, 16, 10), input=(4, 16), target=(4,)),
    "mlp": replace(MODELS["mlp"], build=_mlp(16, 16, 16, 10), input=(4, 16), target=(4,)),
    "cnn": replace(MODELS["cnn"], input=(2, 1, 28, 28), target=(2,)),
    "residual_cnn": replace(MODELS["residual_cnn"], input=(2, 3, 16, 16), target=(2,)),
    "lstm": replace(MODELS["lstm"], input=(2, 64, 128), target=(2,)),
    "gru": replace(MODELS["lstm"], build=lambda torch: _Gru(), input=(2, 64, 12), target=(2,)),
    "gpt": replace(MODELS["gpt"], build=gpt(16, width=32), input=(2, 16), target=(2, 16)),
    "gpt_12_layers": replace(MODELS["gpt"], build=gpt(16, width=32, layers=12), input=(2, 16), target=(2, 16)),
}

BUDGETS = {
    "tiny": {"launches": 17, "waits": 2, "copies": 3},
    "mlp": {"launches": 22, "waits": 2, "copies": 3},
    "cnn": {"launches": 40, "waits": 2, "copies": 3},
    "residual_cnn": {"launches": 208, "waits": 2, "copies": 3},
    "lstm": {"launches": 286, "waits": 2, "copies": 5},
    "gru": {"launches": 285, "waits": 2, "copies": 4},
    "gpt": {"launches": 155, "waits": 2, "copies": 4},
    "gpt_12_layers": {"launches": 411, "waits": 2, "copies": 4},
}
"""Of a step after the first two: zero_grad, forward, cross entropy, backward, AdamW, loss.item()."""


def step_of(name):
    """A function that does a step of the model on the device, and gives its loss."""
    model = SMALL[name]
    torch.manual_seed(0)
    module = model.build(torch).to("cuda")
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
    x, y = (part.to("cuda") for part in model.batch(torch, 0))

    def step():
        optimizer.zero_grad()
        out = module(x)
        loss = torch.nn.functional.cross_entropy(out.view(-1, out.shape[-1]), y.view(-1))
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


@pytest.fixture
def standin(cuda, request):
    if not hasattr(cuda.cupy, "API"):
        pytest.skip("counts what the stand-in is asked to do, and this is a device")
    if cuda.xp.driver is None:
        pytest.skip("these are the launches of native code, which is not there")
    return cuda


@pytest.mark.parametrize("name", SMALL)
def test_a_step_stays_within_its_budget(standin, name):
    step = step_of(name)
    losses = [step(), step()]
    WORK.clear()
    losses.append(step())
    found = WORK.totals()
    assert losses[2] < losses[0]
    budget = BUDGETS[name]
    what = f"{name}: {WORK.launches.most_common(60)}, {WORK.waits}, {WORK.copies}"
    assert (found["launches"], found["waits"]) == (budget["launches"], budget["waits"]), what
    assert found["copies"] <= budget["copies"], what  # one of where the gradients lie, unless they lie where they lay


def test_views_and_empty_arrays_are_no_work_and_everything_else_is(standin):
    xp = standin.xp
    x = xp.arange(6)
    WORK.clear()
    x.reshape(2, 3)[0].T, xp.empty(3), xp.zeros(0), xp.ascontiguousarray(x), x.astype(x.dtype, copy=False)
    assert WORK.totals() == {"launches": 0, "waits": 0, "copies": 0}
    x + 1, xp.sin(x), x.sum(), x[xp.asarray([0, 1])], x.copy()
    assert WORK.totals() == {"launches": 5, "waits": 0, "copies": 1}
    x[1:] = 3
    bool(x[0]), x.get(), xp.flatnonzero(x)
    assert WORK.totals() == {"launches": 7, "waits": 3, "copies": 3}
