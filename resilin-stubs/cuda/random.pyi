"""resilin.cuda.random. Written by scripts/type_stubs.py."""

from resilin.cuda import *
