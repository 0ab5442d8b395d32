"""resilin.nn.utils.init. Written by scripts/type_stubs.py."""

from resilin.nn.utils import skip_init as skip_init
