"""Messages between stages: a header that says all about the message, then the tensors, straight from where they lie.

    header   1 KiB: step, micro-batch, where the random numbers stand, and the layout unless it is that of the message
             before, so that shapes may change at any time and cost nothing while they do not
    tensors  one message each; inside a host the receiver copies them out of the sender's memory

A route is a kind of message from one stage to another. Its messages come in the order in which they were sent; one that
is not wanted yet is kept until it is.
"""

from __future__ import annotations

import struct
from collections import deque
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from resilin.core import device as devices
from resilin.core.tensor import Tensor, wrap
from resilin.distributed.backends import per_device
from resilin.distributed.group.process_group import ProcessGroup
from resilin.distributed.wire import tags
from resilin.distributed.work.work import Work
from resilin.errors import DistError
from resilin.pipeline import values
from resilin.pipeline.values import ValueLayout

HEADER_BYTES = 1024  # travels with its message's notice: up to 4 KiB need no second look
_HEADER = struct.Struct("<4sHHqqiQQQI")
_MAGIC = b"rpip"
_VERSION = 2
_SAME_LAYOUT, _HAS_RNG, _TRAINS = 1, 2, 4
_FIRST_TAG = -(1 << 30)  # below those of users and of collectives
_STAGE_BITS = 9  # of a tag, which has 32 with its sign
_NUMBER_BITS = 8


class MessageKind(IntEnum):
    """What a message is about."""

    FORWARD = 0
    """A stage's output for the next one."""
    BACKWARD = 1
    """The gradients of what came by FORWARD."""
    SKIP = 2
    """What a stage has stashed for a later one."""
    SKIP_BACKWARD = 3
    """The gradients of what came by SKIP."""
    WEIGHT = 4
    """A part of the gradient of a weight that several stages have, on its way to the first of them."""
    TOTAL = 5
    """The gradient of such a weight, on its way back."""


class Route(NamedTuple):
    """The way of messages of one kind from one stage to another."""

    kind: MessageKind
    source: int
    target: int
    number: int = 0
    """Of several of one kind between two stages."""

    def __str__(self) -> str:
        return f"{self.kind.name.lower()} of stage {self.source} to stage {self.target}"


class RngState(NamedTuple):
    """Where the random numbers of a micro-batch stand: the next stage goes on from there."""

    seed: int
    stream: int
    offset: int


class StageMessage(NamedTuple):
    """What has come, or is to be sent, on a route for one micro-batch of one step."""

    step: int
    microbatch: int
    trains: bool
    rng: RngState | None
    tensors: list[Tensor]
    layout: ValueLayout


