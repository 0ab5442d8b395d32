"""One thread keeps every lease of a client alive."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Sequence

from resilin._base import log
from resilin._base.clock import SYSTEM
from resilin._base.threads import OwnedThread
from resilin.errors import LeaseLost, StoreError
from resilin.store.base import Lease
from resilin.store.messages import new
from resilin.store.transport import Transport

_log = log.logger("store.client")
RENEW_PART = 3  # renewed after a third of its time: two renewals may fail
TOGETHER_PART = 12  # those due within this part of their time go with one that is due: one call for many leases
RETRY_S = (0.02, 0.5)  # a failed renewal is repeated after a twentieth of the time to live, within these bounds


class ClientLease(Lease):
    """A lease granted over the network."""

    def __init__(self, keeper: LeaseKeeper, lease_id: int, ttl_s: float, on_lost: Callable[[], None] | None) -> None:
        self.id = lease_id
        self.ttl_s = ttl_s
        self.on_lost = on_lost
        self.renewed(SYSTEM.monotonic(), ttl_s)
        self._keeper = keeper
        self._alive = True

    @property
    def alive(self) -> bool:
        return self._alive

    def renewed(self, sent_at: float, ttl_s: float) -> None:
        """The store counts from when it saw the request, which is later than `sent_at`: we give up first."""
        self.expires_at = sent_at + ttl_s
        self.renew_at = sent_at + ttl_s / RENEW_PART

    def end(self) -> None:
        """The lease is over for us."""
        self._alive = False

    def revoke(self) -> None:
        if self._alive:
            self.end()
            self._keeper.revoke(self)


class LeaseKeeper:
    """Grants, renews and revokes leases through `transport`. The thread starts with the first lease."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._changed = threading.Condition()
        self._leases: dict[int, ClientLease] = {}  # guarded by _changed
        self._thread: OwnedThread | None = None  # guarded by _changed
        self._closed = False  # guarded by _changed
        self._failing = False  # used by the thread only

    def grant(self, ttl_s: float, on_lost: Callable[[], None] | None) -> ClientLease:
        """A new lease of at least `ttl_s`; etcd counts whole seconds."""
        sent_at = SYSTEM.monotonic()
        # Repeatable: a grant whose answer was lost runs out by itself.
        answer = self._transport.call("LeaseGrant", new("LeaseGrantRequest", TTL=math.ceil(ttl_s)), repeatable=True)
        lease = ClientLease(self, answer.ID, float(answer.TTL), on_lost)
        lease.renewed(sent_at, lease.ttl_s)
        with self._changed:
            self._leases[lease.id] = lease
            if self._thread is None:
                self._thread = OwnedThread("store-keepalive", self._run)
            self._changed.notify_all()
        return lease

    def revoke(self, lease: ClientLease) -> None:
        """Stop renewing, then end the lease at the store."""
        with self._changed:
            self._leases.pop(lease.id, None)
        try:
            self._transport.call("LeaseRevoke", new("LeaseRevokeRequest", ID=lease.id), repeatable=True)
        except LeaseLost:
            log.event(_log, logging.DEBUG, "lease was gone before it was revoked", lease=lease.id)

    def close(self) -> None:
        """Stop renewing. Call it after the transport was closed, which cuts a renewal that is under way."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._closed:
                    return
                now = SYSTEM.monotonic()
                due = [one for one in self._leases.values() if one.renew_at <= now + one.ttl_s / TOGETHER_PART]
                if all(one.renew_at > now for one in due):
                    SYSTEM.wait(self._changed, min((one.renew_at for one in self._leases.values()), default=None))
                    continue
            self._renew(due)
            self._report_lost(due)

    def _renew(self, due: Sequence[ClientLease]) -> None:
        sent_at = SYSTEM.monotonic()
        requests = iter([new("LeaseKeepAliveRequest", ID=lease.id) for lease in due])
        timeout_s = max(min(lease.ttl_s for lease in due) / RENEW_PART, 0.1)
        by_id = {lease.id: lease for lease in due}
        try:
            for answer in self._transport.stream("LeaseKeepAlive", requests, timeout_s):
                lease = by_id.pop(answer.ID)
                if answer.TTL > 0:
                    lease.renewed(sent_at, float(answer.TTL))
                else:
                    lease.expires_at = -math.inf
                if not by_id:
                    break
            self._failing = False
        except StoreError as failure:  # repeated until the leases end: even a refusal may be mended meanwhile
            if not self._transport.closed:
                level = logging.DEBUG if self._failing else logging.INFO  # once per outage
                log.event(_log, level, "leases could not be renewed", error=str(failure))
            self._failing = True
        shortest, longest = RETRY_S
        for lease in by_id.values():
            lease.renew_at = SYSTEM.monotonic() + min(longest, max(shortest, lease.ttl_s / 20))

    def _report_lost(self, due: Sequence[ClientLease]) -> None:
        now = SYSTEM.monotonic()
        for lease in due:
            if lease.expires_at > now:
                continue
            with self._changed:
                known = self._leases.pop(lease.id, None) is not None
            if not known or not lease.alive:
                continue
            lease.end()
            if lease.on_lost is not None:
                self._call(lease.on_lost)

    def _call(self, on_lost: Callable[[], None]) -> None:
        try:
            on_lost()
        except Exception as error:  # noqa: BLE001 - a thread's top: reported, the other leases go on
            log.event(_log, logging.ERROR, "an on_lost callback failed", error=repr(error))
