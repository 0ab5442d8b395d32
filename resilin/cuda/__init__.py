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
from resilin.core.tensor import Tensor
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
from resilin.errors import OutOfMemoryError, UsageError

if TYPE_CHECKING:  # what the table of places adds; written by scripts/type_stubs.py
    from resilin.cuda import amp as amp
    from resilin.cuda import graphs as graphs
    from resilin.cuda import memory as memory
    from resilin.cuda import random as random
    from resilin.cuda import streams as streams

__all__ = [
    "BFloat16Tensor",
    "BoolTensor",
    "ByteTensor",
    "CharTensor",
    "DoubleTensor",
    "Event",
    "FloatTensor",
    "HalfTensor",
    "IntTensor",
    "LongTensor",
    "OutOfMemoryError",
    "ShortTensor",
    "Stream",
    "StreamContext",
    "current_device",
    "current_stream",
    "default_stream",
    "device",
    "device_count",
    "device_of",
    "empty_cache",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_rng_state",
    "get_rng_state_all",
    "init",
    "initial_seed",
    "ipc_collect",
    "is_available",
    "is_bf16_supported",
    "is_current_stream_capturing",
    "is_initialized",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "memory_summary",
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
]


def _backend() -> Any:
    """The CUDA backend. RuntimeError says why there is none."""
    return devices.backend_of("cuda")


def _index(device: Any) -> int:
    """The number of a device that is given as a number, a string or a `device`; None is the current one."""
    backend = _backend()
    if device is None:
        return int(backend.current())
    found = devices.device("cuda", device) if isinstance(device, int) else devices.device(device)
    if found.type != "cuda":
        raise ValueError(f"expected a cuda device, got {found}")
    return int(found.index or 0)


def is_available() -> bool:
    """Whether a CUDA device can be used: CuPy is installed and finds one. Never raises."""
    return device_count() > 0


def device_count() -> int:
    """Number of CUDA devices that this process can use; 0 without CuPy or a driver."""
    try:
        return int(_backend().count())
    except RuntimeError:
        return 0


def is_initialized() -> bool:
    """Whether CUDA has been used in this process: a device was asked about with success, or a tensor made there."""
    return "cuda" in devices.device_types()


def init() -> None:
    """Load CuPy and look for devices now. RuntimeError says what is missing."""
    _backend()


def current_device() -> int:
    """Number of the device that "cuda" means."""
    return int(_backend().current())


def set_device(device: Any) -> None:
    """Make `device` the one that "cuda" means. RuntimeError once this process has tensors on another."""
    index = _index(device)
    if index >= 0:
        _backend().choose(index)


class device:
    """`with cuda.device(0): ...` makes that device the current one inside; None or a negative number changes nothing.

    RuntimeError when this process already computes on another: one process uses one GPU.
    """

    def __init__(self, device: Any) -> None:
        self.idx = -1 if device is None or (isinstance(device, int) and device < 0) else _index(device)
        self.prev_idx = -1

    def __enter__(self) -> None:
        if self.idx >= 0:
            self.prev_idx = current_device()
            _backend().choose(self.idx)

    def __exit__(self, *exc: object) -> None:
        if self.prev_idx >= 0 and _backend().computing_on is None:
            _backend().choose(self.prev_idx)


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
    found = _backend().properties(_index(device))
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


def synchronize(device: Any = None) -> None:
    """Return when everything queued on the device is done."""
    _backend().synchronize(_index(device))


def empty_cache() -> None:
    """Give memory that the pool keeps but no tensor uses back to the driver; nothing without a device."""
    if is_initialized():
        _backend().empty_cache()


def ipc_collect() -> None:
    """Release memory shared with processes that are gone. Tensors are not shared over CUDA IPC, so there is none."""


def memory_allocated(device: Any = None) -> int:
    """Bytes that tensors take now; 0 before the first use of CUDA."""
    return int(_backend().used_bytes()) if is_initialized() and _own(device) else 0


def max_memory_allocated(device: Any = None) -> int:
    """The most bytes that tensors took at once since the start or `reset_peak_memory_stats`."""
    return int(_backend().peak_bytes) if is_initialized() and _own(device) else 0


def memory_reserved(device: Any = None) -> int:
    """Bytes that the pool holds, in use or not."""
    return int(_backend().reserved_bytes()) if is_initialized() and _own(device) else 0


