"""resilin.distributed.algorithms.model_averaging.averagers. Written by scripts/type_stubs.py."""

from resilin.ddp.model_averaging.averagers import *
