"""resilin.distributed.pipeline. Written by scripts/type_stubs.py."""

from resilin.distributed.pipeline import sync as sync
