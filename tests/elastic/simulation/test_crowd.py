"""What one change of the world costs, by the number of nodes."""

import pytest

from resilin.testing.simulation.crowd import REAL, Crowd

CHANGES = {
    "join": lambda crowd: crowd.join(),
    "leave": lambda crowd: crowd.nodes[2].leave(),
    "loss": lambda crowd: crowd.nodes[3].crash(silently=True),
    "loss of the leader": lambda crowd: crowd.nodes[0].crash(silently=True),
}


def costs(size, in_place):
    crowd = Crowd(size, in_place=in_place)
    try:
        return [crowd.change(name, lambda cause=cause: cause(crowd)) for name, cause in CHANGES.items()]
    finally:
        crowd.close()


@pytest.fixture(scope="module", params=[True, False], ids=["in place", "restart"])
def in_place(request):
    return request.param


@pytest.fixture(scope="module")
def small(in_place):
    return costs(20, in_place)


@pytest.fixture(scope="module")
def large(in_place):
    return costs(200, in_place)


@pytest.mark.slow
def test_messages_of_a_change_grow_no_faster_than_the_number_of_nodes(small, large, in_place):
    slack = 1.05 if in_place else 1.6  # how many rosters tell of all that ends and starts is a matter of chance
    for few, many in zip(small, large, strict=True):
        assert many.messages <= slack * 10 * few.messages, many


def test_nodes_that_a_change_is_not_about_write_nothing_or_that_their_workers_ended_and_run(large, in_place):
    for cost in large:
        assert cost.follower_writes <= (0 if in_place else 4 * REAL), cost


def test_a_change_takes_no_longer_among_more_nodes(small, large):
    for few, many in zip(small, large, strict=True):
        assert many.simulated_s <= 1.5 * few.simulated_s + 0.5, many
