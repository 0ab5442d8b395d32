"""Conditions of a job as Kubernetes wants them: one of each type, its time moved by a change of status alone. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from resilin.operator import timestamps

TYPES = ("Created", "Running", "Scaling", "Degraded", "Stalled", "Suspended", "Succeeded", "Failed")


class Conditions:
    """The conditions of one job. `changed` says which have another status or reason than before."""

    def __init__(self, before: Iterable[Mapping[str, Any]], generation: int, now: float) -> None:
        self._all = {one["type"]: dict(one) for one in before}
        self._generation = generation
        self._now = now
        self.changed: list[dict[str, Any]] = []

    def is_true(self, kind: str) -> bool:
        """Return whether the condition of that type is there and holds."""
        return bool(self._all.get(kind, {}).get("status") == "True")

    def set(self, kind: str, holds: bool, reason: str, message: str = "") -> None:
        """Say whether the condition of type `kind` holds, and why."""
        old = self._all.get(kind)
        status = "True" if holds else "False"
        if old is None and not holds:
            return  # what never held needs no word
        flipped = old is None or old["status"] != status
        new = {
            "type": kind,
            "status": status,
            "reason": reason,
            "message": message,
            "observedGeneration": self._generation,
            "lastTransitionTime": timestamps.text(self._now) if flipped or old is None else old["lastTransitionTime"],
        }
        self._all[kind] = new
        if flipped or (old is not None and holds and old["reason"] != reason):
            self.changed.append(new)

    def to_json(self) -> list[dict[str, Any]]:
        """Return them in a fixed order, those of others last."""
        known = [self._all[kind] for kind in TYPES if kind in self._all]
        return known + [one for kind, one in self._all.items() if kind not in TYPES]
