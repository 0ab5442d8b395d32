"""Set how a node takes part in the rendezvous of a job."""

from __future__ import annotations

from dataclasses import dataclass

from resilin.elastic.rendezvous import store_executor


@dataclass(frozen=True, kw_only=True)
class RendezvousOptions:
    """Set how a node takes part. `direct`: the store is memory of this process, calls never block."""

    job: str
    node_id: str
    lease_ttl_s: float = 5.0
    direct: bool = False
    caller: store_executor.Caller | None = None
    """How calls reach a store that is elsewhere; None: by a thread of its own."""
