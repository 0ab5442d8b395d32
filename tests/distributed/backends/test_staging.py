"""all_reduce of memory that peers cannot map passes through a stage, piece by piece, on the ranks that need it."""

import numpy as np
import pytest

from resilin import distributed as dist
from resilin.testing.ranks import run_ranks

PIECE = 512 << 10  # bytes: native/segment.hpp


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("elsewhere", [{0}, {1}, {0, 1, 2}])
@pytest.mark.parametrize("count", [20_000, PIECE // 4, PIECE // 4 + 1, 3 * PIECE // 4 - 1, 1_000_003])
def test_any_mixture_of_memory_gives_the_sum(size, elsewhere, count):
    def work(rank):
        pattern = np.arange(count, dtype=np.float32) % 1000
        for turn in range(1, 3):
            mine = pattern * (rank + turn)
            array = np.frombuffer(bytearray(mine.tobytes()), np.float32) if rank in elsewhere else mine
            dist.all_reduce(array)
            assert (array == pattern * sum(other + turn for other in range(size))).all()

    run_ranks(size, work).results()
