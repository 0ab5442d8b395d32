"""Any number of stages, any schedule, any checkpoint mode: the bits of the loop over the same micro-batches."""

import extent
import pytest
from pipelined import MULTI, SCHEDULES, SINGLE, V, joined, pipelined, unpipelined

from resilin.testing.ranks import run_ranks

CHECKPOINTS = ("never", "except_last", "always")


@pytest.mark.parametrize(
    ("name", "schedule", "ranks", "mode"), extent.pairwise(["gpt", "cnn"], SCHEDULES, [1, 2, 4], CHECKPOINTS)
)
def test_a_pipeline_equals_the_loop_over_its_micro_batches(name, schedule, ranks, mode):
    microbatches = 8 if schedule == "DualPipeV" else 4
    found = joined(run_ranks(ranks, pipelined, name, schedule, microbatches, mode=mode).results())
    assert found == unpipelined(name, microbatches)
    assert {*SINGLE, *MULTI, *V} == {*SCHEDULES}
