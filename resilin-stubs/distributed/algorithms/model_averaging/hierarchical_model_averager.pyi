"""resilin.distributed.algorithms.model_averaging.hierarchical_model_averager. Written by scripts/type_stubs.py."""

from resilin.ddp.model_averaging.hierarchical_model_averager import *
