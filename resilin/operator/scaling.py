"""Decides which pods a job should have: which exist, which go, which come. Pure.

An index has one current pod, the one with the highest incarnation. It stays as long as it is well; where there are too
many, victims are chosen; where there are too few, the lowest indices are filled. An index whose pod is ending waits for
its end, so no index ever has two pods that live, except where the earlier one's node does not answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from resilin.operator import names
from resilin.operator.observed import NodeView, Observed, PodView
from resilin.operator.spec import ElasticJobSpec


@dataclass(frozen=True, kw_only=True)
class Workers:
    """The workers' pods by what is to be thought of them."""

    current: Mapping[int, PodView]
    superseded: tuple[PodView, ...]
    """Earlier incarnations: to be fenced off."""
    lost: frozenset[str]
    """Uids of pods whose node does not answer."""
    alive: tuple[PodView, ...]
    """Current, and neither ended nor ending nor lost."""
    victims: tuple[PodView, ...]
    """Those of `alive` that are too many."""
    empty: tuple[int, ...]
    """Indices to be filled, whatever pod is still there."""
    look_again: float | None
    """When a pod may count as lost that does not yet; seconds since the epoch."""

    @property
    def all(self) -> tuple[PodView, ...]:
        """Every pod of the workers."""
        return (*self.current.values(), *self.superseded)

    def holds_on(self, pod: PodView) -> bool:
        """Return whether something of `pod` may still run where somebody answers for it."""
        return not pod.is_terminal and pod.uid not in self.lost


def look(spec: ElasticJobSpec, observed: Observed) -> Workers:
    """Return the workers' pods sorted out."""
    current: dict[int, PodView] = {}
    superseded = []
    pods = [pod for pod in observed.pods if pod.role == names.WORKER]
    for pod in sorted(pods, key=lambda pod: (pod.index, pod.incarnation)):
        if pod.index in current:
            superseded.append(current[pod.index])
        current[pod.index] = pod
    lost, look_again = _lost(observed.pods, spec.policy.node_lost_s, observed)
    alive = [pod for pod in current.values() if not (pod.has_ended or pod.deleting or pod.uid in lost)]
    surplus = len(alive) - spec.replicas
    there = {pod.index for pod in alive}
    return Workers(
        current=current,
        superseded=tuple(superseded),
        lost=lost,
        alive=tuple(alive),
        victims=tuple(choose_victims(alive, surplus, observed.nodes)) if surplus > 0 else (),
        empty=tuple(_lowest_free(there, -surplus)),
        look_again=look_again,
    )


def choose_victims(pods: Iterable[PodView], count: int, nodes: Mapping[str, NodeView] | None) -> list[PodView]:
    """Return the `count` pods that a job misses least: not ready, on nodes that are going, then the highest index."""
    known = nodes or {}

    def worth(pod: PodView) -> tuple[bool, bool, int]:
        node = known.get(pod.node)
        return (pod.ready, node is None or (node.ready and not node.unschedulable), -pod.index)

    return sorted(pods, key=worth)[:count]


def _lowest_free(taken: set[int], count: int) -> Iterable[int]:
    index = 0
    while count > 0:
        if index not in taken:
            yield index
            count -= 1
        index += 1


def _lost(pods: Iterable[PodView], after_s: float, observed: Observed) -> tuple[frozenset[str], float | None]:
    """Uids of pods that nobody answers for, and when the next one may be."""
    nodes = observed.nodes or {}
    lost, later = set(), []
    for pod in pods:
        if pod.is_terminal:
            continue
        since = []
        node = nodes.get(pod.node)
        if pod.node and node is not None and not node.ready:
            since.append(max(node.since, pod.bound))
        if pod.deletion is not None and pod.node:  # its kubelet should have ended it by then
            since.append(pod.deletion)
        if not since:
            continue
        at = min(since) + after_s
        if observed.now >= at:
            lost.add(pod.uid)
        else:
            later.append(at)
    return frozenset(lost), min(later, default=None)
