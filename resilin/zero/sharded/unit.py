"""One unit: a row of parameters cut among the ranks, this rank's range of it, and whether the whole is here.

pieces      views of `shard`: this rank's range, which the optimizer updates
parameters  views of a slab while the whole row is here, else away (`unsharded_proxy.py`)
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from resilin.core.kernels.common import address_of
from resilin.core.tensor import Parameter, Tensor, wrap
from resilin.distributed import Work
from resilin.errors import UsageError
from resilin.resharding.state_slices import Piece
from resilin.zero import partition
from resilin.zero.sharded import unsharded_proxy
from resilin.zero.sharded.buffer_pool import Slab
from resilin.zero.sharded.wrap_policy import Members

Array = Any


class ShardedParameter(Parameter):
    """This rank's elements [start, start + numel) of a parameter of `logical_shape`, flat; none, often.

    What `named_parameters()` of a sharded module yields and optimizers update.
    """

    is_piece = True
    """Told to what needs whole gradients (norms, loss scaling, DistributedDataParallel), which refuses a piece."""
    logical_shape: tuple[int, ...]
    start: int
    unit: weakref.ref[Unit]
    place: int  # in the unit

    def divided(self, optimizer: Any) -> Any:
        """See `dist.reconfigurable.divided`: what knows the state of an optimizer of such pieces."""
        unit = self.unit()
        if unit is None or unit.state_of is None:
            raise UsageError(f"{self!r}: the module that it is a piece of is gone")
        return unit.state_of(optimizer)

    def drop_accumulated(self) -> None:
        """Forget the whole parameter's gradient, which `no_sync()` accumulated on this rank: part of `zero_grad`."""
        unit = self.unit()
        if unit is not None:
            unit.params[self.place]._grad = None

    def __repr__(self) -> str:
        held = f"[{self.start}, {self.start + self.numel()})"
        return f"<ShardedParameter elements {held} of {list(self.logical_shape)}, {self.dtype} on {self.device}>"


class _Member:
    """The home of one parameter of a unit, and of views of it."""

    def __init__(self, unit: Unit, name: str) -> None:
        self._unit, self._name = weakref.ref(unit), name

    def bring(self) -> None:
        """See away.Home."""
        unit = self._unit()
        if unit is None or unit.fetch is None:
            raise UsageError(f"parameter {self._name!r} was divided among ranks by zero.shard, and that module is gone")
        unit.fetch(unit, self._name)


class _View:
    """A tensor of the graph that looks into a unit's row."""

    __slots__ = ("at", "home", "shape", "strides", "tensor")

    def __init__(self, tensor: Tensor, row: Array, home: _Member) -> None:
        array = tensor._array
        self.tensor = weakref.ref(tensor)
        self.at = (address_of(array) - address_of(row)) // row.itemsize
        self.shape, self.strides, self.home = array.shape, array.strides, home


