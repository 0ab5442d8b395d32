"""Large collectives inside a host: copied past the caches, by those who receive and by those who would be idle."""

import numpy as np
import pytest

from resilin import distributed as dist
from resilin.testing.ranks import run_ranks

MIB, PAGE = 1 << 20, 4096
PARTS = [MIB, 2 * MIB + 63, 6 * MIB, 6 * MIB + 1, 6 * MIB + 5 * PAGE + 67]  # the last three: past the caches


def noise(seed, size):
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


def empty(size, elsewhere=False, shift=0):
    """Zeros between two bytes that nobody may touch; from `elsewhere`: in memory that peers cannot map."""
    whole = np.frombuffer(bytearray(size + 2 + shift), np.uint8) if elsewhere else np.zeros(size + 2 + shift, np.uint8)
    return whole[shift:]


@pytest.mark.slow
@pytest.mark.parametrize("size", PARTS)
@pytest.mark.parametrize("ranks", [2, 3])
def test_every_rank_has_every_byte_of_large_copies(ranks, size):
    def work(rank):
        mine = noise(rank, size)
        everybody = [noise(each, size) for each in range(ranks)]
        for turn in range(2):
            got = empty(size, shift=turn)
            if rank == 1:
                got[1:-1] = mine
            dist.broadcast(got[1:-1], 1)
            check([got], [everybody[1]])
            rows = [empty(size, shift=5 * turn) for _ in range(ranks)]
            dist.gather(mine, [row[1:-1] for row in rows] if rank == turn else None, turn)
            check(rows, everybody if rank == turn else [np.zeros(size, np.uint8)] * ranks)
            rows = [empty(size) for _ in range(ranks)]
            dist.all_gather([row[1:-1] for row in rows], mine)
            check(rows, everybody)
            rows = [empty(size) for _ in range(ranks)]
            dist.all_to_all([row[1:-1] for row in rows], [noise(rank * ranks + to, size) for to in range(ranks)])
            check(rows, [noise(source * ranks + rank, size) for source in range(ranks)])

    run_ranks(ranks, work).results()


def check(rows, expected):
    for row, want in zip(rows, expected, strict=True):
        assert (row[1:-1] == want).all()
        assert row[0] == row[-1] == 0


@pytest.mark.parametrize("size", [MIB, 6 * MIB + 1])
@pytest.mark.parametrize("strange", [{1}, {2}, {1, 2}, {0, 1, 2}])
def test_who_cannot_be_written_to_by_peers_copies_for_itself(strange, size):
    def work(rank):
        got = empty(size, rank in strange)
        if rank == 0:
            got[1:-1] = noise(7, size)
        dist.broadcast(got[1:-1], 0)
        check([got], [noise(7, size)])
        for root in range(3):
            rows = [empty(size, root in strange and number != 1) for number in range(3)]
            mine = empty(size, rank in strange)
            mine[1:-1] = noise(rank, size)
            dist.gather(mine[1:-1], [row[1:-1] for row in rows] if rank == root else None, root)
            if rank == root:
                check(rows, [noise(each, size) for each in range(3)])

    run_ranks(3, work).results()


def test_a_root_gathers_into_the_memory_of_its_own_part():
    def work(rank):
        whole = np.zeros((3, MIB), np.uint8)
        part = whole[2] if rank == 0 else noise(rank, MIB)  # that of rank 2, which is overwritten
        if rank == 0:
            part[:] = noise(0, MIB)
        dist.gather(part, list(whole) if rank == 0 else None, 0)
        if rank == 0:
            for each in range(3):
                assert (whole[each] == noise(each, MIB)).all()

    run_ranks(3, work).results()
