"""CUDA devices, under torch.cuda's names. Needs CuPy (`pip install 'resilin[cuda12]'`) and a device; docs/gpu.md.

Nothing is initialised before a device is asked about or used. Without a device `is_available()` is False, seeds and
`empty_cache()` do nothing, and everything else raises RuntimeError that says what is missing. One process computes on
one GPU: `set_device` comes before the first tensor there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from resilin.core import device as devices
from resilin.core import rng
from resilin.core.backends import device_errors
from resilin.core.tensor import Tensor
from resilin.cuda import chosen, nvtx
from resilin.cuda.chosen import current_device, is_initialized
from resilin.cuda.memory import (
    OutOfMemoryError,
    empty_cache,
    get_allocator_backend,
    get_per_process_memory_fraction,
    ipc_collect,
    max_memory_allocated,
    max_memory_cached,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_cached,
    memory_reserved,
    memory_snapshot,
    memory_stats,
    memory_stats_as_nested_dict,
    memory_summary,
    reset_accumulated_memory_stats,
    reset_max_memory_allocated,
    reset_max_memory_cached,
    reset_peak_memory_stats,
    set_per_process_memory_fraction,
)
from resilin.cuda.nvml import (
    clock_rate,
    device_memory_used,
    list_gpu_processes,
    memory_usage,
    power_draw,
    temperature,
    utilization,
)
from resilin.cuda.tensor_types import (
    BFloat16Tensor,
    BoolTensor,
    ByteTensor,
    CharTensor,
    DoubleTensor,
    FloatTensor,
    HalfTensor,
    IntTensor,
    LongTensor,
    ShortTensor,
)
from resilin.errors import AcceleratorError

if TYPE_CHECKING:  # what the table of places adds; written by scripts/type_stubs.py
    from resilin.cuda import amp as amp
    from resilin.cuda import graphs as graphs
    from resilin.cuda import random as random
    from resilin.cuda import streams as streams

__all__ = [
    "AcceleratorError",
    "BFloat16Tensor",
    "BoolTensor",
    "ByteTensor",
    "CharTensor",
    "DoubleTensor",
    "Event",
    "ExternalStream",
    "FloatTensor",
    "HalfTensor",
    "IntTensor",
    "LongTensor",
    "OutOfMemoryError",
    "ShortTensor",
    "Stream",
    "StreamContext",
    "can_device_access_peer",
    "clock_rate",
    "current_device",
    "current_stream",
    "default_stream",
    "device",
    "device_count",
    "device_memory_used",
    "device_of",
    "empty_cache",
    "get_allocator_backend",
    "get_arch_list",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_per_process_memory_fraction",
    "get_rng_state",
    "get_rng_state_all",
    "get_stream_from_external",
    "init",
    "initial_seed",
    "ipc_collect",
    "is_available",
    "is_bf16_supported",
    "is_current_stream_capturing",
    "is_initialized",
    "is_tf32_supported",
    "list_gpu_processes",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_cached",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_cached",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "memory_summary",
    "memory_usage",
    "nvtx",
    "power_draw",
    "reset_accumulated_memory_stats",
    "reset_max_memory_allocated",
    "reset_max_memory_cached",
    "reset_peak_memory_stats",
    "seed",
    "seed_all",
    "set_device",
    "set_per_process_memory_fraction",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "stream",
    "synchronize",
    "temperature",
    "utilization",
]


def is_available() -> bool:
    """Whether a CUDA device can be used: CuPy is installed and finds one. Never raises."""
    return device_count() > 0


def device_count() -> int:
    """Number of CUDA devices that this process can use; 0 without CuPy or a driver."""
    try:
        return int(chosen.backend().count())
    except RuntimeError:
        return 0


def init() -> None:
    """Load CuPy and look for devices now. RuntimeError says what is missing."""
    chosen.backend()


def set_device(device: Any) -> None:
    """Make `device` the one that "cuda" means. RuntimeError once this process has tensors on another."""
    index = chosen.index_of(device)
    if index >= 0:
        chosen.backend().choose(index)


class device:
    """`with cuda.device(0): ...` makes that device the current one inside; None or a negative number changes nothing.

    RuntimeError when this process already computes on another: one process uses one GPU.
    """

    def __init__(self, device: Any) -> None:
        self.idx = -1 if device is None or (isinstance(device, int) and device < 0) else chosen.index_of(device)
        self.prev_idx = -1

    def __enter__(self) -> None:
        if self.idx >= 0:
            self.prev_idx = current_device()
            chosen.backend().choose(self.idx)

    def __exit__(self, *exc: object) -> None:
        if self.prev_idx >= 0 and chosen.backend().computing_on is None:
            chosen.backend().choose(self.prev_idx)


class device_of(device):
    """`with cuda.device_of(tensor): ...` makes the tensor's device the current one; one of the CPU changes nothing."""

    def __init__(self, obj: Tensor) -> None:
        super().__init__(obj.get_device() if obj.is_cuda else -1)


