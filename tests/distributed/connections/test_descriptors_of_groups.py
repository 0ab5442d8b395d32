"""A rank that has no file descriptor left: what it says, and what the others hear."""

import pytest

from resilin.testing.patience import PATIENCE_S
from resilin.testing.ranks import start_ranks

SOURCE = """
import contextlib
import os
import resource
import resilin
from resilin import dist
from resilin.testing.ranks import join_from_environment
join_from_environment()
resilin.ones(3)  # what is imported on first use needs descriptors, too
dist.all_gather_object([None] * 3, "x")
if dist.get_rank() == 1:
    highest = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest, highest))
    with contextlib.suppress(OSError):  # also those that were closed since, and those between
        while True:
            os.open(os.devnull, os.O_RDONLY)
dist.barrier()
try:
    {call}
except Exception as error:
    print(f"{type(error).__name__}: {error}".replace(chr(10), " "), flush=True)
"""


CALLS = {
    "tensors of arenas": "dist.all_reduce(resilin.ones(1_000_000))",
    "staged memory": "dist.all_gather_object([None] * 3, 'x' * 3_000_000)",
}


@pytest.mark.multiproc
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_rank_without_descriptors_says_so_and_the_others_hear_which_it_is(tmp_path, call):
    ranks = start_ranks(3, SOURCE.replace("{call}", call), str(tmp_path))
    said = [rank.finish(PATIENCE_S) for rank in ranks]
    for _, out, _ in said:
        assert "rank 1" in out, said
        assert "ulimit -n" in out, said
