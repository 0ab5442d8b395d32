"""A client of etcd v3's API: a real etcd, or the embedded server. Thin: about what a job's coordination needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from resilin._base import secret as job_secret
from resilin.errors import UsageError
from resilin.store.base import Compare, ErrorCallback, EventsCallback, Lease, Op, Store, TxnResult, Watch
from resilin.store.convert import compare_to_wire, op_to_wire, result_from_wire
from resilin.store.keepalive import LeaseKeeper
from resilin.store.messages import new
from resilin.store.transport import Login, Tls, Transport, login_with_password, login_with_secret
from resilin.store.watcher import Watcher


class ClientStore(Store):
    """A store reached over the network, at any of `endpoints` ("host:port").

    `secret` is for the embedded server (proved both ways, never sent), `user` and `password` for a real etcd, `tls` for
    either. `own_only`: a server on loopback has to be this user's, or root's, as the kernel says. Connects in the
    background; `ping()` says whether the store is there and lets us in. Local put: benchmarks/results/store_front.md.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        timeout_s: float = 5.0,
        secret: str | None = None,
        user: str | None = None,
        password: str | None = None,
        tls: Tls | None = None,
        own_only: bool = False,
    ) -> None:
        login: Login | None = None
        secret = job_secret.checked(secret or "", "ClientStore: secret") or None
        if secret is not None and user is not None:
            raise UsageError("store: expected a secret or a user with password, got both")
        if secret is not None:
            login = login_with_secret(secret)
        elif user is not None:
            login = login_with_password(user, password or "")
        self._transport = Transport(endpoints, timeout_s, login, tls, own_only)
        self._keeper = LeaseKeeper(self._transport)
        self._watcher = Watcher(self._transport)

    def ping(self, timeout_s: float | None = None) -> int:
        """The store's revision. Raises StoreTimeout or StoreRefused."""
        return int(self._status(timeout_s).header.revision)

    def is_leader(self) -> bool:
        """Whether the endpoint that answers leads its cluster (the embedded server always does)."""
        status = self._status(None)
        return bool(status.leader == status.header.member_id)

    def _status(self, timeout_s: float | None) -> Any:
        return self._transport.call("Status", new("StatusRequest"), repeatable=True, timeout_s=timeout_s)

    def txn(self, compare: Sequence[Compare], then: Sequence[Op], orelse: Sequence[Op] = ()) -> TxnResult:
        """As `Store.txn`."""
        request = new(
            "TxnRequest",
            compare=[compare_to_wire(condition) for condition in compare],
            success=[op_to_wire(op) for op in then],
            failure=[op_to_wire(op) for op in orelse],
        )
        writes = any(op.kind != "range" for op in (*then, *orelse))
        answer = self._transport.call("Txn", request, repeatable=not (compare and writes))
        results = tuple(result_from_wire(response) for response in answer.responses)
        return TxnResult(answer.succeeded, answer.header.revision, results, int(answer.header.cluster_id))

    def lease(self, ttl_s: float, on_lost: Callable[[], None] | None = None) -> Lease:
        """As `Store.lease`; granted in whole seconds."""
        if not 0 < ttl_s < 1e9:
            raise UsageError(f"lease: expected a positive time to live in seconds, got {ttl_s}")
        return self._keeper.grant(ttl_s, on_lost)

    def watch(
        self,
        prefix: str,
        on_events: EventsCallback,
        start_revision: int | None = None,
        on_error: ErrorCallback | None = None,
    ) -> Watch:
        """As `Store.watch`."""
        return self._watcher.add(prefix, on_events, start_revision, on_error)

    def compact(self, revision: int) -> None:
        """As `Store.compact`."""
        self._transport.call("Compact", new("CompactionRequest", revision=revision), repeatable=False)

    def close(self) -> None:
        """As `Store.close`."""
        self._transport.close()
        self._watcher.close()
        self._keeper.close()

    def __repr__(self) -> str:
        return f"<ClientStore {self._transport.addresses}>"
