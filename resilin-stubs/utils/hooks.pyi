"""resilin.utils.hooks. Written by scripts/type_stubs.py."""

from resilin.core.state.hooks import RemovableHandle as RemovableHandle
