"""resilin.distributed.pipeline.sync. Written by scripts/type_stubs.py."""

from resilin.pipeline.sync import *
from resilin.distributed.pipeline.sync import _balance as _balance
from resilin.distributed.pipeline.sync import batchnorm as batchnorm
from resilin.distributed.pipeline.sync import checkpoint as checkpoint
from resilin.distributed.pipeline.sync import copy as copy
from resilin.distributed.pipeline.sync import microbatch as microbatch
from resilin.distributed.pipeline.sync import partitions as partitions
from resilin.distributed.pipeline.sync import pipe as pipe
from resilin.distributed.pipeline.sync import pipeline as pipeline
from resilin.distributed.pipeline.sync import result as result
from resilin.distributed.pipeline.sync import skip as skip
from resilin.distributed.pipeline.sync import utils as utils
from resilin.distributed.pipeline.sync import worker as worker