class Unit:
    """The parameters of one unit. dtype: of the pieces; `here_dtype`: of the gathered parameters.

    share:  elements of every rank's range, padding included, as in `partition`.
    active: calls of its modules' forward that are running.
    """

    def __init__(self, members: Members, index: int, here_dtype: Any, home_dev: Any) -> None:
        self.name, self.index, self.modules = members.name, index, members.modules
        self.names = [name for name, _ in members.named]
        self.params: list[Parameter] = [param for _, param in members.named]
        first = self.params[0]
        self.dev, self.home_dev = first._dev, home_dev
        self.dtype, self.here_dtype = first._array.dtype, here_dtype or first._array.dtype
        self.shapes = [param._array.shape for param in self.params]
        self.numels = [int(np.prod(shape, dtype=np.int64)) for shape in self.shapes]
        self.starts = [0, *itertools.accumulate(self.numels)]
        self.total = self.starts[-1]
        self.share = self.world = self.rank = 0  # set by `cut`
        self.shard: Array = None
        self.pieces: list[ShardedParameter] = []
        self.fetch: Any = None  # fetch(unit, name): brings it here, or says why not
        self.state_of: Any = None  # state_of(optimizer): the OptimizerState of an optimizer of these pieces
        self.slab: Slab | None = None  # where the whole row is, or is about to be
        self.coming: Work | None = None  # what fills the slab
        self.host: Array = None  # where it comes in on the host, when pieces are there and parameters elsewhere
        self.here = False
        self.active = 0
        self.gradients: Slab | None = None  # where ready gradients lie
        self.ready: set[int] = set()
        self.reduced = False  # in the backward that runs
        self._homes = [_Member(self, name) for name in self.names]
        self._views: list[_View] = []
        self._expected: frozenset[int] | None = None  # kept during a backward

    # ---- pieces ----------------------------------------------------------------------------------------------------

    def cut(self, rank: int, world: int, share: int, shard: Array) -> None:
        """Have this rank's range of rows of `share` elements in `shard`; pieces stay the tensors they are."""
        self.rank, self.world, self.share, self.shard = rank, world, share, shard
        self.pieces = [self._piece(number, piece) for number, piece in enumerate(self._ranges())]

    def _ranges(self) -> list[Piece]:
        within = range(min(self.rank * self.share, self.total), min((self.rank + 1) * self.share, self.total))
        mine = {piece.param: piece for piece in partition.pieces(self.numels, within)}
        return [mine.get(number, Piece(number, 0, 0)) for number in range(len(self.params))]

    def _piece(self, number: int, piece: Piece) -> ShardedParameter:
        low = self.starts[number] + piece.start - self.rank * self.share if piece.numel else 0
        view = wrap(self.shard[low : low + piece.numel], self.home_dev)
        if self.pieces:
            made = self.pieces[number]
            made.data, made._grad = view, None
        else:
            made = ShardedParameter(view, self.params[number]._rg)
            made.unit, made.place = weakref.ref(self), number
        made.logical_shape, made.start = tuple(self.shapes[number]), piece.start
        return made

    def spread(self, row: Array) -> list[Array]:
        """This rank's range `row` of something, as the pieces lie in it."""
        base = self.rank * self.share
        found = []
        for number, piece in enumerate(self.pieces):
            low = self.starts[number] + piece.start - base if piece.numel() else 0
            found.append(row[low : low + piece.numel()])
        return found

    @property
    def length(self) -> int:
        """Elements of the whole row, padding included."""
        return self.share * self.world

    @property
    def nbytes(self) -> int:
        """Bytes of the whole row as it is gathered."""
        return self.length * int(self.here_dtype.itemsize)

    def views(self, row: Array) -> list[Array]:
        """The parameters' arrays in a whole row."""
        return [
            row[start : start + numel].reshape(shape)
            for start, numel, shape in zip(self.starts, self.numels, self.shapes, strict=False)
        ]

    # ---- here and away ---------------------------------------------------------------------------------------------

    def appear(self, slab: Slab, dtype: Any = None) -> None:
        """The whole row lies in `slab`: parameters, and views of them that graphs keep, look into it."""
        row = slab.array(dtype or self.here_dtype, self.length)
        for param, array in zip(self.params, self.views(row), strict=True):
            _look(param, array)
        self.follow_pieces()
        for view in self._views:
            tensor = view.tensor()
            if tensor is not None:
                at = view.at * row.itemsize
                _look(tensor, np.ndarray(view.shape, row.dtype, slab.memory, at, view.strides))
        self.slab, self.here = slab, True

    def follow_pieces(self) -> None:
        """Parameters require gradients where their pieces do."""
        for param, piece in zip(self.params, self.pieces, strict=True):
            param._rg = piece._rg

    def vanish(self) -> Slab | None:
        """Send all parameters away. Gives the slab that they were in."""
        for number in range(len(self.params)):
            self.send(number)
        slab, self.slab, self.here = self.slab, None, False
        return slab

    def send(self, number: int) -> None:
        """Send one parameter away, and views of it that graphs keep."""
        start, stop = self.starts[number], self.starts[number + 1]
        home = self._homes[number]
        if not unsharded_proxy.is_away(self.params[number]):
            unsharded_proxy.send(self.params[number], home, self.shapes[number], self.here_dtype)
        for view in self._views:
            tensor = view.tensor()
            if tensor is not None and start <= view.at < stop and not unsharded_proxy.is_away(tensor):
                unsharded_proxy.send(tensor, view.home, view.shape, self.here_dtype)

    def track(self, tensor: Tensor) -> None:
        """A graph keeps `tensor`, which looks into this unit's slab."""
        assert self.slab is not None, "only what is here is looked into"
        row = self.slab.array(self.here_dtype, self.length)
        at = (address_of(tensor._array) - address_of(row)) // row.itemsize
        number = next((n for n, stop in enumerate(self.starts[1:]) if at < stop), len(self.params) - 1)
        self._views = [view for view in self._views if view.tensor() is not None]
        self._views.append(_View(tensor, row, self._homes[number]))

    def lookers(self) -> int:
        """How many arrays that this unit knows of look into its slab."""
        arrays = {id(param._array) for param in self.params if not unsharded_proxy.is_away(param)}
        for view in self._views:
            tensor = view.tensor()
            if tensor is not None and not unsharded_proxy.is_away(tensor):
                arrays.add(id(tensor._array))
        return len(arrays)

    def trained(self) -> frozenset[int]:
        """The numbers of the parameters that are trained now."""
        return frozenset(number for number, piece in enumerate(self.pieces) if piece._rg)

    def expected(self) -> frozenset[int]:
        """The numbers of the parameters that get a gradient in the backward that runs."""
        if self._expected is None:
            self._expected = self.trained()
        return self._expected

    def is_complete(self) -> bool:
        """Whether all gradients of a backward are ready."""
        expected = self.expected()
        return len(self.ready) >= len(expected) and self.ready >= expected

    def begin_again(self) -> None:
        """No gradient is ready: a backward has ended."""
        self.gradients, self.ready, self.reduced, self._expected = None, set(), False, None

    def forget(self) -> None:
        """As before any pass. What was under way is given up; only collectives behind it get its memory.

        Not waited for: what ranks differ in may be that others never fetch this unit.
        """
        self.coming = self.host = None
        self.active = 0
        self.begin_again()
        self._views = []
        for param in self.params:
            param._grad = None

    def tensor(self, array: Array, home: bool = False) -> Tensor:
        """A tensor over `array`, for collectives; home: on the device of the pieces."""
        return wrap(array, self.home_dev if home else self.dev)


def _look(tensor: Tensor, array: Array) -> None:
    if unsharded_proxy.is_away(tensor):
        unsharded_proxy.back(tensor, array)
    else:
        tensor._array = array


def shares(units: Sequence[Unit], world: int) -> list[int]:
    """The elements of every rank's range, for each unit: no two alike.

    So ranks that compute different units (their forwards took different ways) get CollectiveMismatch from their
    collectives, not the numbers of each other's parameters.
    """
    taken: set[int] = set()
    found = []
    for unit in units:
        share = partition.share(unit.total, world)
        while share in taken:
            share += partition.BLOCK
        taken.add(share)
        found.append(share)
    return found
