"""Refer to a value that lies at one worker, from any: `RRef`, with PyTorch's methods."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypeVar

from resilin._base import trace
from resilin.core.autograd import engine
from resilin.core.tensor import Tensor
from resilin.distributed.wire.error_codec import copy_error
from resilin.distributed.work.future import Future
from resilin.errors import OwnerLost, RpcError
from resilin.rpc import current, functions
from resilin.rpc.autograd.contexts import part, within
from resilin.rpc.constants import UNSET_RPC_TIMEOUT
from resilin.rpc.references.rref_context import RRefContext, Wire
from resilin.rpc.references.states import OwnedValue, Recipe, UserReference
from resilin.rpc.serialization import remote_errors
from resilin.rpc.serialization.on_the_way import now
from resilin.rpc.tracing import remote_events, spans
from resilin.rpc.worker_info import WorkerInfo

T = TypeVar("T")


class RRef(Generic[T]):
    """Refer to a value. Made of a value here, of which this worker is the owner then, or by `remote`.

    The owner keeps the value while anybody refers to it. Pickled only in remote calls.
    """

    __slots__ = ("__weakref__", "_context", "_state", "_type")

    def __init__(self, value: T, type_hint: Any = None) -> None:
        agent = current.agent
        if agent is None:
            raise RpcError(
                "Current RPC agent is not set! Did you initialize the RPC framework (e.g. by calling `rpc.init_rpc`)?"
            )
        self._context: RRefContext = agent.rrefs
        state = OwnedValue(self._context.new_id(), self._context.me)
        state.value.set_result(value)
        self._state: OwnedValue | UserReference = state
        self._type: Future[Any] | None = None

    def __del__(self) -> None:
        state = getattr(self, "_state", None)
        if isinstance(state, UserReference):
            self._context.drop(state)

    def __reduce_ex__(self, protocol: Any) -> Any:
        out = now.out
        if out is None:
            raise RpcError("Can not pickle rref in python pickler, rref can only be pickled when using RPC")
        fork = self._context.fork(self._living(), out.peer.id)
        out.forks.append(fork)
        return _arrived, (fork.wire,)

    def __str__(self) -> str:
        return str(self._state)

    __repr__ = __str__

    def is_owner(self) -> bool:
        """Return whether the value lies at this worker."""
        return self._state.is_owner

    def owner(self) -> WorkerInfo:
        """Return the worker that has the value."""
        return self._state.owner

    def owner_name(self) -> str:
        """Return the name of the worker that has the value."""
        return self._state.owner.name

    def confirmed_by_owner(self) -> bool:
        """Return whether the owner knows of this reference."""
        return self._state.confirmed

    def local_value(self) -> T:
        """Return the value itself, waiting until it is made. RpcError where this worker is not its owner."""
        state = self._state
        if isinstance(state, UserReference):
            raise RpcError(
                f"For UserRRef(rref_id={state.id}, fork_id={state.fork}), can't call localValue() on user "
                f"{self._context.me}. Call it on owner {state.owner}"
            )
        value: T = owned(state)
        return value

    def to_here(self, timeout: float = UNSET_RPC_TIMEOUT) -> T:
        """Return a copy of the value, waiting until it is made; at the owner the value itself.

        timeout: seconds; 0 is without end. Raises what its creation raised, RpcTimeout, OwnerLost.
        """
        state = self._living()
        if isinstance(state, OwnedValue):
            here: T = owned(state)
            return here
        self._check(state, "to_here()")
        try:
            agent = current.require()
            if trace.recorder is None:
                value: T = agent.fetch(state, timeout)
            else:
                with spans.fetched(agent.get_worker_info(), state.owner):
                    value = agent.fetch(state, timeout)
        except OwnerLost:
            if state.recipe is None:
                raise
            self._make_again(state, state.recipe)
            return self.to_here(timeout)
        return value

    def _living(self) -> OwnedValue | UserReference:
        """What it refers to; made again where its owner is gone and `remote` was told so."""
        state = self._state
        if isinstance(state, UserReference) and state.recipe is not None and isinstance(state.error, OwnerLost):
            self._make_again(state, state.recipe)
        return self._state

    def _make_again(self, state: UserReference, recipe: Recipe) -> None:
        with recipe.lock:
            if self._state is not state or state.deleted:  # another thread has, or RPC ends
                return
            self._state, self._type = current.require().make_again(state), None
        self._context.drop(state)

    def _check(self, state: OwnedValue | UserReference, what: str) -> None:
        if isinstance(state, UserReference) and state.deleted:
            raise RpcError(f"{state} has been deleted. Cannot call {what} on it after deletion.")
        if state.error is not None:
            raise copy_error(state.error)

    def backward(self, dist_autograd_ctx_id: int = -1, retain_graph: bool = False) -> None:
        """Run a backward from the value, a scalar tensor, at its owner, in the autograd context of that id.

        At the owner -1 is a local backward, into `.grad`. RpcError where the value is no tensor.
        """
        if not isinstance(self._state, OwnedValue):
            if dist_autograd_ctx_id == -1:
                raise RpcError(
                    "User RRefs require 'dist_autograd_ctx_id' to be specified: the value lies at "
                    f"{self.owner()}, and its gradients are kept there"
                )
            self._check(self._state, "backward()")
            current.require().call(
                self.owner(), _backward_at_owner, (self, dist_autograd_ctx_id, retain_graph), None, UNSET_RPC_TIMEOUT
            )
            return
        value = self.local_value()
        if not isinstance(value, Tensor):
            raise RpcError(f"RRef should contain a tensor for .backward(), not {type(value).__name__}")
        if dist_autograd_ctx_id == -1:
            engine.backward([value], [None], retain_graph)
        else:
            current.require().gradients.backwards.backward(dist_autograd_ctx_id, [value], retain_graph)

    def _get_future(self) -> Future[Any]:
        """Return the future of the value's creation at the owner; its result means nothing."""
        return self._state.creation

    def _get_type(self, timeout: float = UNSET_RPC_TIMEOUT, blocking: bool = True) -> Any:
        """Return the type of the value, or a future of it; asked for once."""
        kept = self._type
        if kept is None or (kept.done() and kept.exception() is not None):
            self._check(self._living(), "_get_type()")
            kept = self._type = self._ask_type(timeout)
        return kept.wait() if blocking else kept

    def _ask_type(self, timeout: float) -> Future[Any]:
        if not isinstance(self._state, OwnedValue):
            agent, owner = current.require(), self._state.owner
            ask = partial(agent.call_async, owner, _rref_typeof_on_owner, (self,), None, timeout)
            if trace.recorder is None:
                asked: Future[Any] = ask()
                return asked
            return spans.begun(_ASYNC, _rref_typeof_on_owner, agent.get_worker_info(), owner, ask)
        found: Future[Any] = Future()
        try:
            found.set_result(type(self.local_value()))
        except Exception as error:  # noqa: BLE001 - whatever made the value raised: the waiter's
            found.set_exception(error)
        return found

    def rpc_sync(self, timeout: float = UNSET_RPC_TIMEOUT) -> Any:
        """Return a proxy: `proxy.method(...)` runs at the owner, and returns when it is done."""
        return _Proxy(self, _SYNC, timeout)

    def rpc_async(self, timeout: float = UNSET_RPC_TIMEOUT) -> Any:
        """Return a proxy: `proxy.method(...)` runs at the owner, and returns a Future at once."""
        return _Proxy(self, _ASYNC, timeout)

    def remote(self, timeout: float = UNSET_RPC_TIMEOUT) -> Any:
        """Return a proxy: `proxy.method(...)` runs at the owner, and returns an RRef of the result at once."""
        return _Proxy(self, _REMOTE, timeout)


