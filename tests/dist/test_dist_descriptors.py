"""A rank that has no file descriptor left: what it says, and what the others hear."""

import pytest

from resilin.testing.patience import PATIENCE_S
from resilin.testing.ranks import start_ranks

SOURCE = """
import os
import resource
import resilin
from resilin import dist
from resilin.testing.ranks import join_from_environment
join_from_environment()
if dist.get_rank() == 1:
    used = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used - 1, used - 1))
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
    for number, rank in enumerate(ranks):
        _, out, err = rank.finish(PATIENCE_S)
        assert "rank 1" in out, (number, out, err)
        assert "ulimit -n" in out, (number, out, err)
