"""resilin.nn.parallel.data_parallel. Written by scripts/type_stubs.py."""

from resilin.nn import DataParallel as DataParallel
from resilin.nn.modules.data_parallel import data_parallel as data_parallel
