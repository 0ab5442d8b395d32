"""Which parameter's gradient lies where in which flat bucket. Pure: sizes in, assignment out."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

FIRST_BUCKET_BYTES = 1 << 20  # small, so that the first all-reduce starts while most of backward is still to come
DEFAULT_BUCKET_BYTES = 25 << 20
LONE_BYTES = 512 << 10  # to copy such a gradient into a bucket takes longer than one collective more on one host
LONE_BYTES_BESIDE = 4 << 20  # the same of a collective of the worker thread, or between hosts
DEFAULT_CAPS = (FIRST_BUCKET_BYTES, DEFAULT_BUCKET_BYTES)


@dataclass(frozen=True, slots=True)
class ParameterSpec:
    """What the assignment needs to know of one parameter."""

    name: str
    numel: int
    itemsize: int  # bytes of one element
    kind: str  # dtype and device: a bucket holds one kind only


@dataclass(frozen=True, slots=True)
class Slot:
    """The elements [start, stop) of a bucket's flat array, which hold the gradient of parameter number `param`."""

    param: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class BucketSpec:
    """One flat array of `numel` elements and its slots, in order and without gaps: a hook sees gradients only."""

    index: int
    kind: str
    numel: int
    itemsize: int
    slots: tuple[Slot, ...]
    lone: bool = False
    """Whether it holds one large gradient, wherever that lies."""

    @property
    def nbytes(self) -> int:
        """Bytes of the flat array."""
        return self.numel * self.itemsize


def assign(
    params: Sequence[ParameterSpec],
    caps: Sequence[int] = DEFAULT_CAPS,
    order: Sequence[int] | None = None,
    lone_bytes: int | None = None,
) -> tuple[BucketSpec, ...]:
    """Cut the parameters, in the `order` their gradients become ready, into buckets of about `caps` bytes.

    `order` is by default the reverse of registration, which is about the order of backward. A bucket is closed as soon
    as it holds its cap, so a tensor is never cut: the k-th of its kind has the k-th cap, later ones the last. Buckets
    are numbered in the order in which they become complete, which is the order of their collectives on every rank.
    A tensor of `lone_bytes` or more has a bucket of its own, and counts for no cap.
    """
    order = range(len(params) - 1, -1, -1) if order is None else order
    open_: dict[str, list[int]] = {}
    held: dict[str, int] = {}
    closed: list[tuple[int, list[int]]] = []  # (place in `order` of the last member, members)
    full: dict[str, int] = {}  # how many of a kind are closed
    for place, number in enumerate(order):
        spec = params[number]
        if lone_bytes is not None and spec.numel * spec.itemsize >= lone_bytes:
            closed.append((place, [number]))
            continue
        members = open_.setdefault(spec.kind, [])
        members.append(number)
        held[spec.kind] = held.get(spec.kind, 0) + spec.numel * spec.itemsize
        if held[spec.kind] >= caps[min(full.get(spec.kind, 0), len(caps) - 1)]:
            closed.append((place, members))
            full[spec.kind] = full.get(spec.kind, 0) + 1
            del open_[spec.kind], held[spec.kind]
    places = {number: place for place, number in enumerate(order)}
    closed.extend((places[members[-1]], members) for members in open_.values())
    closed.sort(key=lambda item: item[0])
    return tuple(_lay_out(index, params, members, lone_bytes) for index, (_, members) in enumerate(closed))


def delay(
    params: Sequence[ParameterSpec],
    caps: Sequence[int],
    order: Sequence[int],
    late: Collection[int],
    until: int,
    lone_bytes: int | None = None,
) -> tuple[BucketSpec, ...]:
    """As `assign`, with the parameters `late` in buckets of their own, right after the bucket of the parameter
    `until`."""
    plan = list(assign(params, caps, [number for number in order if number not in late], lone_bytes))
    after = next(spec.index for spec in plan if any(slot.param == until for slot in spec.slots)) + 1
    plan[after:after] = assign(params, caps, [number for number in order if number in late], lone_bytes)
    return tuple(replace(spec, index=index) for index, spec in enumerate(plan))


def _lay_out(index: int, params: Sequence[ParameterSpec], members: Iterable[int], lone_bytes: int | None) -> BucketSpec:
    slots: list[Slot] = []
    end = 0
    spec: ParameterSpec | None = None
    for number in members:
        spec = params[number]
        start, end = end, end + spec.numel
        slots.append(Slot(number, start, end))
    assert spec is not None, "a bucket has at least one parameter"
    lone = lone_bytes is not None and end * spec.itemsize >= lone_bytes and len(slots) == 1
    return BucketSpec(index, spec.kind, end, spec.itemsize, tuple(slots), lone)
