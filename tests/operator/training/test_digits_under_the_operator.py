"""Real agents train the digits under the operator: whatever happens to pods, nodes and the operator, the same bits."""

from __future__ import annotations

from random import Random

import pytest
from digits_job import Run, job, running, undisturbed
from extent import short

KINDS = ("scale", "delete", "evict", "cut", "operator")


def _disturb(run: Run, kind: str, size: int, draw: Random) -> int:
    """Let one thing happen, and wait until the job is as large as it is to be; that size."""
    name = draw.choice(sorted(run.pods()))
    if kind == "scale":
        size = draw.randint(1, 4)
        run.scale(size)
    elif kind == "cut":
        node = run.can_be_cut(size)
        if node is not None:
            run.cut(node)
            run.wait(lambda: run.trains_with(size))
            run.restore(node)
    else:
        if kind == "operator":
            run.kill_operator()
        if size > 1:
            run.evict_pod(name) if kind == "evict" else run.delete_pod(name)
        if kind == "operator":
            run.start_operator()
    run.wait(lambda: run.trains_with(size))
    return size


@pytest.fixture(scope="module")
def weights() -> str:
    return undisturbed()


@pytest.mark.multiproc
@pytest.mark.timeout(900)  # each of its waits has a limit of its own, and a busy machine comes near several
@pytest.mark.parametrize("seed", short(range(20), of=[0]))  # 100 rounds altogether
def test_a_job_that_is_scaled_loses_pods_and_nodes_and_its_operator_ends_with_the_weights_of_the_undisturbed_run(
    tmp_path, seed, weights
):
    draw = Random(seed)
    kinds = draw.choices(KINDS, k=5) if seed else draw.sample(KINDS, 5)
    with running(tmp_path, loopback=seed == 1) as run:  # as where namespaces are not permitted
        run.server.create(job())
        run.wait(lambda: run.trains_with(2))
        first = run.pods()
        for size in (4, 1, 3):
            run.scale(size)
            run.wait(lambda size=size: run.trains_with(size))
        assert run.pods()["digits-0"] == first["digits-0"], "a survivor's pod is never made anew"
        for kind in kinds:
            size = _disturb(run, kind, size, draw)
        run.check(weights)
