"""resilin._inductor. Written by scripts/type_stubs.py."""

from resilin._inductor import config as config
