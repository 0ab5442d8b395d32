"""resilin.distributed.elastic.rendezvous.api. Written by scripts/type_stubs.py."""

from resilin.errors import RendezvousError as RendezvousError
