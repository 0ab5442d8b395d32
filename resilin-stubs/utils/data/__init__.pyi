"""resilin.utils.data. Written by scripts/type_stubs.py."""

from resilin.data import *
from resilin.utils.data import _utils as _utils
from resilin.utils.data import dataloader as dataloader
from resilin.utils.data import dataset as dataset
from resilin.utils.data import distributed as distributed
from resilin.utils.data import sampler as sampler
