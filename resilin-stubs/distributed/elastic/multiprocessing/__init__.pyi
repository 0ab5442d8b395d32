"""resilin.distributed.elastic.multiprocessing. Written by scripts/type_stubs.py."""

from resilin.distributed.elastic.multiprocessing import errors as errors
