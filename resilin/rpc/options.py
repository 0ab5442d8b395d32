"""Say how workers call one another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from resilin._base import log
from resilin._base.said_once import say_once
from resilin.core.device import check_type, device
from resilin.errors import UsageError, UsageTypeError
from resilin.rpc.constants import DEFAULT_INIT_METHOD, DEFAULT_NUM_WORKER_THREADS, DEFAULT_RPC_TIMEOUT_SEC
from resilin.rpc.timeouts import seconds as seconds_of
from resilin.rpc.transports.base import MAX_MESSAGE_BYTES
from resilin.rpc.transports.wire import MAX_LANES

_LOG = log.logger("rpc.options")
Device = int | str | device
_MOST_PENDING = 1 << 16
_NOT_USED = "an option of TensorPipe has no meaning here and is not used"


class RpcBackendOptions:
    """What every kind of agent takes.

    rpc_timeout: seconds that a call may take which names no timeout; 0 is without end. init_method: how workers find
    the store through which they meet, as in `init_process_group`.
    """

    def __init__(self, rpc_timeout: float = DEFAULT_RPC_TIMEOUT_SEC, init_method: str = DEFAULT_INIT_METHOD) -> None:
        self.rpc_timeout = rpc_timeout
        if not isinstance(init_method, str):
            raise UsageTypeError(
                f"RpcBackendOptions: incompatible constructor arguments: init_method: expected text, got "
                f"{init_method!r:.80}"
            )
        self.init_method = init_method

    @property
    def rpc_timeout(self) -> float:
        """Return the seconds that a call may take which names no timeout; 0 is without end."""
        return self._rpc_timeout

    @rpc_timeout.setter
    def rpc_timeout(self, seconds: float) -> None:
        self._rpc_timeout = seconds_of(seconds, "RpcBackendOptions: incompatible constructor arguments: rpc_timeout")


class TensorPipeRpcBackendOptions(RpcBackendOptions):
    """What workers of this library take: PyTorch's options, and some of their own.

    num_worker_threads: calls that run here at the same time. device_maps: worker -> device here -> device there, for
    tensors that do not lie in the host's memory. devices: those that calls may use.
    transports, channels: names of what may carry messages and tensors, the preferred first (None: all there are).
    encrypt: messages of other transports than `host`; None: beyond loopback alone. tls: files for gRPC, PEM, by `ca`,
    `cert`, `key`, `server_name`, instead of keys that are made of the job's secret. All workers have the same of both.
    num_lanes: connections of `zeromq` to each peer over which long messages are striped, 1 to 16; None: 1 within a
    host, 4 between two.
    allow_closures: take functions whose code is sent (cloudpickle). max_message_bytes: longer messages are refused.
    max_pending_calls: of `rpc_async` and `remote`; more of them wait until there is room.
    """

    def __init__(
        self,
        *,
        num_worker_threads: int = DEFAULT_NUM_WORKER_THREADS,
        rpc_timeout: float = DEFAULT_RPC_TIMEOUT_SEC,
        init_method: str = DEFAULT_INIT_METHOD,
        device_maps: Mapping[str, Mapping[Device, Device]] | None = None,
        devices: Sequence[Device] | None = None,
        transports: Sequence[str] | None = None,
        channels: Sequence[str] | None = None,
        encrypt: bool | None = None,
        tls: Mapping[str, str] | None = None,
        num_lanes: int | None = None,
        allow_closures: bool = False,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        max_pending_calls: int = _MOST_PENDING,
        _transports: Sequence[str] | None = None,
        _channels: Sequence[str] | None = None,
    ) -> None:
        super().__init__(rpc_timeout, init_method)
        self.num_worker_threads = _count(num_worker_threads, "num_worker_threads")
        self.max_message_bytes = _count(max_message_bytes, "max_message_bytes")
        self.max_pending_calls = _count(max_pending_calls, "max_pending_calls")
        self.transports, self.channels = _names(transports, "transports"), _names(channels, "channels")
        self.encrypt, self.tls = encrypt if encrypt is None else bool(encrypt), _files(tls)
        self.num_lanes = None if num_lanes is None else _count(num_lanes, "num_lanes", MAX_LANES)
        self.allow_closures = bool(allow_closures)
        for name, given in (("_transports", _transports), ("_channels", _channels)):
            if given is not None:
                say_once(_LOG, _NOT_USED, option=f"{name}: use {name[1:]}=, with the names of docs/rpc.md")
        self.device_maps = {to: _one_to_one(each) for to, each in (device_maps or {}).items()}
        self.devices: list[device | str] = []
        self.set_devices(devices or ())

    def set_device_map(self, to: str, device_map: Mapping[Device, Device]) -> None:
        """Add to where tensors on devices of this worker go at worker `to`. ValueError unless it is one to one."""
        present = self.device_maps.get(to, {})
        new = _one_to_one(device_map)
        for here, there in new.items():
            if present.get(here, there) != there:
                raise UsageError(
                    f"`set_device_map` only supports 1-to-1 mapping, trying to map {here} to {there} and "
                    f"{present[here]}"
                )
        self.device_maps[to] = _one_to_one({**present, **new})

    def set_devices(self, devices: Sequence[Device]) -> None:
        """Say which CUDA devices calls may use."""
        found = [_device(each) for each in devices]
        for each in found:
            if (kind := str(each).partition(":")[0]) != "cuda":
                raise UsageError(f"`set_devices` expect a list of CUDA devices, but got device type {kind}.")
        self.devices = found


def _device(given: Any) -> device | str:
    """The device that `given` means; its name where there is none of it here: another worker may have it."""
    try:
        return device(given)
    except RuntimeError:
        name = f"cuda:{given}" if isinstance(given, int) else str(given)
        kind, _, number = name.partition(":")
        check_type(kind)
        if not (number.isascii() and number.isdigit()):
            raise
        return f"{kind}:{int(number)}"


def _one_to_one(device_map: Mapping[Any, Any]) -> dict[device | str, device | str]:
    full: dict[device | str, device | str] = {}
    reverse: dict[device | str, device | str] = {}
    for key, value in device_map.items():
        here, there = _device(key), _device(value)
        if there in reverse:
            raise UsageError(
                f"`device_map` only supports 1-to-1 mapping, trying to map {here} and {reverse[there]} to {there}"
            )
        full[here], reverse[there] = there, here
    return full


def _count(value: Any, name: str, most: int | None = None) -> int:
    if type(value) is not int:
        raise UsageTypeError(
            f"TensorPipeRpcBackendOptions: incompatible constructor arguments: {name}: expected an integer, got "
            f"{value!r:.80}"
        )
    if value < 1:
        raise UsageError(f"TensorPipeRpcBackendOptions: {name}: expected at least 1, got {value}")
    if most is not None and value > most:
        raise UsageError(f"TensorPipeRpcBackendOptions: {name}: expected at most {most}, got {value}")
    return value


def _names(given: Sequence[str] | None, name: str) -> tuple[str, ...] | None:
    if given is None:
        return None
    if isinstance(given, str) or not all(isinstance(each, str) for each in given) or not given:
        raise UsageTypeError(f"TensorPipeRpcBackendOptions: {name}: expected a list of names, got {given!r:.80}")
    return tuple(given)


def _files(tls: Mapping[str, str] | None) -> dict[str, str] | None:
    if tls is None:
        return None
    names = ("ca", "cert", "key", "server_name")
    if (
        not isinstance(tls, Mapping)
        or not set(tls) <= set(names)
        or not all(isinstance(at, str) for at in tls.values())
    ):
        raise UsageTypeError(
            f"TensorPipeRpcBackendOptions: tls: expected texts by {', '.join(map(repr, names))}, got {tls!r:.200}"
        )
    return dict(tls)
