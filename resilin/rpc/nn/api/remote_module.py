"""Use a module that lies at another worker as if it were here: `RemoteModule`, with PyTorch's methods."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Self

from resilin._base import log
from resilin.distributed.remote_device import _remote_device
from resilin.distributed.work.future import Future
from resilin.errors import RpcError, UsageError, UsageTypeError
from resilin.nn import Module
from resilin.rpc import api, current
from resilin.rpc.nn.api import at_owner
from resilin.rpc.nn.api.refused import WithoutLocalState
from resilin.rpc.references import direct
from resilin.rpc.references.rref import RRef
from resilin.rpc.serialization.on_the_way import now

__all__ = ["RemoteModule"]

_LOG = log.logger("rpc.nn")
_REMOTE_MODULE_PICKLED_ATTRIBUTES = (
    "on",
    "device",
    "is_device_map_set",
    "is_scriptable",
    "generated_methods",
    "module_rref",
)
_OWN = frozenset(("_module_interface_cls", "_signature", "_used"))
_OF_MODULES = frozenset(vars(Module())) | _OWN  # what every module has, and no receiver needs


class _RemoteModule(WithoutLocalState):
    """A module at another worker; see `RemoteModule`, which takes no interface."""

    def __init__(
        self,
        remote_device: str,
        module_cls: type[Module],
        args: tuple[Any, ...] | None = None,
        kwargs: dict[str, Any] | None = None,
        _module_interface_cls: Any = None,
        *,
        recreate: bool = False,
    ) -> None:
        super().__init__()
        self._prepare(remote_device, _module_interface_cls)
        if not callable(module_cls):
            raise UsageTypeError(f"RemoteModule: module_cls must be a class of modules, got {module_cls!r:.80}")
        if not isinstance(args, list | tuple | None) or not isinstance(kwargs, Mapping | None):
            raise UsageTypeError(
                f"RemoteModule: args must be a tuple and kwargs a dict, got {args!r:.80} and {kwargs!r:.80}"
            )
        making = (module_cls, tuple(args or ()), dict(kwargs or {}), self.device)
        self._refer(api.remote(self.on, at_owner.make, making, recreate=recreate))

    def _prepare(self, remote_device: str, interface: Any) -> None:
        if current.agent is None:
            raise RpcError("RemoteModule only works in RPC. Call resilin.distributed.rpc.init_rpc first.")
        parsed = _remote_device(remote_device)
        name, rank = parsed.worker_name(), parsed.rank()
        if name is None and rank is None:
            raise UsageError(
                f"RemoteModule: remote_device {remote_device!r} names no worker: expected '<worker>/<device>' or "
                "'rank:<rank>/<device>', such as 'worker1/cpu'"
            )
        self.on: str | int = rank if name is None else name  # type: ignore[assignment]
        self.device = str(parsed.device())
        self.is_device_map_set = bool(current.agent._get_device_map(self.on))
        self._take_interface(interface)

    def _take_interface(self, interface: Any) -> None:
        self.is_scriptable = interface is not None
        self._module_interface_cls, self._signature = interface, None
        self.generated_methods = (type(self).forward_async, type(self).forward)
        if interface is not None:
            method = getattr(interface, "forward", None)
            if not isinstance(interface, type) or method is None:
                raise UsageError(
                    f"module_interface_cls {interface} must be a type object decorated by @resilin.jit.interface, "
                    "with a method forward"
                )
            self._signature = inspect.signature(method)

    def _refer(self, module_rref: RRef[Any]) -> None:
        self.module_rref = module_rref
        self._used = module_rref._state
        """What it referred to when it was last used."""

    def _use(self) -> RRef[Any]:
        """Return the reference to the module, which may be made again by this, and is in the mode of this one then."""
        rref = self.module_rref
        state = rref._living()
        if state is not self._used:
            self.on = rref.owner_name()
            self.is_device_map_set = bool(current.require()._get_device_map(self.on))
            if not self.training:
                api.rpc_sync(rref.owner(), at_owner.train, (rref, False))
            self._used = state
        return rref

    # --- running it ---

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module's `forward` where it lies, and return what it returns."""
        if self._signature is not None:
            self._signature.bind(self, *args, **kwargs)
        rref = self._use()
        return api.rpc_sync(rref.owner(), *self._call(rref, args, kwargs))

    def forward_async(self, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run the module's `forward` where it lies; return a Future of what it returns at once."""
        if self._signature is not None:
            self._signature.bind(self, *args, **kwargs)
        rref = self._use()
        future = api.rpc_async(rref.owner(), *self._call(rref, args, kwargs))
        future.when_done(partial(_let_go, rref))  # the module lives until then, whoever lets go of it here
        return future

    def _call(
        self, rref: RRef[Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any] | None]:
        """What is called at the owner, with which arguments."""
        rref._check(rref._state, "forward()")
        if self.device != "cpu":
            return at_owner.forward_on, (rref, self.device, self.is_device_map_set, args, kwargs), None
        place = direct.place_of(rref)
        if place is None:
            return at_owner.forward, (rref, *args), kwargs
        return at_owner.forward_at, (place, *args), kwargs

    def train(self, mode: bool = True) -> Self:
        """Bring the module where it lies into the mode of training, or out of it."""
        rref = self._use()
        api.rpc_sync(rref.owner(), at_owner.train, (rref, mode))
        self.training = mode
        return self

    def eval(self) -> Self:
        """Bring the module where it lies out of the mode of training."""
        return self.train(False)

    # --- its references ---

    def remote_parameters(self, recurse: bool = True) -> list[RRef[Any]]:
        """Return references to the module's parameters, for a DistributedOptimizer; recurse: of its parts, too."""
        rref = self._use()
        found: list[RRef[Any]] = api.rpc_sync(rref.owner(), at_owner.parameters, (rref, recurse))
        return found

    def get_module_rref(self) -> RRef[Any]:
        """Return the reference to the module."""
        return self.module_rref

    @staticmethod
    def init_from_module_rref(
        remote_device: str, module_rref: RRef[Any], _module_interface_cls: Any = None
    ) -> RemoteModule:
        """Return a RemoteModule of a module that is there already, and which others may use, too."""
        if not isinstance(module_rref, RRef):
            raise UsageTypeError(f"init_from_module_rref: expected an RRef of a module, got {module_rref!r:.80}")
        made = RemoteModule.__new__(RemoteModule)
        Module.__init__(made)
        made._prepare(remote_device, _module_interface_cls)
        made._refer(module_rref)
        return made

    def __repr__(self) -> str:
        where = f"{self.on}/{self.device}" if isinstance(self.on, str) else f"rank:{self.on}/{self.device}"
        return f"{type(self).__name__}({where!r})"

    # --- on its way ---

    def __reduce_ex__(self, protocol: Any) -> Any:
        if now.out is None:
            raise RpcError(
                "Cannot pickle RemoteModule in python pickler. RemoteModule can only be pickled when using RPC"
            )
        for name in sorted(vars(self).keys() - {*_REMOTE_MODULE_PICKLED_ATTRIBUTES} - _OF_MODULES):
            log.event(_LOG, logging.WARNING, "an attribute of a RemoteModule is not sent over RPC", attribute=name)
        self._use()
        fields = (self.on, self.device, self.is_device_map_set, self._module_interface_cls, self.module_rref)
        return _received, (type(self), *fields)

    def __setstate__(self, state: dict[str, Any]) -> None:
        raise RpcError(
            "Cannot unpickle RemoteModule in python pickler. RemoteModule can only be unpickled when using RPC"
        )


def _let_go(rref: RRef[Any], done: Future[Any]) -> None:
    """Do nothing: who is to call this holds the reference until then."""


def _received(
    kind: type[_RemoteModule], on: str | int, device: str, is_mapped: bool, interface: Any, module_rref: RRef[Any]
) -> _RemoteModule:
    """Make the RemoteModule that has come in a call."""
    made = kind.__new__(kind)
    Module.__init__(made)
    made.on, made.device, made.is_device_map_set = on, device, is_mapped
    made._refer(module_rref)
    made._take_interface(interface)
    return made


class RemoteModule(_RemoteModule):
    """A module that is made, lies and runs at another worker. Used as any module: `remote(x)`.

    remote_device: where, as "<worker>/<device>" or "rank:<rank>/<device>"; without "/<device>" on the host.
    module_cls:    makes the module there, as `module_cls(*args, **kwargs)`; a class, or a function of a module that
                   both import.

    Only `forward` is run there, without the hooks of the module; tensors go to its device, and what it returns comes
    back to the host unless a device map for that worker is set here. What goes wrong when it is made shows at its first
    use. It is sent in remote calls, and the receiver uses the same module; attributes of a user's own stay here, which
    a warning in the log says. Methods that are about parameters or parts raise UsageError (a ValueError).

    recreate: where its owner is gone, the next use of it here makes the module again, as `remote(..., recreate=True)`
    does: of `module_cls` and its arguments, without what it had learned, and in the mode of this RemoteModule. What was
    made of the one before (`remote_parameters`, optimizers, what was sent to others) raises OwnerLost.
    """

    def __init__(
        self,
        remote_device: str,
        module_cls: type[Module],
        args: tuple[Any, ...] | None = None,
        kwargs: dict[str, Any] | None = None,
        *,
        recreate: bool = False,
    ) -> None:
        super().__init__(remote_device, module_cls, args, kwargs, recreate=recreate)
