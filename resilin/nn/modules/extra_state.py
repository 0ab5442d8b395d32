"""What a module has beside its parameters: buffers, and what `get_extra_state` gives. Seen, and written back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from resilin.core import host_copies
from resilin.core.tensor import Tensor
from resilin.errors import StateError
from resilin.nn.modules.module import Module


def with_extra_state(module: Module) -> list[tuple[str, Module]]:
    """The parts of `module` that have an extra state, with their names; itself has the name ""."""
    plain = Module.get_extra_state
    return [(name, part) for name, part in module.named_modules() if type(part).get_extra_state is not plain]


def extra_states(module: Module) -> dict[str, Any]:
    """What each of them gives."""
    return {name: part.get_extra_state() for name, part in with_extra_state(module)}


def write(module: Module, buffers: Mapping[str, Any], extra: Mapping[str, Any], where: str) -> None:
    """Take back arrays of buffers, which lie on the host, in place, and what `extra_states` gave. Only what has other
    bits counts as written.

    StateError when a buffer is gone or has another shape; `where` begins its text.
    """
    own = dict(module.named_buffers())
    for name, array in buffers.items():
        if name not in own or own[name]._array.shape != array.shape:
            raise StateError(f"{where}: buffer {name!r} has changed its shape or is gone, cannot restore it")
    for name, array in buffers.items():
        if not _same_bits(own[name], array):
            host_copies.write(own[name], array)
            own[name]._bump()
    for name, part in with_extra_state(module):
        part.set_extra_state(extra[name])


def _same_bits(buffer: Tensor, array: host_copies.Array) -> bool:
    """Numbers would be equal as 0 and -0, and unequal as NaN."""
    return host_copies.on_host(buffer).tobytes() == array.tobytes()
