"""resilin.utils.data.sampler. Written by scripts/type_stubs.py."""

from resilin.data.sampler import *
