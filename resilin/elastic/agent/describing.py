"""This node's record: what others decide by, put together from the parts of the agent that know it."""

from __future__ import annotations

from collections.abc import Sequence

from resilin.elastic.agent.config import AgentConfig
from resilin.elastic.agent.slots import LocalSlot
from resilin.elastic.deciding import terms
from resilin.elastic.deciding.exclusion import Exclusion
from resilin.elastic.deciding.mishaps import Mishaps
from resilin.elastic.hangs.stalls import Stall
from resilin.elastic.records import Generation, Node


class Describing:
    """Makes the record of the node of `config`."""

    def __init__(self, config: AgentConfig, slots: Sequence[LocalSlot], mishaps: Mishaps, exclusion: Exclusion) -> None:
        self._config, self._slots, self._mishaps, self._exclusion = config, slots, mishaps, exclusion
        self._terms = terms.of(config.membership, join_timeout_s=config.join_timeout_s, lease_ttl_s=config.lease_ttl_s)

    def record(self, current: Generation | None, *, leaving: bool, stall: Stall | None) -> Node:
        """As of now. `current`: the generation whose failures count."""
        config, first = self._config, self._mishaps.first(current)
        return Node(
            id=config.node_id,
            host=config.host,
            address=config.address,
            master_port=config.master_port,
            slots=tuple(slot.record for slot in self._slots),
            leaving=leaving,
            rank_hint=config.rank_hint,
            failure=first.to_json() if first is not None else None,
            unjoined=self._mishaps.unjoined,
            min_nodes=config.membership.min_nodes,
            max_nodes=config.membership.max_nodes,
            terms=self._terms,
            failures=self._exclusion.failures,
            excluded=self._exclusion.reason,
            stall=stall,
        )
