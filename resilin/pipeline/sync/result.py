"""Give the result of a pipeline as an RRef, whether this process takes part in RPC or not."""

from __future__ import annotations

from typing import Any, NoReturn

from resilin.distributed.work.future import Future
from resilin.errors import RpcError
from resilin.rpc import current
from resilin.rpc.constants import UNSET_RPC_TIMEOUT
from resilin.rpc.references.rref import RRef


class ProcessLocalRRef(RRef[Any]):
    """Refer to a value of this process, which takes part in no RPC: `local_value()` and `to_here()` give it, and what
    needs a worker raises RpcError."""

    __slots__ = ("_value",)

    def __init__(self, value: Any) -> None:
        self._value = value

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        _refuse("send it")

    def __str__(self) -> str:
        return f"OwnerRRef(of this process, {type(self._value).__name__})"

    __repr__ = __str__

    def is_owner(self) -> bool:
        """Return True."""
        return True

    def confirmed_by_owner(self) -> bool:
        """Return True."""
        return True

    def owner(self) -> NoReturn:
        """Raise RpcError: no worker has the value."""
        _refuse("have a worker own it")

    def owner_name(self) -> NoReturn:
        """Raise RpcError: no worker has the value."""
        _refuse("have a worker own it")

    def local_value(self) -> Any:
        """Return the value."""
        return self._value

    def to_here(self, timeout: float = UNSET_RPC_TIMEOUT) -> Any:
        """Return the value."""
        return self._value

    def _get_future(self) -> Future[Any]:
        return _done(None)

    def _get_type(self, timeout: float = UNSET_RPC_TIMEOUT, blocking: bool = True) -> Any:
        kind = type(self._value)
        return kind if blocking else _done(kind)

    def rpc_sync(self, timeout: float = UNSET_RPC_TIMEOUT) -> NoReturn:
        """Raise RpcError: no worker could run the method."""
        _refuse("call methods of the value by RPC")

    rpc_async = remote = rpc_sync


def _refuse(what: str) -> NoReturn:
    raise RpcError(
        "RPC has not been initialized: this RRef is of this process alone. Use local_value(), or call "
        f"resilin.distributed.rpc.init_rpc before the pipeline runs to {what}"
    )


def _done(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future


def reference(value: Any) -> RRef[Any]:
    """Return an RRef of `value`: this worker's where RPC is initialized, else one of this process alone."""
    return ProcessLocalRRef(value) if current.agent is None else RRef(value)
