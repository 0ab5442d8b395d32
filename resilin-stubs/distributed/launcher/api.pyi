"""resilin.distributed.launcher.api. Written by scripts/type_stubs.py."""

from resilin.launcher.api import *
