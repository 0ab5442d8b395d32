"""resilin.distributed.elastic.multiprocessing.errors. Written by scripts/type_stubs.py."""

from resilin.errors import ChildFailedError as ChildFailedError
from resilin.elastic import record as record
