"""Carries out what `reconcile` decides, one turn of one job at a time.

A turn looks at the cache, decides, and writes. Answers go into the cache at once, so that the next turn does not decide
on what it has itself made old. After an answer that surprises (a conflict, something gone, or none at all: the write
may have been done) the job and its pods are read anew from the server before anything else is written.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

from resilin._base import log
from resilin._base.clock import SYSTEM, Clock
from resilin._base.secret import new_secret
from resilin.errors import ClusterError, UsageError
from resilin.operator import names, pod_events, scaling, spec
from resilin.operator.actions import (
    Action,
    Apply,
    Create,
    CreateSecret,
    Delete,
    Emit,
    PatchStatus,
    Requeue,
    SetFinalizers,
)
from resilin.operator.api import Api, Raw
from resilin.operator.cache import Cache, Key
from resilin.operator.events import EventRecorder
from resilin.operator.metrics import Metrics
from resilin.operator.observed import Observed, Refusal, is_owned
from resilin.operator.pod_events import PodEvents
from resilin.operator.reconcile import reconcile, reconcile_unreadable
from resilin.operator.status import Draft

_log = log.logger("operator")
_AT_ONCE = 16  # writes of one batch that are under way together: a server's priority queues reject more sooner
_SECRET_GONE = (
    "it was deleted while pods use what was in it: pods that come could not join them; put it back if you have a copy, "
    "or suspend the job and resume it"
)
_REFUSALS = (400, 403, 404, 405, 413, 415, 422)


class Engine:
    """Turns of jobs. One at a time for each key; several keys may have theirs at once.

    may_write: asked before each write; false once another process may lead.
    """

    def __init__(
        self, api: Api, cache: Cache, metrics: Metrics, clock: Clock = SYSTEM, *,
        may_write: Callable[[], bool] = lambda: True,
    ) -> None:  # fmt: skip
        self._api = api
        self._cache = cache
        self._metrics = metrics
        self._clock = clock
        self._may_write = may_write
        self._recorder = EventRecorder(api, clock)
        self._refusals: dict[Key, dict[tuple[str, str], Refusal]] = {}
        self._pod_events = PodEvents(api)
        self._secrets: dict[str, str] = {}  # what this process has put into Secrets, by the uid of the job
        self._unsure: set[Key] = set()

    async def turn(self, key: Key) -> float | None:
        """Bring one job nearer to what is asked for; the seconds after which to look again, None: at a change.

        ClusterError: something was refused or failed; to be tried again, with back-off.
        """
        if key in self._unsure:
            await self._read_anew(key)
        actions, lost_on = await self._decide(key)
        if lost_on and any(map(_is_write, actions)):  # a watch may have been silent, not the node
            await self._ask_for_nodes(key, lost_on)
            actions, _ = await self._decide(key)
        self._prune(key, actions)
        await self._carry_out_all(key, actions)
        if any(map(_is_write, actions)):
            return 0.0  # its answers are known already, so no watch will tell of them as something new
        return min((action.after_s for action in actions if isinstance(action, Requeue)), default=None)

    async def _decide(self, key: Key) -> tuple[Sequence[Action], frozenset[str]]:
        """What is to be done, and the nodes whose silence it is based on."""
        observed = self._observe(key)
        if observed is not None and any(map(pod_events.is_waiting, observed.pods)):
            words = await self._pod_events.read(observed)
            observed = self._observe(key)  # it may have changed meanwhile
            observed = None if observed is None else pod_events.with_words(observed, words)
        if observed is None:
            self._refusals.pop(key, None)
            return (), frozenset()
        try:
            wanted = spec.parse(observed.job)
        except UsageError as error:  # a schema of another version has let it through
            return reconcile_unreadable(observed, str(error)), frozenset()
        lost = scaling.look(wanted, observed).lost
        return reconcile(wanted, observed), frozenset(pod.node for pod in observed.pods if pod.uid in lost)

    def _observe(self, key: Key) -> Observed | None:
        return self._cache.observe(key, tuple(self._refusals.get(key, {}).values()), self._clock.wall())

    async def _ask_for_nodes(self, key: Key, nodes: Iterable[str]) -> None:
        """Ask the server for nodes that seem silent, and for the job's pods: what is lost is replaced for good."""
        for name in nodes if self._cache.nodes is not None else ():
            try:
                self._cache.put_node(await self._api.get("Node", "", name))
            except ClusterError as error:
                if error.code != 404:
                    raise
                self._cache.remove_node(name, self._clock.wall())
        await self._read_anew(key)

    async def tell_of(self, key: Key, error: Exception) -> None:
        """Say in a job's status that the operator itself fails at it: its user does not read the operator's log.

        ClusterError: that cannot be written either.
        """
        observed = self._observe(key)
        if observed is None or spec.managed_by(observed.job) != names.MANAGED_BY:
            return
        draft = Draft(observed)
        said = f"the operator cannot decide about this job: {type(error).__name__}: {error}"
        draft.conditions.set("Stalled", True, "OperatorError", said)
        await self._carry_out_all(key, draft.actions())

    def doubt_everything(self) -> None:
        """Read every job anew before its next turn, and try again what was refused: done from time to time, and when
        another process may have written meanwhile."""
        self._unsure.update(self._cache.jobs)
        self._refusals.clear()
        there = {job["metadata"]["uid"] for key in self._cache.jobs if (job := self._cache.job(key)) is not None}
        self._secrets = {uid: value for uid, value in self._secrets.items() if uid in there}

    def _prune(self, key: Key, actions: Sequence[Action]) -> None:
        """Forget refusals of what is wanted no more. What stays away because it was refused keeps its own."""
        refusals = self._refusals.get(key)
        if not refusals:
            return
        wanted = {action.kind_and_name for action in actions if isinstance(action, Create | CreateSecret | Delete)}
        for at in [at for at, refusal in refusals.items() if not refusal.key and at not in wanted]:
            del refusals[at]

    async def _read_anew(self, key: Key) -> None:
        """Ask the server, not a cache of it, for the job and its pods."""
        namespace, name = key
        try:
            self._cache.put(names.KIND, await self._api.get(names.KIND, namespace, name))
        except ClusterError as error:
            if error.code != 404:
                raise
            jobs, version = await self._api.list(names.KIND, namespace)
            self._cache.replace(names.KIND, [job for job in jobs if job["metadata"]["name"] == name], version, key)
        pods, version = await self._api.list("Pod", namespace, f"{names.JOB}={name}")
        self._cache.replace("Pod", pods, version, key)
        self._unsure.discard(key)

    # ------------------------------------------------------------------------------------------------ writes

    async def _carry_out_all(self, key: Key, actions: Sequence[Action]) -> None:
        """Write in order, and tell people in the end what came of it: no pod waits for an Event."""
        told: list[Action] = []  # what stands behind a write that failed is not told: it did not happen
        failed: ClusterError | None = None
        for batch in _batches(actions):
            if isinstance(batch[0], Emit):
                told += batch
            elif (failed := await self._batch(key, batch)) is not None:
                break
        for action in told:
            await self._attempt(key, action)
        if failed is not None:
            raise failed

    async def _batch(self, key: Key, batch: Sequence[Action]) -> ClusterError | None:
        """Carry out actions that do not depend on one another; the first failure."""
        if len(batch) == 1:
            return await self._attempt(key, batch[0])
        gate = asyncio.Semaphore(_AT_ONCE)

        async def one(action: Action) -> ClusterError | None:
            async with gate:
                return await self._attempt(key, action)

        outcomes = await asyncio.gather(*(one(action) for action in batch))
        return next((outcome for outcome in outcomes if outcome is not None), None)

    async def _attempt(self, key: Key, action: Action) -> ClusterError | None:
        if isinstance(action, Requeue):
            return None
        if not self._may_write():  # the next to lead may have begun already
            text = "this process leads no more: its lease could not be renewed in time"
            return ClusterError(text, reason="NotLeading")
        if isinstance(action, Emit):
            await self._recorder.emit(self._cache.job(key), action)
            return None
        try:
            await self._carry_out(key, action)
        except ClusterError as error:
            self._metrics.failed(error)
            log.event(_log, logging.DEBUG, "a write failed", job="/".join(key), action=repr(action), error=str(error))
            self._take_failure(key, action, error)
            return error
        self._metrics.written(type(action).__name__)
        if not isinstance(action, PatchStatus | SetFinalizers):
            self._refusals.get(key, {}).pop(action.kind_and_name, None)
        return None

    def _take_failure(self, key: Key, action: Action, error: ClusterError) -> None:
        """Remember a refusal; anything else makes what is known of the job doubtful."""
        self._unsure.add(key)
        if isinstance(action, PatchStatus | SetFinalizers | Requeue | Emit):
            return
        conflict = error.code == 409 and error.reason in ("FieldManagerConflict", "NameTaken")
        if error.code in _REFUSALS or conflict:
            kind, name = action.kind_and_name
            self._refusals.setdefault(key, {})[kind, name] = Refusal(
                kind=kind,
                name=name,
                code=error.code,
                reason=error.reason,
                message=error.said,
                key=action.key if isinstance(action, Apply) else "",
            )

    async def _carry_out(self, key: Key, action: Action) -> None:
        namespace, name = key
        if isinstance(action, Create):
            await self._create(key, action)
        elif isinstance(action, CreateSecret):
            await self._create_secret(key, action)
        elif isinstance(action, Apply):
            await self._apply(key, action)
        elif isinstance(action, Delete):
            await self._delete(namespace, action)
        elif isinstance(action, PatchStatus):
            job = dict(self._job(key))
            job["status"] = action.status
            job["metadata"] = {**job["metadata"], "resourceVersion": action.resource_version}
            self._cache.put(names.KIND, await self._api.update(names.KIND, namespace, name, job, "status"))
        elif isinstance(action, SetFinalizers):
            meta = {"finalizers": list(action.finalizers), "resourceVersion": action.resource_version}
            answer = await self._api.merge(names.KIND, namespace, name, {"metadata": meta})
            if answer["metadata"].get("deletionTimestamp") and not action.finalizers:
                self._cache.remove(names.KIND, answer)
            else:
                self._cache.put(names.KIND, answer)

    def _job(self, key: Key) -> Raw:
        job = self._cache.job(key)
        if job is None:
            raise ClusterError(f"job {'/'.join(key)} is gone", code=404, reason="NotFound")
        return job

    async def _create(self, key: Key, action: Create) -> None:
        try:
            self._cache.put(action.kind, await self._api.create(action.kind, key[0], action.manifest))
        except ClusterError as error:
            if error.code != 409:
                raise
            there = await self._api.get(action.kind, key[0], action.name)
            if not is_owned(there, self._job(key)["metadata"]["uid"]):
                text = f"{action.kind} {action.name} is there already and belongs to somebody else"
                raise ClusterError(text, code=409, reason="NameTaken") from None
            self._cache.put(action.kind, there)
            raise

    async def _create_secret(self, key: Key, action: CreateSecret) -> None:
        """Make it anew with what was in it, as far as that is known: other agents could not prove themselves to those
        that have the secret from before."""
        uid = self._job(key)["metadata"]["uid"]
        known = self._secrets.get(uid)
        only_try = known is None and action.in_use
        value = known or new_secret()
        try:
            await self._api.create(
                "Secret", key[0], {**action.manifest, "stringData": {action.key: value}}, dry_run=only_try
            )
        except ClusterError as error:
            if error.code == 0 and not only_try:
                self._secrets[uid] = value  # it may be there by now, with this
            if error.code != 409 or error.reason != "AlreadyExists":
                raise
            return
        if only_try:
            raise ClusterError(_SECRET_GONE, code=404, reason="SecretGone")
        self._secrets[uid] = value

    async def _apply(self, key: Key, action: Apply) -> None:
        """Make or mend an object; one that is not known yet may be somebody else's."""
        namespace = key[0]
        if not self._cache.holds(key, action.kind, action.name):
            try:
                there = await self._api.get(action.kind, namespace, action.name)
            except ClusterError as error:
                if error.code != 404:
                    raise
            else:
                if not is_owned(there, self._job(key)["metadata"]["uid"]):
                    text = f"{action.kind} {action.name} is there already and belongs to somebody else"
                    raise ClusterError(text, code=409, reason="NameTaken")
        self._cache.put(action.kind, await self._api.apply(action.kind, namespace, action.name, action.manifest))

    async def _delete(self, namespace: str, action: Delete) -> None:
        answer = await self._api.delete(
            action.kind, namespace, action.name, action.uid, action.grace_s, action.resource_version
        )
        meta: dict[str, Any] = dict(answer.get("metadata") or {})
        if meta.get("uid") != action.uid:
            return  # the watch tells
        leaves_at_once = meta.get("deletionGracePeriodSeconds") == 0 and not meta.get("finalizers")
        if leaves_at_once or not meta.get("deletionTimestamp"):
            self._cache.remove(action.kind, answer)
        else:
            self._cache.put(action.kind, answer)


def _is_write(action: Action) -> bool:
    return not isinstance(action, Requeue | Emit)


def _batches(actions: Sequence[Action]) -> Iterator[Sequence[Action]]:
    """Neighbours of one sort may go together; of different sorts the earlier one must have been done."""
    for kind, group in groupby(actions, type):
        if issubclass(kind, Create | Delete | Apply):
            yield list(group)
        else:
            yield from ([action] for action in group)
