"""resilin.distributed.elastic.rendezvous. Written by scripts/type_stubs.py."""

from resilin.elastic.rendezvous import *
from resilin.distributed.elastic.rendezvous import api as api