def max_memory_reserved(device: Any = None) -> int:
    """The most bytes that the pool held since the start or `reset_peak_memory_stats`."""
    return int(_backend().peak_reserved_bytes) if is_initialized() and _own(device) else 0


def reset_peak_memory_stats(device: Any = None) -> None:
    """Let `max_memory_allocated` and `max_memory_reserved` start anew from what is taken now."""
    if is_initialized() and _own(device):
        _backend().reset_peaks()


def memory_stats(device: Any = None) -> dict[str, int]:
    """What is counted, in bytes: `allocated_bytes.all.current`, `.peak`, `reserved_bytes.all.current`, `.peak`.

    Empty before the first use of CUDA.
    """
    if not is_initialized():
        return {}
    return {
        "allocated_bytes.all.current": memory_allocated(device),
        "allocated_bytes.all.peak": max_memory_allocated(device),
        "reserved_bytes.all.current": memory_reserved(device),
        "reserved_bytes.all.peak": max_memory_reserved(device),
    }


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """`memory_stats` as text, a line for each figure; `abbreviated` changes nothing."""
    where = f"cuda:{_index(device)}"
    return "\n".join(f"{where} {name} {value:,} B" for name, value in memory_stats(device).items())


def set_per_process_memory_fraction(fraction: float, device: Any = None) -> None:
    """Let tensors take at most this part of the device's memory: more raises OutOfMemoryError."""
    if not 0 <= fraction <= 1:
        raise UsageError(f"cuda.set_per_process_memory_fraction: expected a number from 0 to 1, got {fraction}")
    if _own(device):
        _backend().limit(float(fraction))


def _own(device: Any) -> bool:
    """Whether `device` is the one that this process computes on; another has none of its memory."""
    return device is None or _index(device) == current_device()


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """(free, total) bytes of the device, as the driver counts them for all processes."""
    free, total = _backend().memory_info(_index(device))
    return int(free), int(total)


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
    _backend()
    return rng.initial_seed()


def get_rng_state(device: Any = "cuda") -> Tensor:
    """The generator's state; see `manual_seed`."""
    _index(device)
    return rng.get_rng_state()


def get_rng_state_all() -> list[Tensor]:
    """The generator's state, once for each device."""
    return [rng.get_rng_state() for _ in range(device_count())]


def set_rng_state(new_state: Tensor, device: Any = "cuda") -> None:
    """Continue where `get_rng_state` was called."""
    _index(device)
    rng.set_rng_state(new_state)


def set_rng_state_all(new_states: Iterable[Tensor]) -> None:
    """Continue where `get_rng_state_all` was called: one generator serves all devices, so the first state counts."""
    for state in list(new_states)[:1]:
        set_rng_state(state)


class Event:
    """A mark in a stream's queue: `record`, wait for it, and measure the time between two.

    enable_timing: needed for `elapsed_time`. blocking: `synchronize` sleeps instead of spinning.
    """

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        if interprocess:
            raise NotImplementedError("cuda.Event: interprocess events are not supported; leave interprocess=False")
        self._timed = enable_timing
        self._event = _backend().cupy.cuda.Event(block=blocking, disable_timing=not enable_timing)

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
        """Return when everything before the mark is done."""
        self._event.synchronize()

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds from this mark to `end_event`. ValueError unless both were made with enable_timing=True."""
        if not (self._timed and end_event._timed):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        return float(_backend().cupy.cuda.get_elapsed_time(self._event, end_event._event))


class Stream:
    """A queue of work on the device, beside others: `with cuda.stream(s): ...` queues there."""

    def __init__(self, device: Any = None, priority: int = 0, *, _stream: Any = None) -> None:
        self.device = devices.device("cuda", _index(device))
        self._stream = _stream or _backend().cupy.cuda.Stream(non_blocking=True, priority=priority)

    def synchronize(self) -> None:
        """Return when everything queued here is done."""
        self._stream.synchronize()

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
    return Stream(device, _stream=_backend().cupy.cuda.get_current_stream())


def default_stream(device: Any = None) -> Stream:
    """The stream that work is queued in unless another is chosen."""
    return Stream(device, _stream=_backend().cupy.cuda.Stream.null)


def set_stream(stream: Stream | None) -> None:
    """Queue this thread's work in `stream` from now on; None changes nothing. `with cuda.stream(s)` goes back after."""
    if stream is not None:
        stream._stream.use()


def is_current_stream_capturing() -> bool:
    """False: there are no CUDA graphs."""
    return False


StreamContext = stream
