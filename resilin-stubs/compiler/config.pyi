"""resilin.compiler.config. Written by scripts/type_stubs.py."""

from resilin.compiler.settings import *
