"""resilin.distributed.launch. Written by scripts/type_stubs.py."""

from resilin.launcher.entry import *
