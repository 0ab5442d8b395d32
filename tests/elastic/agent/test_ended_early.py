"""A worker of a plain program that ends with code 0 while others wait for it is the cause of their failures."""

from dataclasses import replace

import pytest
from membership_script import Script

from resilin.elastic.failure import Failure
from resilin.elastic.membership import queries, world_spec


def told(rank, kind, message=""):
    return Failure(
        rank=rank, local_rank=0, node=f"n{rank}", host=f"h{rank}", pid=10 + rank, generation=1, code=1, type=kind,
        message=message,
    ).to_json()  # fmt: skip


def job(*ended, failed):
    """Three nodes of one worker; `ended` have ended well, and these failures were told."""
    script = Script()
    for line in ("job 3", "join n0", "join n1", "join n2"):
        script.do(line)
    for name in ended:
        ((_, slot),) = script._places((f"{name}/0",))
        script._set(name, replace(slot, state="done", ended=42))
    for body in failed:
        name = body["node"]
        script._die(f"{name}/0", "own")
        script._change(name, lambda node, body=body: replace(node, failure=body))
    return script


LOST = told(0, "PeerLost", "all_reduce #3, rank 0 of 3: rank 1 left. The group is aborted")
GLOO = told(0, "RuntimeError", "[pair.cc:553] Connection closed by peer [127.0.0.1]:30091. GLHF")


@pytest.mark.parametrize("missing", [LOST, GLOO], ids=["resilin", "gloo"])
def test_it_is_the_first_failure_with_its_pid_and_what_it_left_behind(missing):
    view = job("n1", failed=[missing]).view
    first = Failure.from_json(world_spec.first_failure(view))
    assert (first.rank, first.host, first.pid, first.code) == (1, "n1", 42, 0)
    assert first.sentence.startswith(
        f"rank 1 (host n1, pid 42) exited with code 0 while others waited for it ({missing['type']} of rank 0: "
    )
    assert world_spec.unexplained(view), "rank 2 runs, and may have had a reason of its own"


@pytest.mark.parametrize(
    ("ended", "failed", "first"),
    [
        (["n1"], [told(0, "ValueError", "boom")], 0),
        (["n1"], [LOST, told(2, "ValueError", "boom")], 2),
        ([], [LOST], 0),
        (["n1", "n2"], [LOST], 1),
    ],
    ids=["another reason", "one of them has another reason", "nobody has ended", "two have ended"],
)
def test_it_is_so_only_where_all_failures_are_of_a_peer_that_was_missed(ended, failed, first):
    assert world_spec.first_failure(job(*ended, failed=failed).view)["rank"] == first


def test_a_lost_node_may_have_been_it_as_well():
    script = job("n1", failed=[LOST])
    script._lost("n2")
    assert world_spec.first_failure(script.view)["rank"] == 0
    assert len(queries.failures(script.view)) == 1
