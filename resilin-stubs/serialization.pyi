"""resilin.serialization. Written by scripts/type_stubs.py."""

from resilin.core.safe_globals import add_safe_globals as add_safe_globals
from resilin.core.safe_globals import clear_safe_globals as clear_safe_globals
from resilin.core.safe_globals import get_safe_globals as get_safe_globals
from resilin.core.serialize import load as load
from resilin.core.safe_globals import safe_globals as safe_globals
from resilin.core.serialize import save as save
