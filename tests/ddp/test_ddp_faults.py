"""A rank dies in each phase of data-parallel training: the others are told at once who, and the module trains on with
those that are left."""

from __future__ import annotations

import signal
import time
from typing import Any

import extent
import numpy as np
import pytest
from ddp_models import IN, OUT, assert_same_bits, batches, copies, loss_of

from resilin import distributed as dist
from resilin import nn, optim
from resilin.ddp import DistributedDataParallel as DDP
from resilin.ddp import averaging
from resilin.ddp.comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from resilin.errors import DistBackendError, PeerLost, UsageError
from resilin.testing.faults import FaultPlan
from resilin.testing.patience import PATIENCE_S
from resilin.testing.ranks import run_ranks, start_ranks

WORLD, VICTIM, STEPS = 3, 1, 3
LIMIT_S = 2 * PATIENCE_S
AT_ONCE_S = PATIENCE_S


def make_module() -> nn.Module:
    return nn.Sequential(nn.Linear(IN, IN), nn.BatchNorm1d(IN), nn.Linear(IN, OUT))


def train(module: nn.Module, own: Any, hook: bool = False, join: bool = False, **options: Any) -> DDP:
    model = DDP(module, bucket_cap_mb=1e-4, **options)
    if hook:
        model.register_comm_hook(PowerSGDState(None, start_powerSGD_iter=2, min_compression_rate=0), powerSGD_hook)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    with model.join(enable=join):
        for x in own:
            loss_of(model, x).backward()
            optimizer.step()
            optimizer.zero_grad()
    return model


# name: (what the training is like, in which call of the victim it dies, how often it has come there before)
POINTS: dict[str, tuple[dict[str, Any], tuple[str, int, str]]] = {
    "construction: as models are compared": ({}, ("all_gather", 0, "start")),
    "construction: in the comparison": ({}, ("all_gather", 1, "agreed")),
    "construction: before parameters": ({}, ("broadcast", 0, "start")),
    "construction: in parameters": ({}, ("broadcast", 0, "data")),
    "first forward: before buffers": ({}, ("broadcast", 2, "start")),
    "first forward: in buffers": ({}, ("broadcast", 3, "agreed")),
    "first backward: before the order of buckets": ({}, ("broadcast", 4, "start")),
    "first backward: after the order of buckets": ({}, ("broadcast", 4, "end")),
    "first backward: in a bucket": ({}, ("all_reduce", 1, "agreed")),
    "second backward: before its first bucket": ({}, ("all_reduce", 3, "start")),
    "second backward: in the middle of a bucket": ({}, ("all_reduce", 4, "data")),
    "second backward: after its last bucket": ({}, ("all_reduce", 5, "end")),
    "end of backward: which parameters were used": ({"find_unused_parameters": True}, ("all_reduce", 5, "start")),
    "static graph: what is used at all": ({"static_graph": True}, ("all_reduce", 0, "agreed")),
    "hook: before its first message": ({"hook": True}, ("all_reduce", 6, "start")),
    "hook: in what its callback sends": ({"hook": True}, ("all_reduce", 7, "agreed")),
    "join: in what a forward announces": ({"join": True}, ("all_reduce", 1, "agreed")),
    "join: before it counts who trains": ({"join": True}, ("all_reduce", 5, "start")),
    "join: in what the others announce": ({"join": True}, ("all_reduce", 6, "agreed")),
    "join: in shadowed buffers": ({"join": True}, ("broadcast", 5, "agreed")),
    "join: before a shadowed bucket": ({"join": True}, ("all_reduce", 7, "start")),
    "join: in a shadowed bucket": ({"join": True}, ("all_reduce", 8, "agreed")),
    "join: in the final model": ({"join": True}, ("broadcast", 9, "start")),
}


