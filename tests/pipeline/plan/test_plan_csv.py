"""Plans are read and written as PyTorch writes and reads them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plans import B, F, I, W

from resilin.errors import UsageError
from resilin.pipeline.plan import csv
from resilin.pipeline.plan.action import COMMUNICATIONS, COMPUTATIONS, computations
from resilin.pipeline.plan.communication import add_communication
from resilin.pipeline.plan.generate import generate
from resilin.pipeline.plan.gradient_order import in_order
from resilin.pipeline.plan.validate import validate

RECORDED = sorted((Path(__file__).parent / "pytorch_2_13").glob("*.csv"))  # NAME-RANKS-MICROBATCHES-STAGES.FORM.csv
ONLY = [path for path in RECORDED if path.stem.endswith("compute_only")]
COMMS = [path for path in RECORDED if path.stem.endswith("compute_comms")]


def numbers(path):
    name, ranks, microbatches, stages = path.stem.partition(".")[0].split("-")
    return name, int(ranks), int(microbatches), int(stages)


def of_stages(plan):
    """What each stage computes, in order: the same whatever its rank does for other stages in between."""
    return {
        stage: [part for part in computations(row) if part.stage_index == stage]
        for rank, row in enumerate(plan.actions)
        for stage in plan.stages_of(rank)
    }


def test_both_forms_of_six_schedules_were_recorded():
    assert len(ONLY) == len(COMMS) == 9
    assert len({numbers(path)[0] for path in RECORDED}) == 5


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_a_file_of_pytorch_is_written_again_byte_by_byte(path):
    plan = csv.read(path)
    assert csv.dumps(plan).encode() == path.read_bytes()
    assert plan.has_communication == (path in COMMS)
    validate(in_order(plan))


@pytest.mark.parametrize("path", ONLY, ids=lambda path: path.stem)
def test_a_schedule_has_the_order_of_pytorchs(path):
    theirs, ours = csv.read(path), generate(*numbers(path))
    assert (theirs.placement, theirs.microbatches) == (ours.placement, ours.microbatches)
    if ours.schedule == "LoopedBFS":  # theirs runs backwards from the last micro-batch to the first
        assert of_stages(in_order(theirs)) != of_stages(ours)
        assert {part for row in theirs.actions for part in computations(row)} == {
            part for row in ours.actions for part in computations(row)
        }
    else:
        assert theirs.computations() == ours


@pytest.mark.parametrize("path", COMMS, ids=lambda path: path.stem)
def test_a_schedule_sends_and_receives_what_pytorchs_does(path):
    theirs, ours = csv.read(path), add_communication(generate(*numbers(path)), early=True)
    kinds = COMMUNICATIONS | COMPUTATIONS
    for their_row, our_row in zip(theirs.actions, ours.actions, strict=True):
        assert {action for action in their_row if action.computation_type in kinds} == set(our_row)


def test_idle_slots_are_kept():
    text = "0F0,,0B0\r\n,1F0,1B0,\r\n"
    plan = csv.loads(text)
    assert plan.actions[0][1] is None
    assert csv.dumps(plan) == text
    assert [len(plan.of(rank)) for rank in range(2)] == [2, 2]


def test_a_plan_goes_to_a_file_and_back(tmp_path):
    plan = generate("DualPipeV", 2, 5)
    csv.write(plan, tmp_path / "plan.csv")
    assert csv.read(tmp_path / "plan.csv") == plan


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"0F0,0B0\r\n1F0,1X0\r\n", r"plan.csv, row 1, cell 1: Invalid action string: 1X0, should be formatted as"),
        (b"0F0,(0B0;1F0)NO\r\n", "plan.csv, row 0, cell 1: Invalid computation type NO"),
        (b'"0F0', r"plan.csv, row 0: this is no CSV: unexpected end of data"),
        (b"0F0\xff", "plan.csv: expected a schedule as CSV: 'utf-8' codec"),
        (b"", r"a plan has the actions of ranks 0, 1, 2, ..., got ranks \[\]"),
        (b"0F0\r\n0B0", "Rank 1, step 0: Stage 0 is assigned to both rank 1 and rank 0"),
    ],
)
def test_what_is_no_schedule_is_refused_with_its_place(tmp_path, text, message):
    (tmp_path / "plan.csv").write_bytes(text)
    with pytest.raises(UsageError, match=message):
        csv.read(tmp_path / "plan.csv")


@given(st.text('0123FBIWSEND_RC(;),"\r\n ', max_size=60))
def test_any_text_is_a_plan_or_is_refused(text):
    try:
        plan = csv.loads(text)
        validate(plan, in_order=False)
    except UsageError:
        return
    assert csv.loads(csv.dumps(plan)) == plan


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"none\.csv: expected a schedule as CSV: .*No such file"):
        csv.read(tmp_path / "none.csv")


PEER = """
import json, sys
import torch
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, _PipelineScheduleRuntime, get_schedule_class

