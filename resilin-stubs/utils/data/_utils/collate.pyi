"""resilin.utils.data._utils.collate. Written by scripts/type_stubs.py."""

from resilin.data import default_collate as default_collate
from resilin.data import default_convert as default_convert
