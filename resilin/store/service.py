"""etcd's gRPC services on top of a `SharedState`: requests in, responses out. Knows nothing of sockets or threads."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from resilin.errors import LeaseLost, StoreError
from resilin.store import convert
from resilin.store.base import to_bytes
from resilin.store.messages import new
from resilin.store.shared_state import SharedState

VERSION = "3.5.0"  # the etcd API spoken; tools choose what they may ask by it


class Rejected(StoreError):
    """A request that etcd would answer with the gRPC status called `code`."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Service:
    """The unary calls of KV, Lease and Maintenance. `handlers` maps method names to functions of one request."""

    def __init__(self, hub: SharedState) -> None:
        self._shared_state = hub
        self.handlers: dict[str, Callable[[Any], Any]] = {
            "Range": self._range,
            "Put": self._put,
            "DeleteRange": self._delete_range,
            "Txn": self._txn,
            "Compact": self._compact,
            "LeaseGrant": self._lease_grant,
            "LeaseRevoke": self._lease_revoke,
            "LeaseTimeToLive": self._lease_time_to_live,
            "LeaseLeases": self._lease_leases,
            "Alarm": self._alarm,
            "Status": self._status,
        }

    def header(self, revision: int | None = None) -> Any:
        """The header of a response; `cluster_id` tells a restarted, empty store from this one."""
        return new(
            "ResponseHeader",
            cluster_id=self._shared_state.id,
            member_id=1,
            revision=self._shared_state.revision if revision is None else revision,
            raft_term=1,
        )

    def keep_alive(self, request: Any) -> Any:
        """The answer to one request of a LeaseKeepAlive stream; TTL 0: the lease is gone."""
        ttl_s = self._shared_state.renew(request.ID)
        return new("LeaseKeepAliveResponse", header=self.header(), ID=request.ID, TTL=math.ceil(ttl_s))

    def _range(self, request: Any) -> Any:
        result = self._shared_state.txn((), (convert.range_from_wire(request),))
        return convert.range_to_wire(request, result.results[0], self.header(result.revision))

    def _put(self, request: Any) -> Any:
        result = self._shared_state.txn((), (convert.put_from_wire(request),))
        return convert.put_to_wire(request, result.results[0], self.header(result.revision))

    def _delete_range(self, request: Any) -> Any:
        result = self._shared_state.txn((), (convert.delete_from_wire(request),))
        return convert.delete_to_wire(request, result.results[0], self.header(result.revision))

    def _txn(self, request: Any) -> Any:
        compare = [convert.compare_from_wire(condition) for condition in request.compare]
        then = [convert.op_from_wire(op) for op in request.success]
        orelse = [convert.op_from_wire(op) for op in request.failure]
        result = self._shared_state.txn(compare, then, orelse)
        header = self.header(result.revision)
        asked = request.success if result.succeeded else request.failure
        responses = [convert.result_to_wire(op, given, header) for op, given in zip(asked, result.results, strict=True)]
        return new("TxnResponse", header=header, succeeded=result.succeeded, responses=responses)

    def _compact(self, request: Any) -> Any:
        self._shared_state.compact(request.revision)
        return new("CompactionResponse", header=self.header())

    def _lease_grant(self, request: Any) -> Any:
        lease_id = self._shared_state.grant(float(request.TTL), request.ID)
        return new("LeaseGrantResponse", header=self.header(), ID=lease_id, TTL=request.TTL)

    def _lease_revoke(self, request: Any) -> Any:
        if not self._shared_state.revoke(request.ID):
            raise LeaseLost(f"lease {request.ID:x} does not exist")
        return new("LeaseRevokeResponse", header=self.header())

    def _lease_time_to_live(self, request: Any) -> Any:
        found = self._shared_state.time_to_live(request.ID)
        if found is None:
            return new("LeaseTimeToLiveResponse", header=self.header(), ID=request.ID, TTL=-1)
        left, granted, keys = found
        return new(
            "LeaseTimeToLiveResponse",
            header=self.header(),
            ID=request.ID,
            TTL=int(left),
            grantedTTL=math.ceil(granted),
            keys=[to_bytes(key) for key in keys] if request.keys else [],
        )

    def _lease_leases(self, request: Any) -> Any:
        leases = [new("LeaseStatus", ID=lease_id) for lease_id in self._shared_state.leases()]
        return new("LeaseLeasesResponse", header=self.header(), leases=leases)

    def _alarm(self, request: Any) -> Any:
        return new("AlarmResponse", header=self.header())  # no disk, no quorum: nothing to raise one for

    def _status(self, request: Any) -> Any:
        revision = self._shared_state.revision
        return new("StatusResponse", header=self.header(), version=VERSION, leader=1, raftIndex=revision, raftTerm=1)
