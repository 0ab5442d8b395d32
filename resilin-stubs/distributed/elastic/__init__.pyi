"""resilin.distributed.elastic. Written by scripts/type_stubs.py."""

from resilin.elastic import *
from resilin.distributed.elastic import agent as agent
from resilin.distributed.elastic import multiprocessing as multiprocessing
from resilin.distributed.elastic import rendezvous as rendezvous
