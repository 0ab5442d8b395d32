"""resilin.storage. Written by scripts/type_stubs.py."""

from resilin.core.api.conversion.layouts import UntypedStorage as UntypedStorage
