"""Take state that a strategy divides among ranks (`dist.Reconfigurable`) through commits and new worlds.

report      every member: which slices of which versions it has (`Stand`)
plan        pure: the version is the sources' last commit; each rank's slices in the new world come from itself, else
            from whoever has them; parameters that a step left half-written on a source are put together again
prepare     moved aside, checked by hash, and kept by each rank's buddy in the new world
take over   once every rank has prepared: a failure before that leaves everybody with what it had
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import resilin.distributed as dist
from resilin._base.text import shown
from resilin.core import host_copies
from resilin.core.tensor import Tensor
from resilin.distributed.api import records
from resilin.distributed.api.reconfigurable import Divided, Extent, Lot, Outline, Reconfigurable, Version
from resilin.elastic.worker import reshard_plan, reshard_transfer
from resilin.elastic.worker.digests import digest
from resilin.elastic.worker.reshard_plan import Hole, ReshardPlan
from resilin.elastic.worker.trees import frozen, shape_of, text_of, thawed
from resilin.errors import ResilinError, StateError, UsageError

Layout = tuple[tuple[str, tuple[int, ...], str], ...]
_MOST_RANKS = 1 << 20


@dataclass(frozen=True, slots=True)
class Stand:
    """Record what a member says of one divided object."""

    version: Version
    """At its last commit."""
    outlines: tuple[Outline, ...]
    """All that it can give."""
    broken: frozenset[str]
    """Shared tensors that an interrupted step may have left half-written here."""
    rank: int
    """In the world that its slices were divided in."""
    buddies: tuple[int, ...]
    """Of that world's ranks; empty: they had none."""
    world_size: int
    """That world's size."""
    layout: bytes
    """Hash of what is divided: names and sizes."""

    def validate(self) -> None:
        """ValueError for a place that no world has."""
        if not 0 <= self.rank < self.world_size <= _MOST_RANKS or len(self.buddies) not in (0, self.world_size):
            raise ValueError(
                f"rank {shown(self.rank)} of a world of {shown(self.world_size)} with {len(self.buddies)} buddies"
            )
        if min(self.version) < 0:
            raise ValueError(f"version {shown(self.version)}")


class DividedPart:
    """See `parts.Part`: nothing is guarded here, slices travel apart (`Redivision`)."""

    def __init__(self, name: str, whole: Divided) -> None:
        self.name, self.saved = name, whole
        self.thing = whole.reconfigurable

    def capture(self) -> tuple[Any, list[Tensor]]:
        """A copy of what all ranks have alike."""
        return frozen(self.thing.common_state()), []

    def layout(self) -> Layout:
        """Empty."""
        return ()

    def restore(self, small: Any) -> None:
        """Take back what all ranks have alike; slices go back when a generation starts and others have said theirs."""
        self.thing.load_common_state(thawed(small))

    def accept(self, layout: Layout) -> list[Tensor]:
        """Nothing to fill. StateError when the source keeps whole tensors under this name."""
        if layout:
            raise StateError(
                f"{self.name}: its state is divided among the ranks here, and whole at the source "
                f"({text_of(layout[0])} and others); all ranks must build the same objects"
            )
        return []

    def settle(self, small: Any, tensors: list[Tensor]) -> None:
        """Same as restore."""
        self.restore(small)

    def drop_gradients(self) -> None:
        """The shared tensors'."""
        for tensor in self.thing.shared().values():
            tensor._grad = None

    def whole_digest(self) -> bytes:
        """Hash of the whole state, the same for every world. Collective, in the world that the slices are divided in;
        its rank 0 needs memory for all of it meanwhile. UsageError when that world has ended."""
        _, world_size, _ = self.thing.seats()
        if world_size == 1:
            return _digest_of(self.thing.lots()[0])
        group = dist.default_group() if dist.is_initialized() else None
        if group is None or group.size() != world_size:
            raise UsageError(
                f"State.fingerprint: {self.name} is divided among {world_size} ranks, and their world has ended; call "
                "it on all ranks in the function that elastic.run calls"
            )
        return _gathered_digest(self.thing.lots()[0], group)

    def stand(self, version: Version) -> Stand:
        """Say where this rank stands; `version`: at its last commit."""
        thing = self.thing
        outlines = tuple(lot.outline() for lot in thing.lots())
        rank, world_size, buddies = thing.seats()
        shared = thing.shared()
        broken = frozenset(shared if thing.begun() else ())
        layout = digest([thing.units(), {name: shape_of(tensor) for name, tensor in shared.items()}])
        return Stand(version, outlines, broken, rank, buddies, world_size, layout)


