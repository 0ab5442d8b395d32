"""What a node tells of its tries to connect with others, with connections that take as long as the test says."""

import asyncio

from resilin.elastic.agent.reachability_probe import SLOW_S, ReachabilityProbe
from resilin.elastic.membership.view import Seen, View
from resilin.elastic.records import Generation, GenerationMember, Node, Slot
from resilin.testing.clock import FakeClock


def missed(number):
    """A world of two nodes in which each waited for the other in vain."""
    nodes = []
    for rank, name in enumerate("ab"):
        slot = Slot(index=0, incarnation=1, state="ready", endpoint=name, missed=(1 - rank,), missed_in=number)
        node = Node(id=name, host=name, address=name, master_port=1, slots=(slot,))
        nodes.append(Seen(node=node, create_revision=rank))
    generation = Generation(
        number=number, kind="inplace", members=(GenerationMember("a", 0, 1, 0), GenerationMember("b", 0, 1, 1)),
        nodes=("a", "b"), master_addr="", master_port=1, restarts_used=0, reason="",
    )  # fmt: skip
    return View(nodes=tuple(nodes), generation=generation)


def test_a_try_that_took_long_says_that_the_network_was_cut_in_this_generation_and_in_no_later_one():
    async def story():
        clock, tasks, seconds = FakeClock(), [], iter((0.1, SLOW_S, 0.1))

        async def connect(endpoint):
            assert endpoint == "b"
            clock.advance(next(seconds))
            return True

        spawn = lambda work: tasks.append(asyncio.ensure_future(work))  # noqa: E731
        probe = ReachabilityProbe("a", (), connect, spawn, lambda: None, lambda text: None, clock)
        for number in (1, 2, 3):
            clock.advance(1.0)
            probe.look(missed(number), clock.monotonic(), None)
            assert probe.tried_in != number
            await tasks.pop()
            probe.look(missed(number), clock.monotonic(), None)
            assert probe.tried_in == number
            assert probe.cut_in == (2 if number == 2 else 0)
            assert probe.unreachable == ()

    asyncio.run(story())
