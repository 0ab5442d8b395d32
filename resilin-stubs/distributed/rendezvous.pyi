"""resilin.distributed.rendezvous. Written by scripts/type_stubs.py."""

from resilin.distributed import register_rendezvous_handler as register_rendezvous_handler
from resilin.distributed import rendezvous as rendezvous
