"""What collectives and messages leave in a trace, on every transport."""

import numpy as np
import pytest

import resilin as torch
import resilin.distributed as dist
from resilin._base.trace import SpanKind
from resilin.errors import CollectiveMismatch, PeerLost
from resilin.testing.faults import FaultPlan
from resilin.testing.ranks import TRANSPORTS, run_ranks


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_collectives_say_what_they_carry_and_in_which_group(recorded, transport):
    def work(rank):
        x = torch.ones(3, 2)
        dist.all_reduce(x, dist.ReduceOp.MAX)
        dist.broadcast(x, 1)
        dist.barrier()
        dist.all_gather([torch.empty(3, 2) for _ in range(2)], x, async_op=True).wait()

    with recorded() as found:
        run_ranks(2, work, transport=transport).results()
    spans = [span for span in found.spans if span.kind == SpanKind.COLLECTIVE]
    of_one = [span for span in spans if span.args["Rank"] == 1]
    assert [span.name.partition(":")[2] for span in of_one] == ["all_reduce", "broadcast", "barrier", "all_gather"]
    assert all(span.end_ns is not None and "Failed" not in span.args for span in spans)
    reduce, broadcast, barrier, gather = (span.args for span in of_one)
    assert reduce["Reduce op"] == "MAX"
    assert reduce["In msg nelems"] == 6
    assert reduce["Bytes"] == 24
    assert reduce["Process Group Ranks"] == [0, 1]
    assert reduce["Group size"] == 2
    assert reduce["dtype"] == "float32"
    assert broadcast["Root rank"] == 1
    assert "dtype" not in barrier
    assert (reduce["Is asynchronized op"], gather["Is asynchronized op"]) == (False, True)
    numbers = {rank: [s.args["Seq"] for s in spans if s.args["Rank"] == rank] for rank in (0, 1)}
    assert numbers[0] == numbers[1] == sorted(numbers[0])


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_messages_name_both_ranks(recorded, transport):
    def work(rank):
        x = torch.arange(4)
        if rank == 0:
            dist.send(x, 1, tag=5)
            dist.isend(x, 1).wait()
        else:
            dist.recv(x, 0, tag=5)
            dist.irecv(x, 0).wait()

    with recorded() as found:
        run_ranks(2, work, transport=transport).results()
    spans = [span for span in found.spans if span.kind == SpanKind.COLLECTIVE]
    said = sorted((s.name.partition(":")[2], s.args["Src Rank"], s.args["Dst Rank"], s.args["Tag"]) for s in spans)
    assert said == [("recv", 0, 1, 0), ("recv", 0, 1, 5), ("send", 0, 1, 0), ("send", 0, 1, 5)]
    assert {span.args["Bytes"] for span in spans} == {np.arange(4).nbytes}
    assert all(span.end_ns is not None for span in spans)


def test_a_call_that_fails_says_so(recorded):
    def work(rank):
        with pytest.raises(CollectiveMismatch):
            dist.all_reduce(torch.ones(2 + rank))

    with recorded() as found:
        run_ranks(2, work).results()
    assert [span.args["Failed"] for span in found.spans if span.kind == SpanKind.COLLECTIVE] == [True, True]


def test_who_calls_when_the_group_has_failed_is_not_missing_from_the_call(recorded):
    def work(rank):
        dist.all_reduce(torch.ones(2))
        for _ in range(2):
            with pytest.raises(PeerLost):
                dist.all_reduce(torch.ones(2))

    with recorded() as found:
        faults = FaultPlan().kill(rank=1, at="all_reduce", call=1)
        outcome = run_ranks(2, work, faults=faults, abort=False)
    assert not outcome.errors
    spans = [span.args for span in found.spans if span.kind == SpanKind.COLLECTIVE and span.args["Rank"] == 0]
    assert [(args["Seq"], args.get("Failed", False)) for args in spans] == [(0, False), (1, True), (2, True)]


def test_what_began_before_anybody_recorded_does_no_harm(recorded):
    def work(rank):
        x = torch.ones(2)
        if rank == 0:
            pending = dist.irecv(x, 1)
            with recorded():
                dist.barrier()
            pending.wait()
        else:
            dist.barrier()
            dist.send(x, 0)

    run_ranks(2, work).results()
