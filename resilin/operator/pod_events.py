"""Reads what kubelets tell of pods that do not start: only their Events say which volume, claim or Secret is missing.

Asked are pods that have a node and whose containers are being created for a while, and nobody else: a cluster has many
Events. The last one of a pod counts, so that a trouble that is over is none.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace

from resilin._base import log
from resilin.errors import ClusterError
from resilin.operator import timestamps
from resilin.operator.api import Api, Raw
from resilin.operator.faults import NOT_PREPARED
from resilin.operator.observed import Observed, PodView

_log = log.logger("operator")
PATIENCE_S = 3.0  # containers of most pods are created sooner
AGAIN_S = 5.0  # after which a pod is asked about again
_MOST_KNOWN = 4096
_MOST_PODS = 8  # of a job: what one lacks, the others lack as well


@dataclass(frozen=True)
class _Words:
    at: float
    """When they were read; seconds since the epoch."""
    reason: str
    """Empty: there was no trouble."""
    message: str


class PodEvents:
    """What was read last of each pod."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._known: OrderedDict[str, _Words] = OrderedDict()  # by the pod's uid

    async def read(self, observed: Observed) -> Mapping[str, tuple[str, str]]:
        """Return reason and message of the trouble of each pod that waits for its containers, by its uid."""
        waiting = [pod for pod in observed.pods if is_waiting(pod) and observed.now >= pod.bound + PATIENCE_S]
        for pod in waiting[:_MOST_PODS]:
            known = self._known.get(pod.uid)
            if known is None or observed.now >= known.at + AGAIN_S:
                self._known[pod.uid] = await self._read(observed.namespace, pod, observed.now)
                self._known.move_to_end(pod.uid)
        while len(self._known) > _MOST_KNOWN:
            self._known.popitem(last=False)
        found = {pod.uid: self._known[pod.uid] for pod in waiting if pod.uid in self._known}
        return {uid: (words.reason, words.message) for uid, words in found.items()}

    async def _read(self, namespace: str, pod: PodView, now: float) -> _Words:
        fields = f"involvedObject.kind=Pod,involvedObject.uid={pod.uid}"
        try:
            events, _ = await self._api.list("PodEvent", namespace, fields=fields)
        except ClusterError as error:
            log.event(_log, logging.INFO, "a pod's events cannot be read", pod=pod.name, error=str(error))
            return _Words(now, "", "")
        last = max(events, key=_order, default={})
        reason = str(last.get("reason") or "")
        return _Words(now, reason, str(last.get("message") or "")) if reason in NOT_PREPARED else _Words(now, "", "")


def with_words(observed: Observed, words: Mapping[str, tuple[str, str]]) -> Observed:
    """Return what is observed, with the kubelets' words in the pods that still wait for their containers."""
    pods = (
        replace(pod, waiting=words[pod.uid]) if pod.uid in words and is_waiting(pod) else pod for pod in observed.pods
    )
    return replace(observed, pods=tuple(pods))


def is_waiting(pod: PodView) -> bool:
    """Return whether a pod has a node, and the kubelet has neither made its containers nor said in its status why."""
    return pod.phase == "Pending" and bool(pod.node) and not pod.prepared and not pod.waiting[0] and not pod.deleting


def look_again(observed: Observed) -> float | None:
    """Return when to ask about a pod that is waiting now; seconds since the epoch."""
    asked = [pod for pod in observed.pods if is_waiting(pod) or (pod.waiting[0] in NOT_PREPARED and not pod.deleting)]
    first = min((pod.bound + PATIENCE_S for pod in asked), default=None)
    return None if first is None else first if first > observed.now else observed.now + AGAIN_S


def _order(event: Raw) -> tuple[float, int]:
    """When an event was last seen, and of several in one second which was written last."""
    series = event.get("series") or {}
    times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    at = max((timestamps.parse(one) or 0.0 for one in times), default=0.0)
    meta = event["metadata"]
    return at or timestamps.parse(meta.get("creationTimestamp")) or 0.0, int(meta.get("resourceVersion") or 0)
