"""What happened, as PyTorch's profiler tells it: one event a call, and their averages."""

from __future__ import annotations

import warnings
from collections import namedtuple
from collections.abc import Iterator, Mapping
from dataclasses import InitVar, dataclass, field
from itertools import islice
from typing import Any, NamedTuple

from resilin.profiler.activities import DeviceType
from resilin.profiler.formatting import format_time

Kernel = namedtuple("Kernel", ["name", "device", "duration"])
Kernel.__doc__ = "What an operation ran on a device: name, number of the device, microseconds."


class Around(NamedTuple):
    """A function around a call, and those around it: kept once for all that lies in it."""

    name: str
    further: Around | None

    def names(self) -> Iterator[str]:
        """Yield the names, the innermost first."""
        one: Around | None = self
        while one is not None:
            yield one.name
            one = one.further


class Interval:
    """From `start` to `end`, in microseconds since the recording began."""

    __slots__ = ("end", "start")

    def __init__(self, start: float, end: float) -> None:
        self.start = start
        self.end = end

    def elapsed_us(self) -> float:
        """Return the length in microseconds."""
        return self.end - self.start


class EventMetadata(NamedTuple):
    """What is known of a collective or message, under PyTorch's names; None where it is not said."""

    collective_name: str | None = None
    dtype: str | None = None
    in_msg_nelems: int | None = None
    out_msg_nelems: int | None = None
    in_split_size: str | None = None
    out_split_size: str | None = None
    global_rank_start: int | None = None
    global_rank_stride: int | None = None
    group_size: int | None = None
    process_group_name: str | None = None
    process_group_desc: str | None = None
    group_ranks: str | None = None
    rank: int | None = None
    src_rank: int | None = None
    dst_rank: int | None = None
    seq: int | None = None
    is_async: bool | None = None
    bytes: int | None = None


_METADATA = {
    "Collective name": "collective_name",
    "dtype": "dtype",
    "In msg nelems": "in_msg_nelems",
    "Out msg nelems": "out_msg_nelems",
    "In split size": "in_split_size",
    "Out split size": "out_split_size",
    "Global rank start": "global_rank_start",
    "Global rank stride": "global_rank_stride",
    "Group size": "group_size",
    "Process Group Name": "process_group_name",
    "Process Group Description": "process_group_desc",
    "Process Group Ranks": "group_ranks",
    "Rank": "rank",
    "Src Rank": "src_rank",
    "Dst Rank": "dst_rank",
    "Seq": "seq",
    "Is asynchronized op": "is_async",
    "Bytes": "bytes",
}


def metadata_of(args: Mapping[str, Any] | None) -> EventMetadata | None:
    """Return what `args`, named as in trace files, say of a collective; None where they say nothing."""
    found = {field: args[key] for key, field in _METADATA.items() if key in args} if args else {}
    return EventMetadata(**found) if found else None


def _older(name: str, newer: str, given: str | None = None) -> Any:
    """A property that warns, names `newer`, and gives it, or the attribute `given`."""

    def get(self: Any) -> Any:
        warnings.warn(f"`{name}` is deprecated, please use `{newer}` instead.", FutureWarning, stacklevel=2)
        return getattr(self, given or newer)

    return property(get, doc=f"The older name of `{newer}`.")


def _formatted(name: str) -> Any:
    return property(lambda self: format_time(getattr(self, name)), doc=f"`{name}` as text.")


class StackMixin:
    """Functions of Python around a call, of what has `_stack`."""

    __slots__ = ()

    _stack: Any

    @property
    def stack(self) -> Any:
        """The functions, the innermost first: a new list each time it is asked for."""
        return self.innermost() if isinstance(self._stack, Around) else self._stack

    @stack.setter
    def stack(self, functions: Any) -> None:
        self._stack = functions

    def innermost(self, count: int | None = None) -> list[str]:
        """Return so many of the functions, all of them without a number."""
        names = self._stack.names() if isinstance(self._stack, Around) else iter(self._stack or ())
        return list(islice(names, count))


class FormattedTimesMixin:
    """Times as text, and per call; of what has `*_time_total` and `count`."""

    __slots__ = ("__dict__",)  # for what users add to events: there are hundreds of thousands, mostly without one

    count: int
    cpu_time_total: float
    device_time_total: float

    cpu_time_str = _formatted("cpu_time")
    device_time_str = _formatted("device_time")
    cpu_time_total_str = _formatted("cpu_time_total")
    device_time_total_str = _formatted("device_time_total")
    self_cpu_time_total_str = _formatted("self_cpu_time_total")
    self_device_time_total_str = _formatted("self_device_time_total")
    cuda_time = _older("cuda_time", "device_time")

    @property
    def cpu_time(self) -> float:
        """Microseconds of the CPU per call."""
        return self.cpu_time_total / self.count if self.count else 0.0

    @property
    def device_time(self) -> float:
        """Microseconds of the device per call."""
        return self.device_time_total / self.count if self.count else 0.0


