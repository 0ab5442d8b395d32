"""Join the backends of a group, one per device type, to one: each call goes to that of its arrays' device.

    numpy array ──> "cpu"  ──> the built-in cpu backend, or the one that the backend string names
    CuPy array  ──> "cuda" ──> nccl, cuda_ipc, ...; a backend of the host ("cuda:gloo") by way of host memory

The backend of the CPU is there from the start. Those of other devices are made by the first collective that needs them,
after all ranks have agreed that this is what they do: a program that stays on the CPU loads nothing for GPUs.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Protocol

import numpy as np

from resilin._base.clock import Deadline
from resilin.core import device as devices
from resilin.core.kernels.common import array_namespace
from resilin.distributed.backends import mpi, registry
from resilin.distributed.backends.backend_context import BackendContext, Messages, Peers
from resilin.distributed.backends.base import METHODS, Aborted, Backend, Call
from resilin.distributed.backends.gpu import cuda_ipc, nccl
from resilin.distributed.backends.gpu.host_staging import StagedBackend
from resilin.distributed.backends.registry import HOST, BackendConfig
from resilin.distributed.stores.base import PrefixStore, Store
from resilin.distributed.stores.tcp import ServerGone, TCPStore
from resilin.distributed.wire.frames import Descriptor, Frame, Kind, device_code
from resilin.distributed.wire.reduce_op import Array, ReduceOp
from resilin.distributed.wire.shard_tree import Plan, Subtree
from resilin.errors import (
    CollectiveMismatch,
    CollectiveTimeout,
    DistBackendError,
    DistStoreError,
    PeerLost,
    ResilinError,
    UsageError,
)

_BUILT_IN = {
    registry.Backend.MPI: mpi.make,
    registry.Backend.NCCL: nccl.make,
    registry.Backend.CUDA_IPC: cuda_ipc.make,
}  # besides the host's own, which the group brings
_KNOCK_S = 1.0  # connecting to a store is tried this long before the group's fate is looked at
_KINDS: dict[type, str] = {np.ndarray: HOST}  # device type by type of array, as far as seen


class BackendOwner(Messages, Protocol):
    """The group that has the backends: a ProcessGroup."""

    name: str
    generation: int
    timeout_s: float
    ranks: tuple[int, ...]
    secret: str

    def rank(self) -> int:
        """This rank."""

    def size(self) -> int:
        """Number of ranks."""

    def server_address(self) -> str:
        """Return where every rank reaches rank 0."""


def of_device(array: Any, kind: str) -> Any:
    """`array` of a tensor on a device of type `kind`, known by its type: numpy arrays of other devices get one."""
    if type(array) is np.ndarray and kind != HOST:
        array = array.view(_tag(kind))
    elif type(array) not in _KINDS:
        _KINDS[type(array)] = kind
    return array


def _tag(kind: str) -> type:
    """The type of numpy arrays that lie on simulated devices, or other devices over numpy."""
    for known, its in _KINDS.items():
        if its == kind and issubclass(known, np.ndarray):
            return known
    made = type(f"{kind.title()}Array", (np.ndarray,), {})
    _KINDS[made] = kind
    return made


def type_of(array: Any) -> str:
    """The device type of an array. UsageError when no backend of resilin's devices makes such arrays."""
    kind = _KINDS.get(type(array))
    if kind is None:
        xp = array_namespace(array)
        found = [kind for kind in devices.device_types() if kind != HOST and devices.backend_of(kind).xp is xp]
        if not found or xp is devices.NUMPY_XP:
            raise UsageError(f"expected a tensor or an array of a device, got {type(array).__name__}")
        kind = _KINDS[type(array)] = found[0]
    return kind


def to_host(array: Any) -> Array:
    """The array itself on the host, else a contiguous copy of it there."""
    if type(array) is np.ndarray:
        return array
    return np.asarray(devices.backend_of(type_of(array)).to_host(array), order="C").view(np.ndarray)


def host_buffer(array: Any) -> Array:
    """Return where to receive for `array`: itself on the host, else memory of its size there."""
    return array if type(array) is np.ndarray else np.empty(array.shape, array.dtype)


def from_host(array: Any, buffer: Array) -> None:
    """Bring what came into `host_buffer(array)` to `array`."""
    if buffer is not array:
        backend = devices.backend_of(type_of(array))
        array[...] = backend.from_host(buffer, backend.current())


