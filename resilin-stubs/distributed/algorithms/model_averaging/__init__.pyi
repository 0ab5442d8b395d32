"""resilin.distributed.algorithms.model_averaging. Written by scripts/type_stubs.py."""

from resilin.ddp.model_averaging import *
from resilin.distributed.algorithms.model_averaging import averagers as averagers
from resilin.distributed.algorithms.model_averaging import hierarchical_model_averager as hierarchical_model_averager
from resilin.distributed.algorithms.model_averaging import utils as utils
