"""Begin contexts, run backwards and read gradients: `resilin.distributed.autograd`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from resilin.core.tensor import Tensor
from resilin.errors import RpcError, UsageTypeError
from resilin.rpc import current
from resilin.rpc.autograd.backwards import Backwards
from resilin.rpc.autograd.contexts import DistAutogradContext, here


def _backwards() -> Backwards:
    found: Backwards = current.require().gradients.backwards
    return found


class context:
    """A block in which calls of other workers are recorded for `backward`. Gives the id of the context.

        with resilin.distributed.autograd.context() as context_id:
            loss = rpc.rpc_sync("worker1", model, args=(inputs,)).sum()
            resilin.distributed.autograd.backward(context_id, [loss])
            gradients = resilin.distributed.autograd.get_gradients(context_id)

    The context travels with the calls of this thread, and with the calls that those make. It ends with the block, on
    all workers. RpcError in a block of another one, or where RPC has not begun.
    """

    def __enter__(self) -> int:
        self.autograd_context = _new_context()
        return self.autograd_context.id

    def __exit__(self, *exc: object) -> None:
        _release_context(self.autograd_context.id)


def backward(context_id: int, roots: Sequence[Tensor], retain_graph: bool = False) -> None:
    """Compute the gradients of the sum of `roots` by all tensors that they depend on, on all workers.

    roots: scalars, computed here. retain_graph: keep what the graph saved, for another backward. Any thread; one
    backward of a context at a time.
    The gradients are added to those of the context, each on the worker that has the tensor (`get_gradients`);
    `.grad` is left alone. Hooks of tensors run on the worker that has them; those of
    `register_post_accumulate_grad_hook` find the gradient of the context in `.grad` while they run.
    Order:  where several calls contribute to a gradient, that of the last call of the program comes first, whatever
            thread ran it and whenever it arrives, so runs of one program have equal bits. (Calls of one context that
            several threads of a function make have no order but that in which they are made.)
    Raises: what a worker raised, with "Error on Node" and its id before it; PeerLost for a worker that is gone;
            RpcTimeout for one that says nothing for as long as a call may take; RpcError for a context that has
            ended, and for roots that are no scalars, or need no gradients. What has been added until then stays.
    """
    if type(context_id) is not int or not isinstance(roots, list | tuple):
        raise UsageTypeError(
            "backward(): incompatible function arguments: expected the id of a context and a list of tensors, got "
            f"{context_id!r:.40} and {roots!r:.40}"
        )
    for root in roots:
        if not isinstance(root, Tensor):
            raise UsageTypeError(
                f"backward(): incompatible function arguments: expected tensors, got {type(root).__name__}"
            )
    _backwards().backward(context_id, roots, retain_graph)


def get_gradients(context_id: int) -> dict[Tensor, Tensor]:
    """Return the gradients that backwards of a context have added up on this worker, by tensor. RpcError: no context"""
    found = _retrieve_context(context_id)
    with found.lock:
        return dict(found.gradients)


def is_available() -> bool:
    """Return whether there is distributed autograd: yes."""
    return True


def _new_context() -> DistAutogradContext:
    """Begin a context in this thread."""
    contexts = _backwards().contexts
    if here.frame is not None:
        raise RpcError(
            "Already have an autograd context id for this thread. Contexts are not nested: this one is "
            f"{here.frame.context.id}"
        )
    made = contexts.new()
    here.frame = made.frame
    return made


def _release_context(context_id: int) -> None:
    """End a context, here and on all workers that calls have taken it to."""
    frame = here.frame
    if frame is not None and frame.context.id == context_id:
        here.frame = None
    if current.agent is not None:
        current.require().gradients.end(context_id)


def _current_context() -> DistAutogradContext:
    """Return the context of this thread. RpcError where it has none."""
    if here.frame is None:
        raise RpcError(
            "Current thread doesn't have a valid autograd context. Please wrap your code using: "
            "`with resilin.distributed.autograd.context() as context_id` to generate a valid context"
        )
    return here.frame.context


def _retrieve_context(context_id: int) -> DistAutogradContext:
    """Return what this worker has of a context. RpcError where it has ended, or never came here."""
    return _backwards().contexts.get(context_id)


def _is_valid_context(context_id: int) -> None:
    """Raise RpcError unless this worker has the context."""
    _retrieve_context(context_id)


def _get_max_id() -> int:
    """Return the largest id that a context of this worker can have."""
    return _backwards().contexts.most


def _get_debug_info() -> dict[str, Any]:
    """Return counts, under PyTorch's names."""
    found = _backwards()
    return {"num_current_backward_passes": str(found.running), "num_autograd_contexts": str(len(found.contexts))}