class DeviceBackends:
    """See the module. `host` is the built-in backend; all that is made here is closed with it."""

    def __init__(self, host: Backend, config: BackendConfig, options: Any, owner: BackendOwner) -> None:
        self.config = config
        self._host = host
        self._options = options
        self._owner = owner
        self._named: dict[str, Backend] = {}  # made so far, by the name that made it; built-in ones of the host not
        self._routes: dict[str, Backend] = {}  # by device type
        self._cpu = host
        self._aborted: tuple[int, bool] | None = None
        self._store: TCPStore | None = None

    @property
    def one_path(self) -> bool:
        """Return whether the CPU's backend reduces each element in one order, whatever its place and array's size."""
        return bool(getattr(self._cpu, "one_path", False))

    @property
    def name(self) -> str:
        """The names of what carries the bytes: "shm", or "shm, cuda:nccl"."""
        others = [f"{kind}:{made.name}" for kind, made in list(self._routes.items()) if kind != HOST]
        return ", ".join([self._cpu.name, *others])

    # --- making ---

    def attach(self, deadline: Deadline) -> None:
        """See Backend. Compares the backend strings; makes the backend of the CPU, unless it is the built-in one."""
        self._host.attach(deadline)
        self._compare(deadline)
        if HOST in self.config.device_backend_map:
            self._cpu = self._route(HOST, deadline)

    def _compare(self, deadline: Deadline) -> None:
        """CollectiveMismatch on all ranks unless all gave the same backends."""
        mine = str(self.config).encode()
        digest = int.from_bytes(hashlib.sha256(mine).digest()[:8], "little", signed=True)
        try:
            self._host.agree(Descriptor(0, Kind.BARRIER, shape=(digest,)), deadline)
        except CollectiveMismatch:
            every = Peers(self._owner, self._owner.rank(), self._owner.size()).all_gather(mine, deadline)
            with contextlib.suppress(Aborted, PeerLost, CollectiveTimeout):  # all know before the first one leaves
                self._host.agree(Descriptor(1, Kind.BARRIER), deadline)
            sides = ", ".join(f"rank {rank} gave {text.decode()!r}" for rank, text in enumerate(every))
            raise CollectiveMismatch(
                f"group {self._owner.name!r}: ranks disagree on the backend: {sides}; give the same on all of them"
            ) from None

    def _route(self, kind: str, deadline: Deadline) -> Backend:
        """The backend of device type `kind`, made now."""
        name = self.config.device_backend_map[kind]
        registered = registry.find(name)
        if kind not in registered.native:
            found: Backend = StagedBackend(
                self._made(name, HOST, deadline), devices.backend_of(kind), self._owner.rank()
            )
        else:
            found = self._made(name, kind, deadline)
        self._routes[kind] = found
        return found

    def _made(self, name: str, kind: str, deadline: Deadline) -> Backend:
        """The backend called `name`: one for all devices that it serves."""
        if name in (registry.Backend.CPU, registry.Backend.GLOO):
            return self._host
        if name not in self._named:
            where = f"group {self._owner.name!r}, rank {self._owner.rank()}: backend {name!r} for {kind!r} tensors"
            try:
                made = self._call(registry.find(name), self._setup(kind, deadline))
            except Exception as error:
                if self._aborted is not None:  # what it waited for was ended
                    raise Aborted from error
                if isinstance(error, ServerGone):
                    raise PeerLost(f"rank 0, which served the store of backend {name!r}, left", [0]) from error
                if isinstance(error, ResilinError | Aborted):
                    raise
                raise DistBackendError(f"{where} could not be made: {error!r}") from error
            lacking = [method for method in METHODS if not callable(getattr(made, method, None))]
            if lacking:
                raise DistBackendError(
                    f"{where}: expected an object with the methods of dist.backends.base.Backend, got "
                    f"{type(made).__name__} without {', '.join(lacking)}"
                )
            self._named[name] = made
            made.attach(deadline)
            if self._aborted is not None:
                made.abort(*self._aborted)
        return self._named[name]

    def _call(self, registered: registry.Registered, setup: BackendContext) -> Any:
        if registered.make is None:
            return _BUILT_IN[registered.name](setup, self._options)
        if registered.extended_api:
            return registered.make(setup, self._options)
        return registered.make(setup.store, setup.group_rank, setup.group_size, setup.timeout)

    def _setup(self, kind: str, deadline: Deadline) -> BackendContext:
        owner = self._owner
        peers = Peers(owner, owner.rank(), owner.size())
        return BackendContext(
            group_rank=owner.rank(),
            group_size=owner.size(),
            global_ranks_in_group=owner.ranks,
            group_id=owner.name,
            generation=owner.generation,
            device_type=kind,
            timeout=timedelta(seconds=owner.timeout_s),
            deadline=deadline,
            peers=peers,
            cpu=None if kind == HOST else self._cpu,
            make_store=partial(self._own_store, kind, peers, deadline),
        )

    def _own_store(self, kind: str, peers: Peers, deadline: Deadline) -> Store:
        """The group's store, seen by the backend of `kind`; rank 0 serves it."""
        if self._store is None:
            owner, port = self._owner, 0
            address, limit = owner.server_address(), deadline.left() or owner.timeout_s
            if owner.rank() == 0:
                self._store = TCPStore(address, 0, is_master=True, timeout=limit, secret=owner.secret)
                port = self._store.port
            port = int(peers.all_gather(str(port).encode(), deadline)[0])
            while self._store is None:
                self._store = self._knock(address, port, deadline)
            self._store.set_timeout(timedelta(seconds=limit))
            if self._aborted is not None:  # before the store was there to be closed
                self._store.close()
        return PrefixStore(kind, self._store)

    def _knock(self, address: str, port: int, deadline: Deadline) -> TCPStore | None:
        """The store that rank 0 serves; None after a while, unless that is because the group has ended."""
        try:
            return TCPStore(address, port, timeout=_KNOCK_S, secret=self._owner.secret)
        except DistStoreError:
            if self._aborted is not None:
                raise Aborted from None
            if deadline.passed():
                raise
            return None

    # --- which ---

    def _of(self, call: Call, array: Any, *others: Any) -> Backend:
        """The backend for these arrays, which must be of one device type."""
        kind = type_of(array)
        for other in others:
            if type(other) is not type(array) and type_of(other) != kind:
                raise UsageError(f"expected all tensors on one device, found {kind!r} and {type_of(other)!r}")
        if kind == HOST:
            return self._cpu
        found = self._routes.get(kind)
        if found is None:
            if kind not in self.config.device_backend_map:
                raise UsageError(
                    f"no backend for {kind!r} tensors: this group has {self.config}; name one when the group is made, "
                    f"as in backend='{self.config},{kind}:gloo', which copies them to the host and back"
                )
            call.note(None, ())
            self.agree(Descriptor(call.stamp, call.kind, device=device_code(kind)), call.deadline())
            found = self._route(kind, call.deadline())
        return found

    def _all(self) -> list[Backend]:
        return [self._host, *list(self._named.values())]

    # --- collectives: see Backend for each ---

    def agree(self, mine: Descriptor, deadline: Deadline) -> None:
        """See Backend. Over the backend of the CPU, whatever device the call is about."""
        self._cpu.agree(mine, deadline)

    def barrier(self, call: Call) -> None:
        """See Backend. Devices that have had a collective finish theirs first."""
        for kind, made in self._routes.items():
            if kind != HOST:
                made.barrier(call)
        self._cpu.barrier(call)

    def all_reduce(self, call: Call, array: Array, op: ReduceOp) -> None:
        """See Backend."""
        (self._cpu if type(array) is np.ndarray else self._of(call, array)).all_reduce(call, array, op)

    def reduce(self, call: Call, array: Array, op: ReduceOp, root: int) -> None:
        """See Backend."""
        self._of(call, array).reduce(call, array, op, root)

    def broadcast(self, call: Call, array: Array, root: int) -> None:
        """See Backend."""
        self._of(call, array).broadcast(call, array, root)

    def all_gather(self, call: Call, array: Array, outputs: Sequence[Array]) -> None:
        """See Backend."""
        self._of(call, array, *outputs).all_gather(call, array, outputs)

    def reduce_scatter(self, call: Call, inputs: Sequence[Array], output: Array, op: ReduceOp) -> None:
        """See Backend."""
        self._of(call, output, *inputs).reduce_scatter(call, inputs, output, op)

    def gather(self, call: Call, array: Array, outputs: Sequence[Array] | None, root: int) -> None:
        """See Backend."""
        self._of(call, array, *(outputs or ())).gather(call, array, outputs, root)

    def scatter(self, call: Call, inputs: Sequence[Array] | None, output: Array, root: int) -> None:
        """See Backend."""
        self._of(call, output, *(inputs or ())).scatter(call, inputs, output, root)

    def all_to_all(self, call: Call, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """See Backend."""
        self._of(call, *inputs, *outputs).all_to_all(call, inputs, outputs)

    def tree_all_reduce(self, call: Call, parts: dict[Subtree, Array], output: Array, plan: Plan) -> None:
        """See Backend."""
        self._of(call, output, *parts.values()).tree_all_reduce(call, parts, output, plan)

    # --- events and the end ---

    def abort(self, rank: int, lost: bool) -> None:
        """See Backend."""
        self._aborted = (rank, lost)
        for made in self._all():
            made.abort(rank, lost)
        if self._store is not None:
            self._store.close()

    def peer_left(self, rank: int) -> None:
        """See Backend."""
        for made in self._all():
            made.peer_left(rank)

    def on_fd(self, rank: int, kind: Frame, tag: int, payload: bytes, fd: int) -> None:
        """See Backend. Only the built-in backend shares memory by descriptors."""
        self._host.on_fd(rank, kind, tag, payload, fd)

    def close(self) -> None:
        """See Backend."""
        with contextlib.ExitStack() as each:
            if self._store is not None:
                each.callback(self._store.close)
            for made in self._all():
                each.callback(made.close)
