"""resilin.distributed.algorithms.model_averaging.utils. Written by scripts/type_stubs.py."""

from resilin.ddp.model_averaging.utils import *
