"""Apply what people ask of a running job (`resilin drain`, `resilin scale`) to a view, and find the nodes that take no
part because their workers kept failing (`node_quarantine`) or cannot be reached (`reachability`). Pure.

A node that shall take no part looks to every decision as one that was asked to go (`leaving`): its workers finish their
step and end, the others go on. Unlike that one it stays, as a spare, and is taken again when people want it back. One
that others cannot reach keeps its workers, too: they wait.
"""

from __future__ import annotations

from dataclasses import replace

from resilin.elastic.membership import queries, reachability
from resilin.elastic.membership.view import Config, View
from resilin.elastic.records import Node, Wanted


def limits(config: Config, wanted: Wanted | None) -> Config:
    """Return what the job allows: as its flags say, and instead what people asked for since."""
    if wanted is None or not wanted.max_nodes:
        return config
    return replace(config, min_nodes=wanted.min_nodes or config.min_nodes, max_nodes=wanted.max_nodes)


def is_drained(node: Node, wanted: Wanted | None) -> bool:
    """Return whether people want this node to take no part."""
    return wanted is not None and (node.id in wanted.drained or node.host in wanted.drained)


def excluded(view: View) -> frozenset[str]:
    """Nodes that are out for a while, the oldest first, as long as MIN others are left that have workers."""
    wanted = view.wanted
    staying = [s.node for s in view.nodes if not s.node.leaving and not is_drained(s.node, wanted)]
    least = max((node.min_nodes for node in staying), default=0)
    least = max(1, wanted.min_nodes if wanted is not None and wanted.min_nodes else least)
    able = [node for node in staying if node.excluded or not queries.is_emptied(node)]
    return frozenset([node.id for node in able if node.excluded][: max(0, len(able) - least)])


def adjusted(view: View) -> View:
    """`view` in which nodes that shall take no part are leaving: drained and excluded ones, members beyond the wanted
    number, and of the others those that a cut of the network keeps apart.

    Of the members the last ones in node-rank order go, so the first ones keep their ranks.
    """
    view = _as_wanted(view)
    apart = reachability.apart(view)
    if not apart:
        return view
    nodes = [
        replace(s, node=replace(s.node, leaving=True), apart=apart[s.node.id]) if s.node.id in apart else s
        for s in view.nodes
    ]
    return replace(view, nodes=tuple(nodes))


def _as_wanted(view: View) -> View:
    wanted, out = view.wanted, excluded(view)
    if wanted is None and not out:
        return view
    going = {seen.node.id for seen in view.nodes if is_drained(seen.node, wanted)} | out
    if wanted is not None and wanted.max_nodes and view.generation is not None:
        here = {seen.node.id for seen in view.nodes if not seen.node.leaving} - going
        staying = [node for node in view.generation.nodes if node in here]
        going |= set(staying[wanted.max_nodes :])
    nodes = [replace(s, node=replace(s.node, leaving=True)) if s.node.id in going else s for s in view.nodes]
    return replace(view, nodes=tuple(nodes))


def is_dismissed(view: View, config: Config, node_id: str) -> bool:
    """Return whether the workers of a node have no place any more, by people's wish or because they kept failing, in a
    program that recovers in place.

    Other programs' workers are stopped with all others.
    """
    node, current = view.node(node_id), view.generation
    if view.closed is not None or node is None or current is None:
        return False
    if not queries.recovers_in_place(view) or view.apart(node_id):
        return False
    if node.leaving:
        return True
    outside = node_id not in current.nodes and current.kind == "inplace"
    scaled = view.wanted is not None and bool(view.wanted.max_nodes)
    return outside and scaled and node_id not in queries.invited(view, config)