@dataclass(frozen=True, kw_only=True)
class _Properties:
    """What a device is. Memory in bytes."""

    name: str
    major: int
    minor: int
    total_memory: int
    multi_processor_count: int


def get_device_properties(device: Any = None) -> _Properties:
    """Name, compute capability (major, minor), total_memory in bytes and multi_processor_count of a device."""
    found = chosen.backend().properties(chosen.index_of(device))
    return _Properties(
        name=found["name"].decode(),
        major=found["major"],
        minor=found["minor"],
        total_memory=found["totalGlobalMem"],
        multi_processor_count=found["multiProcessorCount"],
    )


def get_device_name(device: Any = None) -> str:
    """The device's name, such as "NVIDIA H100 80GB HBM3"."""
    return get_device_properties(device).name


def get_device_capability(device: Any = None) -> tuple[int, int]:
    """Major and minor compute capability."""
    found = get_device_properties(device)
    return found.major, found.minor


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Whether the current device computes in bfloat16 (8.0 and newer); older ones convert, which counts, too."""
    return is_available() and (including_emulation or get_device_capability() >= (8, 0))


def is_tf32_supported() -> bool:
    """Whether the current device multiplies float32 in TF32, where that is allowed: 8.0 and newer."""
    return is_available() and get_device_capability() >= (8, 0)


def get_arch_list() -> list[str]:
    """What kernels are compiled for, at their first use: the current device's own architecture, such as sm_90."""
    return ["sm_{}{}".format(*get_device_capability())] if is_available() else []


def can_device_access_peer(device: Any, peer_device: Any) -> bool:
    """Whether a device can read and write another's memory itself."""
    own, other = chosen.index_of(device), chosen.index_of(peer_device)
    return bool(chosen.backend().cupy.cuda.runtime.deviceCanAccessPeer(own, other))


def synchronize(device: Any = None) -> None:
    """Return when everything queued on the device is done."""
    chosen.backend().synchronize(chosen.index_of(device))


def manual_seed(seed: int) -> None:
    """Seed the draws on CUDA devices; ignored without one, as in PyTorch.

    Random numbers do not depend on the device, so there is one generator for all: this is `resilin.manual_seed`.
    """
    if is_available():
        rng.manual_seed(seed)


def manual_seed_all(seed: int) -> None:
    """`manual_seed`: one generator serves all devices."""
    manual_seed(seed)


def seed() -> None:
    """Seed from the operating system; ignored without a device."""
    if is_available():
        rng.seed()


def seed_all() -> None:
    """`seed`: one generator serves all devices."""
    seed()


def initial_seed() -> int:
    """The seed of this thread's generator."""
    chosen.backend()
    return rng.initial_seed()


def get_rng_state(device: Any = "cuda") -> Tensor:
    """The generator's state; see `manual_seed`."""
    chosen.index_of(device)
    return rng.get_rng_state()


def get_rng_state_all() -> list[Tensor]:
    """The generator's state, once for each device."""
    return [rng.get_rng_state() for _ in range(device_count())]


def set_rng_state(new_state: Tensor, device: Any = "cuda") -> None:
    """Continue where `get_rng_state` was called."""
    chosen.index_of(device)
    rng.set_rng_state(new_state)


def set_rng_state_all(new_states: Iterable[Tensor]) -> None:
    """Continue where `get_rng_state_all` was called: one generator serves all devices, so the first state counts."""
    for state in list(new_states)[:1]:
        set_rng_state(state)


