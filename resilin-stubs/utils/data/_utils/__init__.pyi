"""resilin.utils.data._utils. Written by scripts/type_stubs.py."""

from resilin.utils.data._utils import collate as collate