class Exchange:
    """This rank's end of all routes of one pipeline. One thread."""

    def __init__(self, group: ProcessGroup | None, placement: tuple[int, ...], rank: int) -> None:
        self._group = group
        self._placement = placement
        self._rank = rank
        self._sent_layout: dict[Route, ValueLayout] = {}
        self._seen_layout: dict[Route, ValueLayout] = {}
        self._early: dict[Route, deque[StageMessage]] = {}
        self._under_way: list[Work] = []
        self._posted: dict[Route, tuple[Any, Work]] = {}  # headers that are waited for while other things are done

    def is_local(self, route: Route) -> bool:
        """Whether both ends are on this rank."""
        return self._placement[route.source] == self._placement[route.target]

    # --- sending ---

    def send(self, route: Route, message: StageMessage) -> None:
        """Send a message on its way; what it holds must not change before `finish`. UsageTypeError for values that no
        process can receive."""
        if self.is_local(route):
            self._early.setdefault(route, deque()).append(message)
            return
        group, to, tag = self._group, self._placement[route.target], _tag(route)
        assert group is not None, "another rank has the target"
        header, rest = self._header(route, message)
        self._under_way = [work for work in self._under_way if not work.is_completed()]
        self._start(group.isend(header, None, to, tag, awaited=False))
        if rest is not None:
            self._start(group.isend(rest, None, to, tag + 1, awaited=False))
        for tensor in message.tensors:
            array = per_device.to_host(tensor._array)
            if array.size:
                contiguous = array if array.flags.c_contiguous else array.copy(order="C")
                self._start(group.isend(contiguous, tensor, to, tag + 1, awaited=False))

    def _start(self, work: Work) -> None:
        if not work.is_completed():
            self._under_way.append(work)

    def _header(self, route: Route, message: StageMessage) -> tuple[Any, Any]:
        """The header, and what of the layout finds no room in it."""
        flags, text = _TRAINS if message.trains else 0, b""
        before, layout = self._sent_layout.get(route), message.layout
        if before is not None and layout.is_of_tensors and before.is_of_tensors and before == layout:
            flags |= _SAME_LAYOUT
        else:
            text = values.encode(layout, f"{route}, micro-batch {message.microbatch}")
            self._sent_layout[route] = layout
        seed, stream, offset = message.rng or (0, 0, 0)
        flags |= _HAS_RNG if message.rng is not None else 0
        fixed = _HEADER.pack(
            _MAGIC,
            _VERSION,
            flags,
            message.step,
            message.microbatch,
            len(message.tensors),
            seed,
            stream,
            offset,
            len(text),
        )
        header = np.zeros(HEADER_BYTES, np.uint8)
        header[: len(fixed)] = np.frombuffer(fixed, np.uint8)
        room = HEADER_BYTES - len(fixed)
        if len(text) > room:
            return header, np.frombuffer(text, np.uint8).copy()
        header[len(fixed) : len(fixed) + len(text)] = np.frombuffer(text, np.uint8)
        return header, None

    # --- receiving ---

    def receive(self, route: Route, step: int, microbatch: int, trains: bool, device: Any) -> StageMessage:
        """Wait for the message of a micro-batch. DistError when the other rank is in another step, or evaluates."""
        early = self._early.setdefault(route, deque())
        for message in early:
            if message.microbatch == microbatch and message.step == step:
                early.remove(message)
                return message
        assert not self.is_local(route), f"{route} of this rank: a plan computes what it takes first"
        while True:
            message = self._next(route, device)
            if (message.step, message.trains) != (step, trains):
                raise DistError(
                    f"{route}: rank {self._rank} is in {_step_of(step, trains)}, the message that came is of "
                    f"{_step_of(message.step, message.trains)}; all ranks must make the same calls of step() and eval()"
                )
            if message.microbatch == microbatch:
                return message
            early.append(message)

    def ready(self, route: Route, step: int, microbatch: int) -> bool:
        """Whether `receive` would not wait, or only for what is under way already."""
        if any((m.step, m.microbatch) == (step, microbatch) for m in self._early.get(route, ())):
            return True
        if self.is_local(route):
            return False
        if route not in self._posted:
            header = np.empty(HEADER_BYTES, np.uint8)
            assert self._group is not None, "another rank has the source"
            self._posted[route] = (header, self._group.receive(header, self._placement[route.source], _tag(route)))
        return self._posted[route][1].is_completed()

    def _next(self, route: Route, device: Any) -> StageMessage:
        group, source, tag = self._group, self._placement[route.source], _tag(route)
        assert group is not None, "another rank has the source"
        if route in self._posted:
            header, work = self._posted.pop(route)
            work.wait()
        else:
            header = np.empty(HEADER_BYTES, np.uint8)
            group.recv(header, source, tag)
        fixed = _HEADER.unpack_from(header)
        magic, version, flags, step, microbatch, count, seed, stream, offset, length = fixed
        if magic != _MAGIC or version != _VERSION:
            raise DistError(
                f"{route}: rank {source} sent something else; all ranks must run the same version of resilin"
            )
        if flags & _SAME_LAYOUT:
            layout = self._seen_layout[route]
        else:
            layout = values.decode(self._text(header, length, source, tag))
            self._seen_layout[route] = layout
        if count != len(layout.tensors):
            raise DistError(f"{route}: rank {source} announces {count} tensors in a layout of {len(layout.tensors)}")
        tensors = [self._tensor(told, source, tag, device) for told in layout.tensors]
        rng = RngState(seed, stream, offset) if flags & _HAS_RNG else None
        return StageMessage(step, microbatch, bool(flags & _TRAINS), rng, tensors, layout)

    def _text(self, header: Any, length: int, source: int, tag: int) -> bytes:
        if length <= HEADER_BYTES - _HEADER.size:
            return header[_HEADER.size : _HEADER.size + length].tobytes()  # type: ignore[no-any-return]
        rest = np.empty(length, np.uint8)
        assert self._group is not None, "something was received from it"
        self._group.recv(rest, source, tag + 1)
        return rest.tobytes()

    def _tensor(self, told: values.TensorLayout, source: int, tag: int, device: Any) -> Tensor:
        array = values.empty_array(told)
        if array.size:
            assert self._group is not None, "something was received from it"
            self._group.recv(array, source, tag + 1)
        tensor = wrap(array)
        return tensor if device is devices.CPU else tensor.to(device)

    # --- ends ---

    def finish(self) -> None:
        """Wait until everything that was sent has been taken: from here on it may change."""
        under_way, self._under_way = self._under_way, []
        for work in under_way:
            work.wait()


def _tag(route: Route) -> int:
    """The tag of a route's headers; that of what follows them is one more."""
    number = (route.kind << _NUMBER_BITS | route.number) << 2 * _STAGE_BITS
    return _FIRST_TAG + 2 * (number | (route.source << _STAGE_BITS) | route.target)


def _route_of(tag: int) -> Route:
    """The route whose messages have `tag`."""
    rest, target = divmod((tag - _FIRST_TAG) // 2, 1 << _STAGE_BITS)
    rest, source = divmod(rest, 1 << _STAGE_BITS)
    kind, number = divmod(rest, 1 << _NUMBER_BITS)
    return Route(MessageKind(kind), source, target, number)


tags.name(
    range(_FIRST_TAG, _FIRST_TAG + (2 * len(MessageKind) << (_NUMBER_BITS + 2 * _STAGE_BITS))),
    lambda tag: f"of the pipeline, {_route_of(tag)}",
)

MOST_STAGES = 1 << _STAGE_BITS
MOST_ROUTES = 1 << _NUMBER_BITS  # of one kind between two stages


def _step_of(step: int, trains: bool) -> str:
    return f"step {step}" if trains else f"an evaluation before step {step}"
