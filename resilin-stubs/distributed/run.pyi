"""resilin.distributed.run. Written by scripts/type_stubs.py."""

from resilin.launcher.entry import *