def kept(parts: Iterable[DividedPart]) -> tuple[tuple[int, ...], int]:
    """Return the ranks of the world that slices are divided in whose slices this one has, of every object: its own and
    those of which it is the buddy; and that world's size. Of no divided object: nobody, and 0."""
    seats = [part.thing.seats() for part in parts]
    held = [{rank, *(of for of, buddy in enumerate(buddies) if buddy == rank)} for rank, _, buddies in seats]
    return (tuple(sorted(set.intersection(*held))), seats[0][1]) if held else ((), 0)


def _gathered_digest(own: Lot, group: dist.ProcessGroup) -> bytes:
    outlines = records.gather(Outline, own.outline(), group)
    every = {name: extent for one in outlines for name, extent in one.extents.items()}
    values = {name: value for one in outlines for name, value in one.values.items()}
    whole = Outline(own.version, {n: Extent(0, e.total, e.total, e.dtype) for n, e in every.items()}, values)
    wanted = [_ranges(whole), *[{}] * (group.size() - 1)]
    gives = reshard_plan.plan([_held([_ranges(one)]) for one in outlines], wanted).gives
    rank = group.rank()
    into = whole.empty() if rank == 0 else Lot(own.version, {})
    reshard_transfer.run(gives, [own], into, rank, group)
    found = records.broadcast(bytes, _digest_of(into) if rank == 0 else None, 0, group)
    assert found is not None, "it is wanted on all ranks"
    return found


def _digest_of(lot: Lot) -> bytes:
    return digest([dict(lot.values), {name: one.array for name, one in lot.slices.items()}])


@dataclass(frozen=True, slots=True)
class Division:
    """Hold who gives what to whom, for one object."""

    version: Version
    cover: ReshardPlan
    lost: tuple[Hole, ...]
    """Units, or parts of them, of whose state nobody is left."""
    outlines: tuple[Outline, ...]
    """What each rank is to hold."""
    mend: tuple[frozenset[str], ...]
    """The shared tensors that each rank puts together again."""

    @property
    def complete(self) -> bool:
        """Return whether nothing is lost."""
        return not self.lost and not self.cover.holes


