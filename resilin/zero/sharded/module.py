"""`ShardedModule`: what `zero.shard` returns, a module of which each rank holds its pieces."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

import resilin.distributed as dist
from resilin.core import trees
from resilin.core.autograd import engine
from resilin.core.autograd.grad_mode import mode
from resilin.core.dtype import dtype
from resilin.core.tensor import Parameter, Tensor
from resilin.distributed.agreement import compare
from resilin.distributed.agreement.broadcast import broadcast_tensors
from resilin.errors import UsageError
from resilin.nn import Module
from resilin.nn.modules.state import IncompatibleKeys
from resilin.optim import Optimizer
from resilin.resharding.survivor import Survivor, hand_over
from resilin.shards.block import Shard, computing
from resilin.zero.sharded import clipping, flatten, states
from resilin.zero.sharded.buffer_pool import Slab
from resilin.zero.sharded.elastic_state import Life, Seats
from resilin.zero.sharded.fixed_shards import Rounds
from resilin.zero.sharded.grad_reduce import Reducing
from resilin.zero.sharded.mixed_precision import MixedPrecisionPolicy
from resilin.zero.sharded.optimizer_state import OptimizerState
from resilin.zero.sharded.reduce_scatter import Averaging
from resilin.zero.sharded.unit import Unit
from resilin.zero.sharded.unshard import Fetcher


class ShardedModule(Module):
    """A module whose parameters' gradients (stage 2) and values (stage 3) are divided among the ranks of a group.

    Made by `zero.shard`. Call it as the module itself. `parameters()` and `named_parameters()` give this rank's pieces,
    under the names that the module's parameters have: flat tensors, for an optimizer whose update is elementwise.
    `module` is what was sharded; its parameters can be read inside forward and backward, and inside `gathered()`.
    """

    def __init__(
        self,
        module: Module,
        units: Sequence[Unit],
        group: dist.ProcessGroup | None,
        stage: int,
        precision: MixedPrecisionPolicy,
        broadcast_buffers: bool,
        find_unused: bool,
        buddies: bool,
        movable: bool,
        shards: int | None,
    ) -> None:
        super().__init__()
        self.module = module
        self.stage = stage
        self._process_group = group
        self.require_backward_grad_sync = True
        self._units, self._precision, self._broadcast_buffers = list(units), precision, broadcast_buffers
        self._by_name = {name: (unit, n) for unit in units for n, name in enumerate(unit.names)}
        self._order = [self._by_name[name] for name, _ in module.named_parameters()]
        self._fetcher = Fetcher(units, group, keep=stage == 2)
        self.shards = shards
        self._rounds = None if shards is None else Rounds(module, self._fetcher, shards)
        reduce_dtype = precision.reduce_dtype
        self._reducing = Reducing(
            self._fetcher,
            self._rounds or Averaging(self._fetcher, find_unused),
            find_unused=find_unused,
            reduce_dtype=None if reduce_dtype is None else reduce_dtype.np,
        )
        self._fetcher.begin = self._begin
        for unit in units:
            unit.state_of = functools.partial(OptimizerState, self)
        self._movable = movable
        self.life = self._new_life(buddies)

    def _new_life(self, buddies: bool) -> Life:
        return Life(self, Seats(self._units, self._order), self._place(), buddies)

    @property
    def reconfigurable(self) -> Survivor:
        """See `dist.reconfigurable.Divided`."""
        return self.life.module

    def _place(self) -> tuple[int, int]:
        return (0, 1) if self._process_group is None else (self._process_group.rank(), self._process_group.size())

    @property
    def group(self) -> dist.ProcessGroup | None:
        """The ranks that the module is divided among; None: made without any, for elastic.run."""
        return self._process_group

    @property
    def process_group(self) -> dist.ProcessGroup:
        """The ranks that the module is divided among. UsageError when there was no group to begin with."""
        if self._process_group is None:
            raise UsageError(
                "zero.shard: there was no process group when the module was sharded; call "
                "resilin.distributed.init_process_group() first, pass process_group, or register the sharded module "
                "and its optimizer in elastic.State, and use them inside elastic.run"
            )
        return self._process_group

    def follower(self, optimizer: Optimizer) -> Survivor:
        """What lives on of an optimizer of pieces, when the world changes."""
        return self.life.follower(optimizer)

    @property
    def units(self) -> Sequence[Unit]:
        """What is gathered together."""
        return self._units

    @property
    def keep(self) -> flatten.Keep | None:
        """Stage 2: where the memory of whole rows is kept."""
        return self._fetcher.keep_in if self.stage == 2 else None

    def watch(self) -> None:
        """Run the forward of each unit's modules with the unit here, and follow gradients. Once."""
        users: dict[Module, list[Unit]] = {self.module: []}
        for unit in self._units:
            for module in unit.modules:
                users.setdefault(module, []).append(unit)
        for module, used in users.items():
            _replace_forward(module, self._fetcher, used)
        for part in (self, *self.module.modules()):
            if part is self or next(part.parameters(), None) is not None:
                object.__setattr__(part, "__deepcopy__", _refuse_copy)
                object.__setattr__(part, "__reduce_ex__", _refuse_copy)  # pickle asks the object, not its class
        self._reducing.listen()

    def stepping(self, optimizer: Optimizer) -> None:
        """`optimizer` is about to write the pieces, with a state that is compared if it has not been."""
        self._fetcher.steps.begin(optimizer)

    def stepped(self, optimizer: Optimizer) -> None:
        """`optimizer` has written the pieces, with options that what the ranks exchange next compares over them."""
        self._fetcher.steps.add(optimizer)
        self.changed()

    def changed(self) -> None:
        """Pieces are new: graphs that saved parameters are out of date, and so are stage 2's rows."""
        for unit in self._units:
            for param in unit.params:
                param._bump()
        if self.stage == 2:
            self._fetcher.stale()

    # ---- forward ---------------------------------------------------------------------------------------------------

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's forward."""
        cast = self._precision.param_dtype if self._precision.cast_forward_inputs else None
        if cast is not None:
            args, kwargs = _cast((args, kwargs), cast)
        output = self.module(*args, **kwargs)
        return output if self._precision.output_dtype is None else _cast(output, self._precision.output_dtype)

    def _begin(self) -> None:
        group = self.process_group
        if mode.grad:
            self._reducing.sync = self.require_backward_grad_sync
        if self._rounds is not None:
            self._rounds.check_forward(self.training)
        elif self.training and mode.grad and self._broadcast_buffers and self.require_backward_grad_sync:
            broadcast_tensors([buffer for _, buffer in self.module.named_buffers()], group)
        if self.stage == 2:
            self._fetcher.prepare_all()

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Gradients of forwards inside the block stay whole on this rank and add up; the next outside reduces them."""
        if self._rounds is not None:
            raise UsageError(
                "no_sync() has no meaning with shards=...: each shard's gradient is reduced by itself. For larger "
                "batches give the sampler a larger batch_size, or leave zero_grad() out between steps"
            )
        before = self.require_backward_grad_sync
        self.require_backward_grad_sync = False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    def shard(self, shard: Shard) -> contextlib.AbstractContextManager[None]:
        """Fixed shards: compute one shard of the step inside the block.

            for shard in plan.shards:        # of an ElasticSampler(..., shards=V, in_rounds=True)
                with model.shard(shard):
                    loss = loss_fn(model(x[shard.indices]), y[shard.indices])
                    loss.backward()
            optimizer.step()

        As `DistributedDataParallel.shard`: random draws are a function of (seed, step, shard, call), float buffers
        start from their values at the step's beginning, and the shard's gradient is multiplied by `shard.weight` and
        summed along one binary tree over shard numbers. So pieces get their ranges of what DistributedDataParallel
        with as many shards gives, to the bit, on any number of ranks. A rank enters every one of its shards, in order,
        with one backward in each, also those that do not count (`shard.counts`). The pieces' gradients, and buffers,
        are there after the last one.
        """
        if self._rounds is None:
            raise UsageError("shard() needs zero.shard(..., shards=V) with the sampler's number of shards")
        return computing(self._rounds, shard)

    @property
    def steps_in_gradients(self) -> set[int]:
        """The sampler's steps that were summed into the gradients by the last step in fixed shards."""
        return set() if self._rounds is None else self._rounds.steps_in_gradients

    def check_complete(self, what: str) -> None:
        """UsageError when gradients are used before all of a step's shards are in them; what: by whom."""
        if self._rounds is not None:
            self._rounds.check_complete(what)

    @contextlib.contextmanager
    def gathered(self, writeback: bool = True) -> Iterator[Module]:
        """Inside, all parameters of `module` are here, whole, in the pieces' dtype. All ranks enter together.

        writeback: what was written to them is kept: each rank takes its own range, so all ranks must write the same.
        Yields the module, whose forward cannot run meanwhile. Cost: memory for all parameters.
        """
        if self._fetcher.depth or engine.outermost() is not None or self._fetcher.open:
            raise UsageError("gathered(): not inside forward, backward or another gathered()")
        self._compare_steps()
        self._fetcher.stale()
        self._fetcher.open = True
        try:
            for unit in self._units:
                row = flatten.gathered_whole(unit, self._process_group)
                if unit.home_dev is not unit.dev:
                    row = unit.dev.backend.from_host(row, unit.dev.index or 0)
                unit.appear(Slab(row.view(np.uint8)), unit.dtype)
            yield self.module
            if writeback:
                self._write_back()
        finally:
            self._fetcher.open = False
            for unit in self._units:
                unit.vanish()

    def _write_back(self) -> None:
        self.reconfigurable.before_update()
        for unit in self._units:
            assert unit.slab is not None, "all units are here"
            row = unit.slab.array(unit.dtype, unit.length)
            mine = row[unit.rank * unit.share : (unit.rank + 1) * unit.share]
            unit.shard[...] = mine if unit.home_dev is unit.dev else unit.dev.backend.to_host(mine)
            for piece in unit.pieces:
                piece._bump()
        hand_over([self.reconfigurable])

    # ---- parameters ------------------------------------------------------------------------------------------------

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """This rank's pieces with the names of the module's parameters, in order of registration; some are empty.

        `piece.logical_shape` is the parameter's shape.
        """
        for unit, number in self._order:
            yield f"{prefix}.{unit.names[number]}" if prefix else unit.names[number], unit.pieces[number]

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """The module's buffers, which are not divided."""
        return self.module.named_buffers(prefix, recurse, remove_duplicate)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget every piece's gradient, or set it to zero in place; and what `no_sync()` accumulated on this rank."""
        super().zero_grad(set_to_none)
        for unit, number in self._order:
            unit.pieces[number].drop_accumulated()

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False) -> Tensor:
        """Scale all gradients so that their norm, over all ranks and as one vector, is at most `max_norm`.

        Returns the norm before, the same bits on all ranks, and of the same gradients in any world. All ranks call it.
        Order of summation: squares (or powers) in float64 along a binary tree over each unit's elements, then the units
        in their order; `nn.utils.clip_grad_norm_` sums float32 norms of whole tensors, so the two agree to about 1e-6.
        The factor is max_norm / (norm + 1e-6), at most 1. Raises CollectiveMismatch on all ranks when they give
        different arguments.
        """
        self.check_complete("clip_grad_norm_()")
        return clipping.clip_grad_norm_(self._units, max_norm, norm_type, error_if_nonfinite, self.process_group)

    # ---- state -----------------------------------------------------------------------------------------------------

    def state_dict(
        self, *, destination: Any = None, prefix: str = "", keep_vars: bool = False, rank0_only: bool = False
    ) -> dict[str, Any]:
        """The state of the module as it would be without sharding: whole tensors, on every rank. All ranks call it.

        rank0_only: on the other ranks an empty dict, at no cost of memory. Tensors are copies: `keep_vars` is refused.
        """
        if keep_vars or destination is not None:
            raise UsageError(
                "state_dict of a sharded module: whole tensors are copies, so keep_vars and destination have no meaning"
            )
        self._settled("state_dict()")
        self._compare_steps()
        return states.whole(self.module, self._units, self._process_group, prefix, rank0_only)

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> IncompatibleKeys:
        """Take over the state of a module without sharding, or of one sharded otherwise: this rank copies its ranges.

        state_dict: whole tensors, or `checkpoint.Sliced` and the like that cover this rank's ranges.
        Raises UsageError that lists all missing and unexpected names (strict) and shapes that differ; nothing is loaded
        then.
        """
        if assign:
            raise UsageError("load_state_dict of a sharded module: assign=True would replace pieces by whole tensors")
        self._settled("load_state_dict()")
        self.reconfigurable.before_update(overwritten=True)
        keys = states.load(self.module, self._units, state_dict, strict)
        self._fetcher.stale()
        hand_over([self.reconfigurable])
        return keys

    def sharded_state_dict(self) -> dict[str, Any]:
        """As `state_dict()`, with this rank's ranges of the parameters as `checkpoint.Sliced`; no communication.

        They share memory with the pieces.
        """
        self._settled("sharded_state_dict()")
        return states.sliced(self.module, self._units)

    def load_sharded_state_dict(self, tree: Mapping[str, Any]) -> None:
        """Take over what `sharded_state_dict` gave, on any number of ranks: slices of any cut that cover this one."""
        self.load_state_dict(tree)

    def reshard(self, process_group: dist.ProcessGroup) -> None:
        """Go on with another group: after a failure, or when ranks came or went. All its ranks call it.

        Pieces stay the tensors they are, cut anew for its size; gradients are forgotten. Where rank and size are as
        before values stay, elsewhere they are NaN until `load_state_dict` or `load_sharded_state_dict` fills them.
        """
        if self.reconfigurable.group is not None:
            raise UsageError("reshard(): inside elastic.run a registered module is divided anew with every new world")
        old = self._place()
        self._process_group = process_group
        self._fetcher.use(process_group)
        self.life = self._new_life(self.life.buddies)
        if old != self._place():
            flatten.cut(self._units, *self._place(), self.keep, filled=False)

    def recut(self, group: dist.ProcessGroup) -> None:
        """Drop what is under way, and have this rank's pieces in `group`, with values that nobody must use."""
        if not self._movable:
            raise UsageError(
                "zero.shard: made with process_group=..., but elastic.run makes a new group for every generation: "
                "leave it out"
            )
        self._process_group = group
        self._fetcher.use(group)
        flatten.cut(self._units, *self._place(), self.keep, filled=False)
        self.changed()

    def _settled(self, what: str) -> None:
        if self._fetcher.depth or engine.outermost() is not None or self._fetcher.open:
            raise UsageError(f"{what} of a sharded module: not inside forward, backward or gathered()")

    def _compare_steps(self) -> None:
        """CollectiveMismatch, on all ranks, when the last steps were others on some: no forward may follow."""
        self._agree(self._fetcher.steps.take(self._units))

    def compare_groups(self, optimizer: Optimizer) -> None:
        """CollectiveMismatch, on all ranks, when `optimizer` has parameters in other groups on some. A collective."""
        self._agree(self._fetcher.steps.groups(optimizer))

    def _agree(self, facts: compare.Facts) -> None:
        group = self._process_group
        if group is not None and group.size() > 1:
            compare.agree(facts, group)

    # ---- facts -----------------------------------------------------------------------------------------------------

    def stats(self) -> Mapping[str, Any]:
        """Units with their bytes, units fetched so far, backwards reduced, seconds that backward waited at its end."""
        return {
            "stage": self.stage,
            "world_size": self._place()[1],
            "rank": self._place()[0],
            "units": {unit.name or "(root)": unit.nbytes for unit in self._units},
            "piece_bytes": sum(unit.share * int(unit.dtype.itemsize) for unit in self._units),
            "fetched": self._fetcher.fetched,
            **({} if self.shards is None else {"shards": self.shards}),
            "backwards": self._reducing.backwards,
            "wait_s": self._reducing.wait_s,
            **self.reconfigurable.stats(),
        }

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> NoReturn:
        raise UsageError(
            "a sharded module cannot be moved or converted: its parameters lie in rows that are cut among the ranks. "
            "Convert the module before zero.shard, or use mixed_precision"
        )


def _refuse_copy(_how: Any) -> NoReturn:
    raise UsageError(
        "a sharded module cannot be copied or pickled: its parameters are divided, and its forward gathers them. Make "
        "a module as the first one was made, and load model.state_dict() into it"
    )


def _replace_forward(module: Module, fetcher: Fetcher, units: list[Unit]) -> None:
    inner = module.forward

    @functools.wraps(inner)
    def forward(*args: Any, **kwargs: Any) -> Any:
        return fetcher.calling(units, inner, args, kwargs)

    object.__setattr__(module, "forward", forward)


def _cast(value: Any, to: dtype) -> Any:
    leaves, tree = trees.flatten(value)
    cast = [leaf.to(to) if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf for leaf in leaves]
    return trees.unflatten(cast, tree)