def owned(state: OwnedValue) -> Any:
    """Return the value at its owner, waiting until it is made; raise what its making raised."""
    if state.error is not None:
        raise copy_error(state.error)
    state.value.settled_within(None)
    if state.told is not None:
        raise remote_errors.rebuilt(state.told, state.owner.id)
    return state.value.value()


def handle(context: RRefContext, state: OwnedValue | UserReference) -> RRef[Any]:
    """Return an RRef of `state`."""
    made: RRef[Any] = RRef.__new__(RRef)
    made._context, made._state, made._type = context, state, None
    return made


def _arrived(wire: Wire) -> RRef[Any]:
    """Make the reference that has come in a message."""
    into = now.into
    if into is None:
        raise RpcError("an RRef of a remote call can only be read where the call is")
    state = into.context.arrived(wire)
    into.rrefs.append(state)
    return handle(into.context, state)


def _backward_at_owner(rref: RRef[Any], dist_autograd_ctx_id: int, retain_graph: bool) -> None:
    rref.backward(dist_autograd_ctx_id, retain_graph)


def _rref_typeof_on_owner(rref: RRef[Any]) -> type:
    return type(rref.local_value())


# --- proxies: functions have PyTorch's names, which traces tell ---

_SYNC, _ASYNC, _REMOTE = "rpc_sync", "rpc_async", "remote"


