"""Put together this node's record, by which others decide, from the parts of the agent that know it."""

from __future__ import annotations

from collections.abc import Sequence

from resilin.elastic.agent.config import AgentConfig
from resilin.elastic.agent.reachability_probe import ReachabilityProbe
from resilin.elastic.agent.slots import LocalSlot
from resilin.elastic.hangs.stall_record import Stall
from resilin.elastic.membership import config_consistency
from resilin.elastic.membership.failure_log import FailureLog
from resilin.elastic.membership.node_quarantine import NodeQuarantine
from resilin.elastic.records import Generation, Node


class NodeRecord:
    """Makes the record of the node of `config`."""

    def __init__(
        self,
        config: AgentConfig,
        slots: Sequence[LocalSlot],
        mishaps: FailureLog,
        exclusion: NodeQuarantine,
        reachability: ReachabilityProbe,
    ) -> None:
        self._reachability = reachability
        self._config, self._slots, self._failure_log, self._quarantine = config, slots, mishaps, exclusion
        self._shared_config = config_consistency.of(
            config.membership, join_timeout_s=config.join_timeout_s, lease_ttl_s=config.lease_ttl_s
        )

    def record(self, current: Generation | None, *, leaving: bool, stall: Stall | None) -> Node:
        """Return the record as of now. `current`: the generation whose failures count."""
        config, first = self._config, self._failure_log.first(current)
        return Node(
            id=config.node_id,
            host=config.host,
            address=config.address,
            master_port=int(config.master_port),
            slots=tuple(slot.record for slot in self._slots),
            leaving=leaving,
            rank_hint=config.rank_hint,
            failure=first.to_json() if first is not None else None,
            unjoined=self._failure_log.unjoined,
            min_nodes=config.membership.min_nodes,
            max_nodes=config.membership.max_nodes,
            terms=self._shared_config,
            failures=self._quarantine.failures,
            excluded=self._quarantine.reason,
            stall=stall,
            tried_in=self._reachability.tried_in,
            cut_in=self._reachability.cut_in,
            unreachable=self._reachability.unreachable,
            stateful=self._says_state(current),
            early=self._failure_log.early,
        )

    def _says_state(self, current: Generation | None) -> bool:
        """Whether rank 0 is here, and has trained for a while."""
        first = current.members[0] if current is not None and current.members else None
        if first is None or first.node != self._config.node_id:
            return False
        slot = self._slots[first.slot]
        return slot.incarnation == first.incarnation and slot.has_begun
