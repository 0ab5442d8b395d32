"""Compute gradients through remote calls, with torch.distributed.autograd's names; docs/distributed_autograd.md."""

from resilin.rpc.autograd.api import (
    _current_context,
    _get_debug_info,
    _get_max_id,
    _is_valid_context,
    _new_context,
    _release_context,
    _retrieve_context,
    backward,
    context,
    get_gradients,
    is_available,
)
from resilin.rpc.autograd.contexts import DistAutogradContext

__all__ = [
    "DistAutogradContext",
    "_current_context",
    "_get_debug_info",
    "_get_max_id",
    "_is_valid_context",
    "_new_context",
    "_release_context",
    "_retrieve_context",
    "backward",
    "context",
    "get_gradients",
    "is_available",
]
