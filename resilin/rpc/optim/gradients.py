"""Ask distributed autograd for gradients: the one place where optimizers do."""

from __future__ import annotations

from collections.abc import Mapping

from resilin.core.tensor import Tensor
from resilin.rpc.autograd import api


def of_context(context_id: int) -> Mapping[Tensor, Tensor]:
    """Return the gradients that a context has at this worker. An error where it has ended, or never was."""
    return api.get_gradients(context_id)


def check(context_id: int) -> None:
    """RpcError unless this worker has the context."""
    api._is_valid_context(context_id)
