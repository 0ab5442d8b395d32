"""resilin.distributed.pipeline.sync.skip. Written by scripts/type_stubs.py."""

from resilin.pipeline.sync.skip import *
from resilin.distributed.pipeline.sync.skip import layout as layout
from resilin.distributed.pipeline.sync.skip import namespace as namespace
from resilin.distributed.pipeline.sync.skip import tracker as tracker