@pytest.mark.parametrize(
    ("name", "beside"), [*((name, False) for name in POINTS), *((name, True) for name in POINTS if "bucket" in name)]
)
def test_a_rank_that_dies_is_named_at_once_and_the_others_wrap_the_module_again(
    monkeypatch: pytest.MonkeyPatch, name: str, beside: bool
) -> None:
    monkeypatch.setattr(averaging, "overlaps", lambda group: beside)
    options, (at, call, phase) = POINTS[name]
    # in a Join the victim has one batch only: it dies while it shadows the others
    counts = [1 if rank == VICTIM and options.get("join") else STEPS for rank in range(WORLD)]
    modules, data = copies(make_module(), WORLD), [batches(count, seed=rank) for rank, count in enumerate(counts)]
    faults = FaultPlan().kill(VICTIM, at, call, phase)
    ended: dict[int, float] = {}

    def work(rank: int) -> None:
        try:
            train(modules[rank], data[rank], **options)
        finally:
            ended[rank] = time.monotonic()

    outcome = run_ranks(WORLD, work, faults=faults, timeout_s=LIMIT_S, abort=False)
    assert faults.all_fired()
    assert VICTIM not in outcome.values
    survivors = [rank for rank in range(WORLD) if rank != VICTIM]
    assert sorted(outcome.errors) == survivors
    struck = faults.fired_at()
    assert struck is not None
    for rank in survivors:
        error = outcome.errors[rank]
        assert isinstance(error, PeerLost), error
        assert error.ranks == {VICTIM}
        assert ended[rank] - struck < AT_ONCE_S

    def go_on(rank: int) -> list[np.ndarray]:
        module = modules[survivors[rank]]
        train(module, data[survivors[rank]], **options)
        return [param.detach().numpy().copy() for param in module.parameters()]

    assert_same_bits(run_ranks(2, go_on).results())


@pytest.mark.parametrize("where", ["forward", "backward", "hook", "between"])
def test_an_exception_on_one_rank_reaches_the_others_when_it_leaves_the_group(where: str) -> None:
    modules, data = copies(make_module(), 2), [batches(2, seed=rank) for rank in range(2)]

    def fail(*_: Any) -> None:
        raise ZeroDivisionError(where)

    def work(rank: int) -> None:
        model = DDP(modules[rank])
        if where == "hook":
            model.register_comm_hook(None, lambda state, bucket: fail() if rank else _plain(bucket))
        for x in data[rank]:
            if rank and where == "forward":
                model.module.register_forward_pre_hook(fail)
            if rank and where == "backward":
                modules[rank][0].weight.register_hook(fail)
            loss = loss_of(model, x)
            if rank and where == "between":
                fail()
            loss.backward()

    outcome = run_ranks(2, work)
    assert isinstance(outcome.errors[1], ZeroDivisionError)
    assert isinstance(outcome.errors[0], DistBackendError | UsageError)
    assert "rank 1" in str(outcome.errors[0])


def _plain(bucket: Any) -> Any:
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    assert work is not None
    return work.get_future()


SCRIPT = """
import os, signal, sys, time
import numpy as np
from resilin import dist, nn, optim
from resilin.core.tensor import Tensor
from resilin.ddp import DistributedDataParallel as DDP
from resilin.ddp import averaging
from resilin.errors import PeerLost
from resilin.testing.faults import FaultPlan
from resilin.testing.ranks import join_from_environment
rank = int(os.environ["RANK"])
send = os.kill
def strike(pid, number):
    print("struck", time.monotonic(), flush=True)
    send(pid, number)
os.kill = strike
at, call, phase = os.environ["POINT"].split()
with FaultPlan().signal(1, signal.SIGKILL, at, int(call), phase).watching(rank):
    group = join_from_environment(200.0)
    try:
        model = DDP(nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64)), bucket_cap_mb=0.01)
        with model.join():
            for _ in range(1 if rank == 1 else 4):
                (model(Tensor._wrap(np.ones((4, 64), np.float32))) ** 2).mean().backward()
    except PeerLost as error:
        print("ended", time.monotonic(), *sorted(error.ranks), flush=True)
    sys.stdin.readline()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "point",
    extent.short(
        ["broadcast 0 start", "broadcast 2 agreed", "all_reduce 3 data", "all_reduce 8 agreed"],
        of=["broadcast 2 agreed", "all_reduce 8 agreed"],
    ),
)
def test_a_process_that_is_killed_is_named_at_once(point: str, tmp_path: Any) -> None:
    ranks = start_ranks(3, SCRIPT, str(tmp_path), POINT=point)
    try:
        struck, at = ranks[1].read_line().split()
        assert struck == "struck"
        for rank in (0, 2):
            ended, when, *named = ranks[rank].read_line().split()
            assert (ended, named) == ("ended", ["1"])
            assert float(when) - float(at) < AT_ONCE_S
        assert ranks[1].finish()[0] == -signal.SIGKILL
    finally:
        for each in ranks:
            each.__exit__()
