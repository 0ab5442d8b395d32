"""Say which skip tensors go from which partition to which. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from resilin.nn.modules.module import Module
from resilin.pipeline.sync.skip.namespace import Namespace, SkipName
from resilin.pipeline.sync.skip.skippable import skippables_of


class SkipLayout:
    """The routes of skip tensors: name -> (partition that stashes it, partition that pops it)."""

    def __init__(self, skip_routes: dict[SkipName, tuple[int, int]]) -> None:
        self._routes = skip_routes

    def copy_policy(self, next_j: int) -> Iterator[tuple[int, Namespace | None, str]]:
        """Yield what partition `next_j` pops that earlier ones have stashed: (partition, namespace, name), in order."""
        into = [(route[0], *name) for name, route in self._routes.items() if route[0] != route[1] == next_j]
        return iter(sorted(into, key=lambda found: found[0]))

    def popped_by(self, j: int) -> tuple[SkipName, ...]:
        """Return what comes to partition `j` from earlier ones."""
        return tuple(SkipName(ns, name) for _, ns, name in self.copy_policy(j))

    def stashed_by(self, j: int) -> tuple[SkipName, ...]:
        """Return what partition `j` stashes for later ones."""
        return tuple(name for name, route in self._routes.items() if j == route[0] != route[1])

    def requires_copy(self, ns: Namespace | None, name: str) -> bool:
        """Return whether the skip tensor goes to another partition than the one that stashes it."""
        before, after = self._routes.get(SkipName(ns, name), (-1, -1))
        return before != after


def inspect_skip_layout(partitions: Sequence[Module]) -> SkipLayout:
    """Return the routes of skip tensors among `partitions`, which `verify_skippables` has seen."""
    stashed_at: dict[SkipName, int] = {}
    routes: dict[SkipName, tuple[int, int]] = {}
    for j, partition in enumerate(partitions):
        for _, layer in skippables_of(partition):
            stashed_at.update(dict.fromkeys(layer.stashable(), j))
            routes.update((name, (stashed_at.pop(name), j)) for name in layer.poppable())
    return SkipLayout(routes)