def _wait(what: Any, name: str, stream: int | None = None) -> None:
    """Wait, and raise what the device says, and what kernels noted. `stream`: the address, where it is one."""
    xp = chosen.backend().xp
    with device_errors.translated(xp, name):
        what.synchronize()
    xp.faults.check(waited_for=stream)


class Event:
    """A mark in a stream's queue: `record`, wait for it, and measure the time between two.

    enable_timing: needed for `elapsed_time`. blocking: `synchronize` sleeps instead of spinning.
    """

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        if interprocess:
            raise NotImplementedError("cuda.Event: interprocess events are not supported; leave interprocess=False")
        self._timed = enable_timing
        self._event = chosen.backend().cupy.cuda.Event(block=blocking, disable_timing=not enable_timing)

    def record(self, stream: Stream | None = None) -> None:
        """Put the mark behind what is queued in `stream`, the current one by default."""
        self._event.record((stream or current_stream())._stream)

    def wait(self, stream: Stream | None = None) -> None:
        """Let what is queued in `stream` from now on wait for the mark."""
        (stream or current_stream()).wait_event(self)

    def query(self) -> bool:
        """Whether everything before the mark is done."""
        return bool(self._event.done)

    def synchronize(self) -> None:
        """Return when everything before the mark is done. Errors as `cuda.synchronize`."""
        _wait(self._event, "Event.synchronize")

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds from this mark to `end_event`. ValueError unless both were made with enable_timing=True."""
        if not (self._timed and end_event._timed):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        return float(chosen.backend().cupy.cuda.get_elapsed_time(self._event, end_event._event))


class Stream:
    """A queue of work on the device, beside others: `with cuda.stream(s): ...` queues there."""

    def __init__(self, device: Any = None, priority: int = 0, *, _stream: Any = None) -> None:
        self.device = devices.device("cuda", chosen.index_of(device))
        self._stream = _stream or chosen.backend().cupy.cuda.Stream(non_blocking=True, priority=priority)

    def synchronize(self) -> None:
        """Return when everything queued here is done. Errors as `cuda.synchronize`."""
        _wait(self._stream, "Stream.synchronize", self._stream.ptr)

    def query(self) -> bool:
        """Whether everything queued here is done."""
        return bool(self._stream.done)

    def record_event(self, event: Event | None = None) -> Event:
        """Put a mark behind what is queued here, and return it."""
        event = Event() if event is None else event
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        """Let what is queued here from now on wait for `event`."""
        self._stream.wait_event(event._event)

    def wait_stream(self, stream: Stream) -> None:
        """Let what is queued here from now on wait for all that is queued in `stream`."""
        self.wait_event(stream.record_event())


class ExternalStream(Stream):
    """A stream of another library, given by its address; whoever made it keeps it."""

    def __init__(self, stream_ptr: int, device: Any = None) -> None:
        index = chosen.index_of(device)
        super().__init__(index, _stream=chosen.backend().cupy.cuda.ExternalStream(stream_ptr, index))


def get_stream_from_external(data_ptr: int, device: Any = None) -> ExternalStream:
    """The stream of another library at this address."""
    return ExternalStream(data_ptr, device)


class stream:
    """`with cuda.stream(s): ...` queues work in `s` inside; None changes nothing."""

    def __init__(self, stream: Stream | None) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        if self.stream is not None:
            self.stream._stream.__enter__()

    def __exit__(self, *exc: object) -> None:
        if self.stream is not None:
            self.stream._stream.__exit__(*exc)


def current_stream(device: Any = None) -> Stream:
    """The stream that work is queued in now."""
    return Stream(device, _stream=chosen.backend().cupy.cuda.get_current_stream())


def default_stream(device: Any = None) -> Stream:
    """The stream that work is queued in unless another is chosen."""
    return Stream(device, _stream=chosen.backend().cupy.cuda.Stream.null)


def set_stream(stream: Stream | None) -> None:
    """Queue this thread's work in `stream` from now on; None changes nothing. `with cuda.stream(s)` goes back after."""
    if stream is not None:
        stream._stream.use()


def is_current_stream_capturing() -> bool:
    """False: there are no CUDA graphs."""
    return False


StreamContext = stream