def _local_invoke(rref: RRef[Any], name: str, args: Any, kwargs: Any) -> Any:
    return getattr(rref.local_value(), name)(*args, **kwargs)


@functions.async_execution
def _local_invoke_async_execution(rref: RRef[Any], name: str, args: Any, kwargs: Any) -> Any:
    return getattr(rref.local_value(), name)(*args, **kwargs)


def _runner(kind: type, name: str) -> Callable[..., Any]:
    """What runs the method `name` at the owner. AttributeError where there is none."""
    method = getattr(kind, name)
    return _local_invoke_async_execution if functions.is_async(method) else _local_invoke


class _Proxy:
    """Call methods of the value of an RRef."""

    def __init__(self, rref: RRef[Any], way: str, timeout: float) -> None:
        self._rref, self._way, self._timeout = rref, way, timeout

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return partial(self._call, name)

    def _call(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        rref, way, timeout = self._rref, self._way, self._timeout
        agent, owner, call = current.require(), rref._living().owner, (rref, name, args, kwargs)
        if way == _ASYNC:
            return self._call_async(name, call)
        runner = _runner(rref._get_type(timeout), name)
        make = partial(agent.call if way == _SYNC else agent.remote, owner, runner, call, None, timeout)
        if trace.recorder is None:
            made = make()
        else:
            how = way if way == _SYNC else "rpc_remote"
            with spans.called(how, runner, agent.get_worker_info(), owner, Method=name):
                made = make()
        return made if way == _SYNC else handle(agent.rrefs, made)

    def _call_async(self, name: str, call: tuple[Any, ...]) -> Future[Any]:
        rref, timeout = self._rref, self._timeout
        result: Future[Any] = Future()

        def settle(done: Future[Any]) -> None:
            error = done.exception()
            if error is not None:
                result.set_exception(error)
            else:
                result.set_result(done.value())

        def begin(kind: Future[Any]) -> None:
            try:
                agent, owner, runner = current.require(), rref.owner(), _runner(kind.value(), name)
                make = partial(agent.call_async, owner, runner, call, None, timeout)
                with within(frame):
                    if trace.recorder is None:
                        made: Future[Any] = make()
                    else:
                        with remote_events.part_of(collected):
                            made = spans.begun(_ASYNC, runner, agent.get_worker_info(), owner, make, Method=name)
                made.when_done(settle)
            except Exception as error:  # noqa: BLE001 - raised by who waits
                result.set_exception(error)

        kind = rref._get_type(timeout, blocking=False)
        frame, collected = part(), remote_events.here.collected
        kind.when_done(begin)
        return result
