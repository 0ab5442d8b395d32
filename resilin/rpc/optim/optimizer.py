"""Step parameters that lie at several workers: `DistributedOptimizer`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from resilin.distributed.work.future import Future
from resilin.errors import UsageError, UsageTypeError
from resilin.rpc import api
from resilin.rpc.autograd import api as dist_autograd
from resilin.rpc.optim import at_owner
from resilin.rpc.optim.utils import functional_optim_map
from resilin.rpc.references.rref import RRef
from resilin.rpc.worker_info import WorkerInfo

__all__ = ["DistributedOptimizer"]


class DistributedOptimizer:
    """Let an optimizer at each worker step the parameters that lie there, by the gradients of an autograd context.

    optimizer_class: of resilin.optim, or one's own; made at every owner as `optimizer_class(its parameters, *args,
                     **kwargs)`. Those of `resilin.distributed.optim.utils.functional_optim_map` (all with a fused
                     kernel: Adadelta, Adagrad, Adam, AdamW, Adamax, ASGD, Lion, NAdam, RAdam, RMSprop, Rprop, SGD) step
                     in native code without the interpreter lock; others hold it, which the owner's log says once.
    params_rref:     RRefs of the parameters.

    Steps over the same parameters come one after the other, also those of other clients; those over others at the same
    time, but for optimizers that hold the lock. Gradients are not put into the parameters' `.grad`.
    Raises what the constructor raises at the first owner where it fails.
    """

    def __init__(self, optimizer_class: Any, params_rref: Iterable[RRef[Any]], *args: Any, **kwargs: Any) -> None:
        kind = functional_optim_map.get(optimizer_class, optimizer_class)
        if not callable(kind):
            raise UsageTypeError(
                f"DistributedOptimizer: optimizer_class must be a class of optimizers, got {optimizer_class!r:.80}"
            )
        self.is_functional_optim = kind is not optimizer_class
        making = (self.is_functional_optim, args, kwargs)
        self.remote_optimizers: list[RRef[Any]] = _all_of(
            [
                api.rpc_async(owner, at_owner.make, (kind, rrefs, *making))
                for owner, rrefs in _by_owner(params_rref).items()
            ]
        )

    def step(self, context_id: int) -> None:
        """Step all parameters of which context `context_id` has gradients; return when all owners have.

        RpcError for a context that has ended, and OwnerLost where an owner is known to be gone: nobody steps then.
        Else the first owner's error, when all others have ended theirs; PeerLost for one that dies amid its step.
        """
        dist_autograd._is_valid_context(context_id)
        for each in self.remote_optimizers:
            each._check(each._state, "step()")
        _all_of([api.rpc_async(each.owner(), at_owner.step, (each, context_id)) for each in self.remote_optimizers])


def _by_owner(params_rref: Any) -> dict[WorkerInfo, list[RRef[Any]]]:
    if isinstance(params_rref, RRef) or not isinstance(params_rref, Iterable):
        raise UsageTypeError(
            f"DistributedOptimizer: params_rref must be a list of RRefs, got {type(params_rref).__name__}"
        )
    found: dict[WorkerInfo, list[RRef[Any]]] = {}
    for place, rref in enumerate(params_rref):
        if not isinstance(rref, RRef):
            raise UsageTypeError(
                f"DistributedOptimizer: params_rref must be a list of RRefs, got {type(rref).__name__} at place "
                f"{place}: RRef(parameter) refers to one of this worker, RemoteModule.remote_parameters() to those of "
                "a module"
            )
        found.setdefault(rref.owner(), []).append(rref)
    if not found:
        raise UsageError("DistributedOptimizer: optimizer got an empty parameter list")
    return found


def _all_of(futures: Sequence[Future[Any]]) -> list[Any]:
    """Wait for all, and return their values; then raise the first error."""
    first: BaseException | None = None
    values = []
    for future in futures:
        try:
            values.append(future.wait())
        except Exception as error:  # noqa: BLE001 - of an owner: raised when all have answered
            first = first or error
    if first is not None:
        raise first
    return values