class Stage:
    def __init__(self, index, ranks, stages):
        self.stage_index, self.num_stages, self.group_size, self.group_rank = index, stages, ranks, 0
        self.submod, self.is_first, self.is_last = torch.nn.Identity(), index == 0, index == stages - 1

for case in json.load(sys.stdin):
    stages = [Stage(index, case["ranks"], case["stages"]) for index in range(case["stages"] // case["ranks"])]
    read = _PipelineScheduleRuntime(stages, case["microbatches"])
    read._load_csv(case["path"], format=case["form"])
    order = read.pipeline_order if case["form"] == "compute_only" else read.pipeline_order_with_comms
    if case["form"] == "compute_comms":
        read._simulate()
    read._dump_csv(case["path"] + ".out", format=case["form"])
    placement = [read.stage_index_to_group_rank[stage] for stage in range(case["stages"])]
    print(json.dumps([placement, [[str(action) for action in order[rank]] for rank in sorted(order)]]))
"""


@pytest.fixture(scope="module")
def pytorch():
    """An interpreter with PyTorch: PEER_PYTHON, as `make bench` takes it, or this one."""
    python = os.environ.get("PEER_PYTHON", sys.executable)
    probe = [python, "-c", "import torch.distributed.pipelining.schedules"]
    if subprocess.run(probe, capture_output=True, check=False, timeout=120).returncode:
        pytest.skip("needs PyTorch; PEER_PYTHON=/path/to/python names an interpreter that has it")
    return python


def test_pytorch_reads_what_is_written_here_and_writes_it_again(tmp_path, pytorch):
    cases, plans = [], []
    for name in (
        "GPipe",
        "1F1B",
        "LoopedBFS",
        "Interleaved1F1B",
        "InterleavedZeroBubble",
        "ZBVZeroBubble",
        "DualPipeV",
    ):
        plan = generate(name, 3, 6)
        early = add_communication(plan, early=True)
        for form, one in (("compute_only", plan), ("compute_comms", early), ("compute_comms", add_communication(plan))):
            if form == "compute_comms" and name == "DualPipeV":
                continue  # its own simulator has no OVERLAP_F_B
            path = tmp_path / f"{len(cases)}.csv"
            csv.write(one, path)
            cases.append({"path": str(path), "form": form, "ranks": one.ranks, "stages": one.stages, "microbatches": 6})
            plans.append(one)
    done = subprocess.run(
        [pytorch, "-c", PEER], input=json.dumps(cases), capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    for case, plan, (placement, rows) in zip(cases, plans, answers, strict=True):
        assert tuple(placement) == plan.placement
        assert rows == [list(map(str, row)) for row in plan.actions]
        assert Path(case["path"] + ".out").read_bytes() == csv.dumps(plan).encode()
        assert {part.computation_type for row in plan.actions for part in computations(row)} <= {F, B, I, W}
