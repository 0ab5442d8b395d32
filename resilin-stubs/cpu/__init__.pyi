"""resilin.cpu. Written by scripts/type_stubs.py."""

from resilin.cpu import amp as amp