@dataclass(slots=True, eq=False, repr=False)
class FunctionEvent(FormattedTimesMixin, StackMixin):
    """One call: an operation, a node of backward, a region, a Python function.

    Times are microseconds since the recording began. `stack` lists Python functions, the innermost first, and needs
    with_stack; shapes, strides, dtypes and `concrete_inputs` need record_shapes, memory needs profile_memory.
    """

    id: int
    name: str
    thread: int
    start_us: InitVar[float]
    end_us: InitVar[float]
    overload_name: Any = None
    fwd_thread: int | None = None
    input_shapes: Any = None
    stack: InitVar[Any] = None
    scope: int = 0
    """0: forward, 1: a node of backward, 7: a region of the user's."""
    use_device: str | None = None
    cpu_memory_usage: int = 0
    device_memory_usage: int = 0
    is_async: bool = False
    """Whether it overlaps others of its thread, and so has no part in their self times."""
    is_remote: bool = False
    """Whether another worker recorded it, which this one called: `node_id` says which."""
    sequence_nr: int = -1
    node_id: int = -1
    device_type: DeviceType = DeviceType.CPU
    device_index: int = 0
    device_resource_id: int | None = None
    """Without it the thread."""
    is_legacy: bool = False
    flops: int | None = None
    trace_name: str | None = None
    """As `name`; of a step with its number, where `name` has a star."""
    concrete_inputs: list[Any] | None = None
    kwinputs: dict[str, Any] | None = None
    is_user_annotation: bool = False
    is_python_function: bool = False
    activity_type: str | None = None
    metadata_json: InitVar[str | None] = None
    flow_id: int | None = None
    flow_type: int | None = None
    flow_start: bool | None = None
    external_id: int = 0
    linked_correlation_id: int = 0
    extra_meta: InitVar[Mapping[str, Any] | None] = None
    structured_input_shapes: list[Any] | None = None
    structured_input_strides: list[Any] | None = None
    input_dtypes: list[str] | None = None
    python_id: int = -1
    python_parent_id: int = -1
    python_module_id: int = -1
    time_range: Interval = field(init=False)
    event_metadata: EventMetadata | None = field(init=False)
    _metadata_json: str | None = field(init=False)
    _stack: Any = field(init=False)
    kernels: list[Kernel] = field(init=False, default_factory=list)
    count: int = field(init=False, default=1)
    cpu_children: list[FunctionEvent] = field(init=False, default_factory=list)
    cpu_parent: FunctionEvent | None = field(init=False, default=None)
    self_cpu_percent: Any = field(init=False, default=-1)
    total_cpu_percent: Any = field(init=False, default=-1)
    total_device_percent: Any = field(init=False, default=-1)

    def __post_init__(
        self,
        start_us: float,
        end_us: float,
        stack: Any,
        metadata_json: str | None,
        extra_meta: Mapping[str, Any] | None,
    ) -> None:
        self.time_range = Interval(start_us, end_us)
        self.event_metadata = metadata_of(extra_meta)
        self._metadata_json = metadata_json
        self._stack = stack
        if self.device_resource_id is None:
            self.device_resource_id = self.thread

    self_cuda_memory_usage = _older("self_cuda_memory_usage", "self_device_memory_usage")
    cuda_time_total = _older("cuda_time_total", "device_time_total")
    self_cuda_time_total = _older("self_cuda_time_total", "self_device_time_total")

    @property
    def key(self) -> str:
        """What events are averaged by."""
        return self.name

    def append_kernel(self, name: str, device: int, duration: float) -> None:
        """Add what the call ran on a device. AssertionError when the event itself is a device's."""
        self._must_be_of_the_cpu(self)
        self.kernels.append(Kernel(name, device, duration))

    def append_cpu_child(self, child: FunctionEvent) -> None:
        """Add a call that this one made itself. AssertionError when either is a device's."""
        self._must_be_of_the_cpu(self)
        self._must_be_of_the_cpu(child)
        self.cpu_children.append(child)

    def set_cpu_parent(self, parent: FunctionEvent) -> None:
        """Say which call made this one. AssertionError when either is a device's."""
        self._must_be_of_the_cpu(self)
        self._must_be_of_the_cpu(parent)
        self.cpu_parent = parent

    @staticmethod
    def _must_be_of_the_cpu(event: Any) -> None:
        assert isinstance(event, FunctionEvent), f"expected a FunctionEvent, got {type(event).__name__}"
        assert event.device_type is DeviceType.CPU, f"expected an event of the CPU, got one of {event.device_type}"

    def _own(self, name: str) -> Any:
        """A total without the children's part."""
        if self.is_async or self.device_type is not DeviceType.CPU:
            return 0
        return getattr(self, name) - sum(getattr(child, name) for child in self.cpu_children)

    @property
    def self_cpu_memory_usage(self) -> int:
        """Bytes of the CPU's memory that it took itself; below zero: that it gave back."""
        return self._own("cpu_memory_usage")  # type: ignore[no-any-return]

    @property
    def self_device_memory_usage(self) -> int:
        """Bytes of the device's memory that it took itself."""
        return self._own("device_memory_usage")  # type: ignore[no-any-return]

    @property
    def cpu_time_total(self) -> float:  # type: ignore[override]
        """Microseconds from start to end; 0 of what a device did."""
        return self.time_range.elapsed_us() if self.device_type is DeviceType.CPU else 0

    @property
    def self_cpu_time_total(self) -> float:
        """Microseconds outside of its children."""
        return self._own("cpu_time_total")  # type: ignore[no-any-return]

    @property
    def device_time_total(self) -> float:  # type: ignore[override]
        """Microseconds on the device, its children's too."""
        if self.is_async or not self.use_device:
            return 0
        if self.device_type is not DeviceType.CPU:
            return self.time_range.elapsed_us()
        own: float = sum(kernel.duration for kernel in self.kernels)
        return own if self.is_legacy else own + sum(child.device_time_total for child in self.cpu_children)

    @property
    def self_device_time_total(self) -> float:
        """Microseconds on the device outside of its children."""
        if self.is_async or not self.use_device:
            return 0
        return self.device_time_total - sum(child.device_time_total for child in self.cpu_children)

    def __repr__(self) -> str:
        device = self.use_device
        return (
            f"<FunctionEvent id={self.id} name={self.name} overload_name={self.overload_name} "
            f"device_type={self.device_type} node_id={self.node_id} cpu_time={self.cpu_time_str} "
            f"start_us={self.time_range.start} end_us={self.time_range.end} "
            f"cpu_children={[child.id for child in self.cpu_children]} {device}_time={self.device_time_str} "
            f"name={self.name} thread={self.thread} input_shapes={self.input_shapes} "
            f"cpu_memory_usage={self.cpu_memory_usage} {device}_memory_usage={self.device_memory_usage} "
            f"is_async={self.is_async} is_remote={self.is_remote} seq_nr={self.sequence_nr} is_legacy={self.is_legacy}>"
        )


