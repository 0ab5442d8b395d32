"""How a node takes part in the rendezvous of a job."""

from __future__ import annotations

from dataclasses import dataclass

from resilin.elastic.rendezvous import calls


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a node takes part. `direct`: the store is memory of this process, calls never block."""

    job: str
    node_id: str
    lease_ttl_s: float = 5.0
    direct: bool = False
    caller: calls.Caller | None = None
    """How calls reach a store that is elsewhere; None: by a thread of its own."""
