"""resilin.cuda.amp.common. Written by scripts/type_stubs.py."""

from resilin.amp.older import amp_definitely_not_available as amp_definitely_not_available