# within the class they would be the arguments' defaults
FunctionEvent.stack = StackMixin.stack  # type: ignore[method-assign]
FunctionEvent.metadata_json = _older("metadata_json", "event_metadata", "_metadata_json")  # type: ignore[attr-defined]

_SUMMED = (
    "cpu_time_total",
    "device_time_total",
    "self_cpu_time_total",
    "self_device_time_total",
    "cpu_memory_usage",
    "device_memory_usage",
    "self_cpu_memory_usage",
    "self_device_memory_usage",
    "count",
)
_OF_THE_FIRST = (
    "key",
    "node_id",
    "is_async",
    "is_remote",
    "cpu_parent",
    "cpu_children",
    "overload_name",
    "input_shapes",
    "_stack",
    "scope",
    "device_type",
    "is_legacy",
    "use_device",
    "is_user_annotation",
)


class FunctionEventAvg(FormattedTimesMixin, StackMixin):
    """The sums over events of one key; `cpu_time` and `device_time` are per call."""

    def __init__(self) -> None:
        self.key: str | None = None
        self.count = 0
        self.node_id = 0
        self.is_async = False
        self.is_remote = False
        self.use_device: str | None = None
        self.cpu_time_total = 0
        self.device_time_total = 0
        self.self_cpu_time_total = 0
        self.self_device_time_total = 0
        self.input_shapes: Any = None
        self.overload_name: Any = None
        self._stack: Any = None
        self.scope: int | None = None
        self.cpu_memory_usage = 0
        self.device_memory_usage = 0
        self.self_cpu_memory_usage = 0
        self.self_device_memory_usage = 0
        self.cpu_children: list[FunctionEvent] | None = None
        self.cpu_parent: FunctionEvent | None = None
        self.device_type = DeviceType.CPU
        self.is_legacy = False
        self.is_user_annotation = False
        self.flops: Any = 0
        self.self_cpu_percent: Any = -1
        self.total_cpu_percent: Any = -1
        self.total_device_percent: Any = -1

    def add(self, other: FunctionEvent | FunctionEventAvg) -> FunctionEventAvg:
        """Add an event, or the sums of several. AssertionError when its key is another one."""
        assert isinstance(other, FunctionEvent | FunctionEventAvg), f"expected an event, got {type(other).__name__}"
        if self.key is None:
            for name in _OF_THE_FIRST:
                setattr(self, name, getattr(other, name))
        assert other.key == self.key, f"expected an event of {self.key}, got one of {other.key}"
        for name in _SUMMED:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        if other.flops is not None:
            self.flops = other.flops if self.flops is None else self.flops + other.flops
        return self

    __iadd__ = add

    def __repr__(self) -> str:
        device = self.use_device or "cuda"
        return (
            f"<FunctionEventAvg key={self.key} self_cpu_time={self.self_cpu_time_total_str} "
            f"cpu_time={self.cpu_time_str}  self_{device}_time={self.self_device_time_total_str} "
            f"{device}_time={self.device_time_str} input_shapes={self.input_shapes} "
            f"cpu_memory_usage={self.cpu_memory_usage} {device}_memory_usage={self.device_memory_usage}>"
        )