def plan(
    thing: Reconfigurable,
    stands: Sequence[Stand],
    sources: Sequence[int],
    holders: Sequence[int],
    seats: Sequence[int] | None = None,
) -> Division:
    """Plan how the state of `thing` is divided anew. Pure, and a function of what everybody knows.

    stands: by rank. sources: those that are at the commit that counts; the shared tensors of all others are received
    whole from them. holders: whose slices count. seats: the ranks that form the next world, in order; default all.
    """
    place = {rank: number for number, rank in enumerate(range(len(stands)) if seats is None else seats)}

    def wants(totals: Mapping[str, int], rank: int) -> Mapping[str, range]:
        return thing.wanted(totals, place[rank], len(place)) if rank in place else {}

    version, world = stands[sources[0]].version, range(len(stands))
    lots = [
        [outline for outline in stand.outlines if rank in holders and outline.version == version]
        for rank, stand in enumerate(stands)
    ]
    units, shared = thing.units(), thing.shared()
    everything = [{name: range(total) for name, total in units.items()}, *[{}] * (len(stands) - 1)]
    lost = reshard_plan.plan([_held(one.covers for one in own) for own in lots], everything).holes
    every = {name: extent for own in lots for outline in own for name, extent in outline.extents.items()}
    values = {name: value for own in lots for outline in own for name, value in outline.values.items()}
    totals = {name: extent.total for name, extent in every.items() if name not in shared}
    wanted = [wants(totals, rank) for rank in world]
    mend = tuple(stand.broken if rank in sources else frozenset() for rank, stand in enumerate(stands))
    needed = [{**wanted[rank], **{name: range(shared[name].numel()) for name in mend[rank]}} for rank in world]
    held = [_held(_ranges(one) for one in own) for own in lots]
    weights = {name: np.dtype(extent.dtype).itemsize for name, extent in every.items()}
    outlines = tuple(
        Outline(
            version,
            {name: Extent(one.start, one.stop, totals[name], every[name].dtype) for name, one in wanted[rank].items()},
            values,
            wants(units, rank),
        )
        for rank in world
    )
    return Division(version, reshard_plan.plan(held, needed, weights), lost, outlines, mend)


def _ranges(outline: Outline) -> dict[str, range]:
    return {name: range(extent.start, extent.stop) for name, extent in outline.extents.items()}


def _held(lots: Iterable[Mapping[str, range]]) -> dict[str, list[range]]:
    held: dict[str, list[range]] = {}
    for lot in lots:
        for name, part in lot.items():
            held.setdefault(name, []).append(part)
    return held


def check(
    name: str, thing: Reconfigurable, division: Division, stands: Sequence[Stand], sources: Sequence[int]
) -> None:
    """StateError, on every rank alike, when slices are lost, or the sources are not at one version."""
    for rank in sources:
        if stands[rank].version != division.version:
            raise StateError(
                f"{name}: rank {sources[0]} committed the divided state after {division.version[0]} steps of it, rank "
                f"{rank} after {stands[rank].version[0]}; all ranks must call its step() equally often before a commit"
            )
    if not division.complete:
        raise StateError(f"{name}: {_lost(thing, division.lost or division.cover.holes, stands)}")


def _lost(thing: Reconfigurable, holes: Sequence[Hole], stands: Sequence[Stand]) -> str:
    """What is lost, and whose it was: in the largest world that somebody still knows."""
    told = max(stands, key=lambda stand: stand.world_size)
    gone = sorted(set(range(told.world_size)) - {each.rank for each in stands if each.world_size == told.world_size})
    ends = {hole.name: hole.stop for hole in holes}
    owners = [rank for rank in gone if any(thing.wanted(ends, rank, told.world_size).values())]
    elements = sum(hole.stop - hole.start for hole in holes)
    what = (
        f"the state of {elements} elements is lost, [{holes[0].start}, {holes[0].stop}) of {holes[0].name!r}"
        f"{f' and {len(holes) - 1} more ranges' if holes[1:] else ''}: "
    )
    if not told.buddies:
        return what + _without_buddies(gone, told.world_size)
    pairs = ", ".join(f"{rank} (buddy {told.buddies[rank]})" for rank in owners if told.buddies[rank] in gone)
    if not pairs:
        return (
            f"{what}ranks {gone} of the world of {told.world_size} went while a state was being loaded, which had "
            "begun to overwrite the other copies of what they kept. Load the last checkpoint"
        )
    return (
        f"{what}ranks {gone} of the world of {told.world_size} went at once, and with them both copies of what rank "
        f"{pairs} held. Load the last checkpoint"
    )


def _without_buddies(gone: Sequence[int], world_size: int) -> str:
    if gone:
        why = f"ranks {gone} of the world of {world_size} went, and with them the only copy of what they held"
    else:
        why = "a step was interrupted while it wrote, and nobody has the state before it"
    return (
        f"{why}: this world was made with buddies=False. Load the last checkpoint; with buddies=True (the default) the "
        "loss of any one worker needs none"
    )


