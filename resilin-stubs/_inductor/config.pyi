"""resilin._inductor.config. Written by scripts/type_stubs.py."""

from resilin.compiler.settings import *
