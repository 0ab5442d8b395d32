"""What modules have beside their parameters, written back as it was."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import resilin
from resilin import nn
from resilin.errors import StateError
from resilin.nn.modules import extra_state


class Counting(nn.Module):
    """Has an extra state."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.register_buffer("seen", resilin.tensor([0.0, float("nan"), 1.0]))

    def get_extra_state(self) -> Any:
        return {"count": self.count}

    def set_extra_state(self, state: Any) -> None:
        self.count = state["count"]


def test_what_was_seen_is_written_back_to_the_bit_and_only_what_differs_counts_as_written() -> None:
    module = nn.Sequential(Counting(), nn.BatchNorm1d(2), Counting())
    module[2].count = 7
    buffers = {name: buffer.numpy().copy() for name, buffer in module.named_buffers()}
    extra = extra_state.extra_states(module)
    assert extra == {"0": {"count": 0}, "2": {"count": 7}}
    writes = {name: buffer._writes for name, buffer in module.named_buffers()}
    extra_state.write(module, buffers, extra, "here")
    assert {name: buffer._writes for name, buffer in module.named_buffers()} == writes
    buffers["0.seen"][0] = -0.0  # equal as a number
    extra_state.write(module, buffers, {"0": {"count": 3}, "2": {"count": 4}}, "here")
    assert np.signbit(module[0].seen.numpy()[0])
    assert (module[0].count, module[2].count) == (3, 4)
    changed = [name for name, buffer in module.named_buffers() if buffer._writes != writes[name]]
    assert changed == ["0.seen"]


def test_a_buffer_that_does_not_fit_is_named_before_anything_is_written() -> None:
    module = nn.Sequential(nn.BatchNorm1d(2), nn.BatchNorm1d(2))
    buffers = {name: buffer.numpy() + 1 for name, buffer in module.named_buffers()}
    buffers["1.running_var"] = np.ones(3, np.float32)
    with pytest.raises(StateError, match=r"here: buffer '1\.running_var' has changed its shape or is gone"):
        extra_state.write(module, buffers, {}, "here")
    assert module[0].running_mean.numpy().tolist() == [0, 0]
