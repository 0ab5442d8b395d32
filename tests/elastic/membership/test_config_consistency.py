"""Nodes of one job that were started with other limits say so, on both."""

import pytest

from resilin.elastic.membership import config_consistency
from resilin.elastic.membership.config_consistency import SharedConfig
from resilin.elastic.membership.view import Config, Seen, View
from resilin.elastic.records import Node


def node(name, low=1, high=2, restarts=0, **changes):
    config = Config(min_nodes=low, max_nodes=high, max_restarts=restarts)
    own = config_consistency.of(config, **{"join_timeout_s": 600.0, "lease_ttl_s": 5.0} | changes)
    place = {"host": name, "address": name, "master_port": 1, "slots": ()}
    return Node(id=name, **place, min_nodes=low, max_nodes=high, terms=own)


def job(*nodes, leader="a"):
    seen = tuple(Seen(node=one, create_revision=number) for number, one in enumerate(nodes))
    return View(nodes=seen, elected=leader)


def told(view, who):
    lines = []
    one = SharedConfig(who, lines.append)
    one.look(view)
    one.look(view)
    return lines


@pytest.mark.parametrize("who", ["a", "b"])
def test_both_name_both_nodes_and_all_that_differs_once(who):
    (line,) = told(job(node("a"), node("b", high=3, restarts=3, lease_ttl_s=7.5)), who)
    assert "node a with --nnodes 1:2, --max-restarts 0, --rdzv-conf lease_ttl=5, node b with --nnodes 1:3, " in line
    assert "--max-restarts 3, --rdzv-conf lease_ttl=7.5; the first one leads" in line


def test_nodes_that_were_started_alike_say_nothing():
    assert told(job(node("a", 2, 2), node("b", 2, 2)), "a") == []


def test_each_node_compares_itself_with_the_leader_alone_and_the_leader_with_all():
    view = job(node("a"), node("b", restarts=1), node("c", restarts=2))
    assert len(told(view, "a")) == 2
    assert len(told(view, "b")) == 1
    assert told(job(node("a"), node("b", restarts=1), leader=""), "b") == [], "nobody leads yet"