def gather(
    thing: Reconfigurable, division: Division, group: dist.ProcessGroup, holders: Sequence[int], into: Lot | None = None
) -> tuple[Lot, int]:
    """Gather what this rank is to hold; count the bytes sent and received here. `into`: shared tensors to fill, too."""
    rank = group.rank()
    lots = [lot for lot in thing.lots() if rank in holders and lot.version == division.version]
    own = division.outlines[rank].empty()
    filled = own if into is None else Lot(own.version, {**own.slices, **into.slices})
    return own, reshard_transfer.run(division.cover.gives, lots, filled, rank, group)


class Redivision:
    """Divides the state of all divided objects of a `State` anew, when a generation starts."""

    def __init__(self, parts: Mapping[str, DividedPart], group: dist.ProcessGroup) -> None:
        self._parts = parts
        self._group = group

    def prepare(self, stands: Sequence[Mapping[str, Stand]], sources: Sequence[int], holders: Sequence[int]) -> int:
        """Move everything aside, and mend shared tensors. Returns the bytes of slices sent and received here.

        Arguments as for `plan`, `stands` by rank and object. Collective. Raises StateError when slices are lost.
        """
        if {frozenset(each) for each in stands} - {frozenset(self._parts)}:
            raise StateError(
                f"State: the divided objects are {[sorted(each) for each in stands]} on the ranks; all must build the "
                "same ones"
            )
        return sum(
            self._prepare(part, [each[name] for each in stands], sources, holders) for name, part in self._parts.items()
        )

    def _prepare(
        self, part: DividedPart, stands: Sequence[Stand], sources: Sequence[int], holders: Sequence[int]
    ) -> int:
        thing, rank = part.thing, self._group.rank()
        for other, stand in enumerate(stands):
            if stand.layout != stands[0].layout:
                raise StateError(
                    f"{part.name}: rank {other} divides other parameters than rank 0; all ranks must build the same "
                    "objects, also those that join later"
                )
        try:
            division = plan(thing, stands, sources, holders)
            check(part.name, thing, division, stands, sources)
        except ResilinError:
            raise
        except (ValueError, TypeError, LookupError) as error:  # of names and numbers that are those of no such object
            raise StateError(
                f"{part.name}: what the ranks say that they hold of it does not fit together "
                f"({type(error).__name__}: {error!s:.200}); all ranks must build the same "
                "objects, in one version of resilin"
            ) from error
        shared = {name: tensor for name, tensor in thing.shared().items() if name in division.mend[rank]}
        whole = {name: Extent(0, one.numel(), one.numel(), one._array.dtype.name) for name, one in shared.items()}
        mended = Outline(division.version, whole).empty()
        own, moved = gather(thing, division, self._group, holders, mended)
        if shared:
            for name, tensor in shared.items():
                host_copies.write(tensor, mended.slices[name].array.reshape(tensor._array.shape))
                tensor._bump()
            thing.mended()
        thing.prepare(own, self._group)
        return moved

    def take_over(self) -> None:
        """Everybody has prepared: begin to work on that. Collective. StateError when an object did not take it over."""
        if not self._parts:
            return
        dist.barrier(group=self._group)
        for part in self._parts.values():
            expected = part.thing.take_over()
            _check_taken(part.name, expected, part.thing.lots())


def _check_taken(name: str, expected: Lot, lots: Sequence[Lot]) -> None:
    for lot in lots:
        if lot.version == expected.version and all(
            (got := lot.slices.get(key)) is not None
            and (got.start, got.array.dtype) == (one.start, one.array.dtype)
            and got.array.tobytes() == one.array.tobytes()
            for key, one in expected.slices.items()
        ):
            return
    raise StateError(
        f"{name}: after take_over() it does not give the slices that it was given for version {expected.version}"
    )
