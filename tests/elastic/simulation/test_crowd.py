"""What one change of the world costs, by the number of nodes."""

import pytest

from resilin.testing.simulation.crowd import Crowd

CHANGES = {
    "join": lambda crowd: crowd.join(),
    "leave": lambda crowd: crowd.nodes[2].leave(),
    "loss": lambda crowd: crowd.nodes[3].crash(silently=True),
    "loss of the leader": lambda crowd: crowd.nodes[0].crash(silently=True),
}


def costs(size):
    crowd = Crowd(size)
    try:
        return [crowd.change(name, lambda cause=cause: cause(crowd)) for name, cause in CHANGES.items()]
    finally:
        crowd.close()


@pytest.fixture(scope="module")
def small():
    return costs(20)


@pytest.fixture(scope="module")
def large():
    return costs(200)


def test_messages_of_a_change_grow_no_faster_than_the_number_of_nodes(small, large):
    for few, many in zip(small, large, strict=True):
        assert many.messages <= 10.5 * few.messages, many


def test_nodes_that_a_change_is_not_about_write_nothing(large):
    assert [cost.follower_writes for cost in large] == [0, 0, 0, 0]


def test_a_change_takes_no_longer_among_more_nodes(small, large):
    for few, many in zip(small, large, strict=True):
        assert many.simulated_s <= 1.5 * few.simulated_s + 0.05, many
