"""Keep one agent's part of the job's records in the store: its own, the leader's, everybody's."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # what the table of places adds; written by scripts/type_stubs.py
    from resilin.distributed.elastic.rendezvous import api as api
    from resilin.errors import RendezvousError as RendezvousError
