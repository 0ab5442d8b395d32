"""resilin.distributed.pipeline.sync.batchnorm. Written by scripts/type_stubs.py."""

from resilin.pipeline.sync.batchnorm import *
