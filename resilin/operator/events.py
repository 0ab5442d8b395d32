"""Tells people what happened to a job, as Events in the API of events.k8s.io/v1; repeated ones become a series."""

from __future__ import annotations

import hashlib
import logging
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from resilin._base import log
from resilin._base.clock import Clock
from resilin.errors import ClusterError
from resilin.operator import names, timestamps
from resilin.operator.actions import Emit
from resilin.operator.api import Api, Raw

_log = log.logger("operator")
_MOST_BYTES = 1024  # of a note, as the API has it
_MOST_KNOWN = 4096
_SERIES_S = 360.0  # as client-go: later it is a new event


@dataclass
class _Series:
    name: str
    count: int
    last: float


class EventRecorder:
    """Writes Events. What cannot be written is left out: the status says the same."""

    def __init__(self, api: Api, clock: Clock) -> None:
        self._api = api
        self._clock = clock
        self._known: OrderedDict[tuple[str, str, str], _Series] = OrderedDict()

    async def emit(self, job: Raw | None, action: Emit) -> None:
        """Tell `action` of `job`."""
        if job is None:
            return
        meta, now = job["metadata"], self._clock.wall()
        same = meta["uid"], action.reason, action.message
        series = self._known.get(same)
        try:
            if series is not None and now - series.last < _SERIES_S:
                series.count, series.last = series.count + 1, now
                told = {"series": {"count": series.count, "lastObservedTime": timestamps.micro(now)}}
                await self._api.merge("Event", meta["namespace"], series.name, told)
                return
            event = _event(job, action, now)
            await self._api.create("Event", meta["namespace"], event)
            self._known[same] = _Series(event["metadata"]["name"], 1, now)
            while len(self._known) > _MOST_KNOWN:
                self._known.popitem(last=False)
        except ClusterError as error:
            self._known.pop(same, None)
            log.event(_log, logging.INFO, "an event was not written", reason=action.reason, error=str(error))


def _event(job: Raw, action: Emit, now: float) -> dict[str, Any]:
    meta = job["metadata"]
    text = f"{meta['uid']}{action.reason}{action.message}{now:.6f}"
    mark = hashlib.sha256(text.encode()).hexdigest()[:16]
    return {
        "metadata": {"name": f"{meta['name']}.{mark}", "namespace": meta["namespace"]},
        "regarding": {
            "apiVersion": names.API_VERSION, "kind": names.KIND, "name": meta["name"], "namespace": meta["namespace"],
            "uid": meta["uid"],
        },
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "eventTime": timestamps.micro(now),
        "reportingController": f"{names.GROUP}/operator",
        "reportingInstance": names.MANAGER,
        "action": "Reconcile",
        "reason": action.reason,
        "type": action.type,
        "note": action.message.encode(errors="replace")[:_MOST_BYTES].decode(errors="ignore"),
    }  # fmt: skip
