"""resilin.utils.data.dataset. Written by scripts/type_stubs.py."""

from resilin.data.dataset import *
