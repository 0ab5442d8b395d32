"""resilin.distributed.elastic.agent. Written by scripts/type_stubs.py."""

from resilin.elastic.agent import *
