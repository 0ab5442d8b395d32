"""The costs by which a schedule is chosen, against schedules that are played message by message."""

import pytest

from resilin.distributed.wire import cost_model, schedules
from resilin.distributed.wire.schedules import Part, Step

LINK = cost_model.Link(latency=40e-6, message=10e-6, byte=0.6e-9, combine=0.1e-9)
SIZES = (2, 4, 8, 16, 32)
BYTES = (1 << 10, 64 << 10, 1 << 20, 25 << 20)
ALL_REDUCE = {
    "doubling": schedules.doubling_all_reduce,
    "direct": schedules.direct_all_reduce,
    "halving": schedules.halving_all_reduce,
}


def play(per_rank, nbytes, link):
    """When the last rank is done, if every rank sends its messages in order as soon as what they carry is there.

    A rank sends one message after the other and takes in one after the other; both at once do not hinder each other.
    """
    size = len(per_rank)
    cut = schedules.bounds(nbytes, size)
    there = [[0.0] * size for _ in range(size)]  # when each chunk of each rank was last changed
    out, into = [0.0] * size, [0.0] * size  # until when each rank sends, and receives
    at, sent = [0] * size, [0] * size
    lines = {}  # arrival times of messages on their way, by (source, target)
    while any(at[rank] < len(steps) for rank, steps in enumerate(per_rank)):
        moved = False
        for rank, steps in enumerate(per_rank):
            if at[rank] == len(steps):
                continue
            step = steps[at[rank]]
            if step.send and sent[rank] == at[rank]:
                part = step.send
                begin = max(out[rank], *there[rank][part.start : part.stop])
                out[rank] = begin + link.message + (cut[part.stop] - cut[part.start]) * link.byte
                lines.setdefault((rank, part.peer), []).append(out[rank] + link.latency)
                moved = True
            sent[rank] = at[rank] + 1
            if step.recv:
                line = lines.get((step.recv.peer, rank))
                if not line:
                    continue
                part = step.recv
                length = cut[part.stop] - cut[part.start]
                busy = link.message + length * link.byte
                into[rank] = max(line.pop(0), into[rank] + busy) + length * link.combine * step.combine
                for chunk in range(part.start, part.stop):
                    there[rank][chunk] = max(there[rank][chunk], into[rank])
            at[rank] += 1
            moved = True
        assert moved, "deadlock"
    return max(map(max, zip(out, into, strict=True)))


def steps_of(schedule, size, *extra):
    return [schedule(rank, size, *extra) for rank in range(size)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ALL_REDUCE)
def test_an_all_reduce_costs_what_its_messages_cost(name, size):
    for nbytes in BYTES:
        played = play(steps_of(ALL_REDUCE[name], size), nbytes, LINK)
        assert getattr(LINK, name)(size, nbytes) == pytest.approx(played, rel=0.25), nbytes


@pytest.mark.parametrize("size", SIZES)
def test_a_broadcast_costs_what_its_messages_cost(size):
    for nbytes in BYTES:
        tree = play(steps_of(schedules.binomial_broadcast, size, 0), nbytes, LINK)
        assert LINK.binomial(size, nbytes) == pytest.approx(tree, rel=0.25), nbytes
        chain = play(steps_of(schedules.chain_broadcast, size, 0), nbytes, LINK)
        assert LINK.chain(size, nbytes) == pytest.approx(chain, rel=0.25), nbytes


@pytest.mark.parametrize("size", [3, 5, 6, 7, 12])
@pytest.mark.parametrize("name", ALL_REDUCE)
def test_ranks_beyond_a_power_of_two_are_counted(name, size):
    for nbytes in BYTES:
        played = play(steps_of(ALL_REDUCE[name], size), nbytes, LINK)
        assert getattr(LINK, name)(size, nbytes) == pytest.approx(played, rel=0.4), nbytes


@pytest.mark.parametrize("size", [2, 3, 4, 7, 8, 16])
def test_the_schedule_that_is_taken_is_about_the_fastest(size):
    for nbytes in BYTES:
        played = {name: play(steps_of(schedule, size), nbytes, LINK) for name, schedule in ALL_REDUCE.items()}
        taken = play(steps_of(schedules.all_reduce, size, nbytes), nbytes, LINK)
        assert taken <= 1.3 * min(played.values()), (nbytes, played)


def test_few_bytes_go_in_few_messages_and_many_in_small_parts():
    assert schedules.all_reduce(0, 8, 1 << 10) == schedules.doubling_all_reduce(0, 8)
    assert schedules.all_reduce(0, 8, 25 << 20) == schedules.direct_all_reduce(0, 8)
    assert schedules.all_reduce(0, 512, 1 << 20) == schedules.halving_all_reduce(0, 512)


@pytest.mark.parametrize("size", [*SIZES, 3, 12, 17, 1000])
def test_agreement_costs_what_its_messages_cost(size):
    """Everybody sends to everybody, or what it has heard goes round; of words so short that bytes cost nothing."""
    if size <= cost_model.TOGETHER:
        others = [schedules.pairwise(rank, size) for rank in range(size)]
        tell = [[Step(send=Part(to, 0, 1)) for to, _ in pairs] for pairs in others]
        hear = [[Step(recv=Part(source, 0, 1)) for _, source in pairs] for pairs in others]
        steps = [one + two for one, two in zip(tell, hear, strict=True)]
    else:
        steps = steps_of(schedules.dissemination, size)
    assert LINK.agreement(size) == pytest.approx(play(steps, 0, LINK), rel=0.25)


def test_a_world_of_one_costs_nothing():
    assert LINK.doubling(1, 1 << 20) == LINK.agreement(1) == LINK.binomial(1, 1 << 20) == 0
