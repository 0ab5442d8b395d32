"""`DistributedDataParallel`: the module that the user calls."""

from __future__ import annotations

import contextlib
import copy
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import resilin.distributed as dist
from resilin._base import trace
from resilin.core.autograd.grad_mode import mode
from resilin.core.tensor import Tensor
from resilin.ddp import arguments, averaging, buckets, errors, graph, join, module_sync, placement
from resilin.ddp.arguments import DDPOptions
from resilin.ddp.flat_buffer import listen, specs_of
from resilin.ddp.grad_bucket import Hook
from resilin.ddp.logging_data import logging_data
from resilin.ddp.mixed_precision import Precision, _MixedPrecision
from resilin.ddp.reducer import Reducer
from resilin.ddp.shard_reducer import ShardReducer
from resilin.ddp.timings import now
from resilin.distributed.agreement.broadcast import broadcast_tensors
from resilin.errors import UsageError
from resilin.nn import Module, SyncBatchNorm
from resilin.shards.block import Shard, computing

_NOT_COPIED = ("process_group", "_join_config", "_comm_hook", "_reducer", "_sharder", "_stop")
_attached: weakref.WeakKeyDictionary[Module, weakref.ref[DistributedDataParallel]] = weakref.WeakKeyDictionary()


class DistributedDataParallel(Module, join.UnevenInputs):
    """Trains copies of `module` on all ranks of a group: gradients are averaged while backward runs.

    After `loss.backward()` every rank's `p.grad` is the mean over the ranks of their gradients, the same bits on all
    ranks; each element is summed along one fixed path.

    module:        parameters and buffers are made equal to those of rank 0 (`init_sync`); a module that is wrapped
                   again (as in each generation of `elastic.run`) leaves its former wrapper.
    device_ids, output_device:  of a module on one device that is not the CPU: `[that device]`, to which tensors in the
                            inputs are moved (numbers are of the module's type of device), and where outputs are moved
                            to, by default the same. None: inputs are passed as they are, as for modules on the CPU or
                            on several devices.
    broadcast_buffers, forward_sync_buffers: buffers are made equal to rank 0's before each forward in training mode.
                            broadcast_buffers=False leaves them apart from the start.
    init_sync:              False: the caller knows that shapes and values are equal already.
    process_group:          default: the world.
    bucket_cap_mb, bucket_cap_mb_list: gradients are reduced in flat arrays of about so many MiB (25), or of each of
                            the list's sizes in turn. They are made in the order of the first backward.
    find_unused_parameters: True: parameters outside the graph count as zero; they keep grad None if no rank used them.
    gradient_as_bucket_view: gradients are views of the flat arrays: nothing is copied. False: separate tensors.
    static_graph:           the graph is the same in every step: unused parameters, and those that get several
                            gradients (reentrant checkpoints), are found once, in the first.
    skip_all_reduce_unused_params: flat arrays that no gradient of this backward lies in are not reduced; the
                            parameters used must be the same on all ranks, which each backward compares.
    delay_all_reduce_named_params, param_to_hook_all_reduce: the former's gradients are reduced after the latter's.
    mixed_precision:        a `_MixedPrecision`: forward and backward in a smaller dtype.
    lazy_bucket_allocation: changes nothing: flat arrays are made in the first backward.
    shards:                 fixed-shard mode, see `shard`: the same bits for any number of ranks.

    Raises UsageError for arguments without a meaning here and modules without parameters, UsageTypeError for flags that
    are neither True nor False, CollectiveMismatch (on all ranks) when ranks wrap different modules; it names the
    parameter and both shapes. Where a rank refuses its arguments the others raise an error of the same class
    that names it and its reason.
    """

    def __init__(
        self,
        module: Module,
        device_ids: Sequence[Any] | None = None,
        output_device: Any = None,
        dim: int = 0,
        broadcast_buffers: bool | None = None,
        init_sync: bool = True,
        process_group: dist.ProcessGroup | None = None,
        bucket_cap_mb: float | None = None,
        find_unused_parameters: bool = False,
        check_reduction: bool = False,
        gradient_as_bucket_view: bool = True,
        static_graph: bool = False,
        delay_all_reduce_named_params: Sequence[tuple[str, Tensor]] | None = None,
        param_to_hook_all_reduce: Tensor | None = None,
        mixed_precision: _MixedPrecision | None = None,
        device_mesh: Any = None,
        skip_all_reduce_unused_params: bool = False,
        bucket_cap_mb_list: Sequence[float] | None = None,
        batched_grad_copy: bool = False,
        forward_sync_buffers: bool | None = None,
        lazy_bucket_allocation: bool = False,
        *,
        shards: int | None = None,
    ) -> None:
        super().__init__()
        join.UnevenInputs.__init__(self)
        with module_sync.propagating(process_group, init_sync):
            flags = arguments.Flags(
                broadcast_buffers=broadcast_buffers,
                init_sync=init_sync,
                find_unused_parameters=find_unused_parameters,
                check_reduction=check_reduction,
                gradient_as_bucket_view=gradient_as_bucket_view,
                static_graph=static_graph,
                skip_all_reduce_unused_params=skip_all_reduce_unused_params,
                batched_grad_copy=batched_grad_copy,
                forward_sync_buffers=forward_sync_buffers,
                lazy_bucket_allocation=lazy_bucket_allocation,
            )
            arguments.check(module, dim, device_mesh, flags.batched_grad_copy)
            arguments.warn_of(flags)
            group = arguments.group_of(process_group)
            self.module, self.process_group = module, group
            self.dim = dim
            self.find_unused_parameters, self.static_graph = flags.find_unused_parameters, flags.static_graph
            self.gradient_as_bucket_view = flags.gradient_as_bucket_view
            buffers_too, self.broadcast_buffers = arguments.buffer_syncs(flags)
            self.require_backward_grad_sync = True
            self.shards = shards
            _leave_former(module)
            named = arguments.trained(module, DistributedDataParallel)
            self._place(placement.of(module, device_ids, output_device))
            self._options = DDPOptions(
                caps=arguments.caps(bucket_cap_mb, bucket_cap_mb_list),
                as_view=flags.gradient_as_bucket_view,
                find_unused=flags.find_unused_parameters,
                static=flags.static_graph,
                skip_unused=flags.skip_all_reduce_unused_params,
                **arguments.delayed(named, delay_all_reduce_named_params, param_to_hook_all_reduce),
            )
            self.bucket_bytes_cap = self._options.caps[-1]
            self._precision = None if mixed_precision is None else Precision(module, mixed_precision)
        self._beside = True  # whether buckets are reduced while backward runs
        if flags.init_sync and group.size() > 1:
            self._make_equal(buffers_too)
        self._sync_batch_norm = group.size() > 1 and any(isinstance(part, SyncBatchNorm) for part in module.modules())
        self._frozen = [(name, param) for name, param in module.named_parameters() if not param.requires_grad]
        self._attach(named)

    def _place(self, placed: placement.Placement) -> None:
        """Tell where the module is, under PyTorch's names."""
        self._placement = placed
        self.device, self.device_type, self.is_multi_device_module = placed.first, placed.first.type, placed.several
        self.device_ids, self.output_device = placed.device_ids, placed.output_device

    def _make_equal(self, buffers_too: bool) -> None:
        tensors = [*self.module.named_parameters(), *(self.module.named_buffers() if buffers_too else ())]
        told = module_sync.check_equal(
            tensors, self._settings(), self.process_group, averaging.overlaps(self.process_group)
        )
        self._beside = all(told)  # one answer for all: other collectives of a backward must stay in the same order
        broadcast_tensors([tensor for _, tensor in tensors], self.process_group)

    def _settings(self) -> dict[str, str]:
        """The arguments on which collectives depend, as text."""
        options = self._options
        found = {
            "shards": self.shards,
            "bucket_cap_mb": [cap / (1 << 20) for cap in options.caps],
            "find_unused_parameters": options.find_unused,
            "static_graph": options.static,
            "skip_all_reduce_unused_params": options.skip_unused,
            "delay_all_reduce_named_params": sorted(options.late),
            "param_to_hook_all_reduce": options.until,
            "forward_sync_buffers": self.broadcast_buffers,
            "mixed_precision": None if self._precision is None else self._precision.policy,
            "devices": self._placement.describe(),
        }
        return {name: str(value) for name, value in found.items()}

    def _attach(self, named: arguments.Named) -> None:
        """Follow the gradients of the module's parameters `named`."""
        self._comm_hook: Hook | None = None
        self._reducer: Reducer | None = None
        self._sharder: ShardReducer | None = None
        self._stop: Callable[[], None] | None = None
        if self.shards is not None:
            plan = buckets.assign(specs_of(named), self._options.caps)
            self._sharder = ShardReducer(
                self.module, named, plan, self.process_group, self.shards, self.find_unused_parameters
            )
            self._listen(named, self._sharder)
        elif self.process_group.size() > 1:
            self._attach_reducer(named)
        if self._precision is not None and self._precision.hook is not None:
            self.register_comm_hook(self.process_group, self._precision.hook)
        _attached[self.module] = weakref.ref(self)

    def _attach_reducer(self, named: arguments.Named) -> Reducer:
        self._reducer = Reducer(named, self.process_group, self._options, self._beside)
        self._listen(named, self._reducer)
        return self._reducer

    def _listen(self, named: arguments.Named, listener: Reducer | ShardReducer) -> None:
        params = [param for _, param in named]
        self._stop = weakref.finalize(self, listen(params, listener))  # runs once: here, or when this wrapper is gone

    def detach(self) -> None:
        """Leave the module: its backward is its own again. Done for you when the module is wrapped again."""
        if self._stop is not None:
            self._stop()
            self._stop = None
        if self._sharder is not None:
            self._sharder.drop()

    # ------------------------------------------------------------------ copies

    def __deepcopy__(self, memo: dict[int, Any]) -> DistributedDataParallel:
        """A wrapper of its own around a copy of the module, in the same group. It does not communicate, and has no
        communication hook."""
        made: DistributedDataParallel = type(self).__new__(type(self))
        memo[id(self)] = made
        made._become(copy.deepcopy(self._content(), memo), self.process_group)
        return made

    def __getstate__(self) -> dict[str, Any]:
        """For pickle, as in PyTorch: without the group and the communication hook. UsageError unless the group is the
        default one, which `__setstate__` takes where it is read."""
        if not dist.is_initialized() or self.process_group is not dist.default_group():
            raise UsageError(
                "DistributedDataParallel: it can be pickled with the default process group only, which is the one that "
                "it gets where it is read; save its state_dict(), or pickle its module"
            )
        return self._content()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._become(state, arguments.group_of(None))

    def _content(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in _NOT_COPIED}

    def _become(self, content: dict[str, Any], group: dist.ProcessGroup) -> None:
        super().__setstate__(content)
        join.UnevenInputs.__init__(self)
        self.process_group = group
        self._attach(arguments.trained(self.module, DistributedDataParallel))

    # ------------------------------------------------------------------ forward

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's forward, with buffers made equal before it and backward prepared after it."""
        if self._sharder is not None and mode.grad and self.training and not self._sharder.active:
            raise UsageError(
                "DistributedDataParallel(shards=...): a forward that records gradients needs "
                "`with model.shard(shard):` around it; evaluate under no_grad() or in eval mode"
            )
        records, sync = mode.grad, self.require_backward_grad_sync
        broadcasts = sync and self.broadcast_buffers and self.training and self._sharder is None
        lead, scale, joined = 0, 1.0, self._join_config.enable
        if joined and (records or self.training):
            lead, scale = join.announce(self, broadcasts, records and sync)
        if broadcasts:
            self._broadcast_buffers(lead)
        reducer = self._reducer
        if reducer is None or not records:
            return self._call(args, kwargs)
        if self._frozen and any(param._rg for _, param in self._frozen):
            errors.refuse_unfrozen(self.process_group, self._frozen)
        begin = now()
        output = self._call(args, kwargs)
        reducer.timings.forward(begin)
        if sync and self.find_unused_parameters and not self.static_graph:
            found = list(graph.tensors(output))
            reducer.prepare(sync, graph.reachable(found), lead, scale, found, once=joined)
        else:
            reducer.prepare(sync, None, lead, scale, once=joined)
        return output

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        args, kwargs = self._placement.enter(args, kwargs)
        output = self.module(*args, **kwargs) if self._precision is None else self._precision(args, kwargs)
        return self._placement.leave(output)

    def _broadcast_buffers(self, lead: int) -> None:
        held = [buffer for _, buffer in self.module.named_buffers()]
        if held and self.process_group.size() > 1:
            with trace.span("ddp.broadcast_buffers", trace.SpanKind.COLLECTIVE):
                broadcast_tensors(held, self.process_group, lead)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Gradients of forwards inside the block accumulate on this rank only; the next outside reduces them all."""
        if self._sharder is not None:
            raise UsageError("no_sync() has no meaning with shards=...: gradients are reduced once per step anyway")
        before = self.require_backward_grad_sync
        self.require_backward_grad_sync = False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    def prepare_for_backward(self, reduce: bool) -> None:
        """Have the next backward reduce gradients, or accumulate them on this rank: whatever forward was the last.

        For what runs forwards and backwards in another order than one after the other, as pipelines do.
        """
        if self._reducer is not None:
            self._reducer.reduce_next(reduce)

    def shard(self, shard: Shard) -> contextlib.AbstractContextManager[None]:
        """Fixed-shard mode: compute one shard of the step inside the block.

            for shard in plan.shards:
                with model.shard(shard):
                    loss = loss_fn(model(x[shard.indices]), y[shard.indices])
                    loss.backward()
            optimizer.step()

        Inside, random draws are a function of (seed, step, shard, call) and float buffers start from their values at
        the step's beginning. The shard's gradient is multiplied by `shard.weight` (its share of the step's samples) and
        summed along one binary tree over shard numbers, so the result has the same bits for any number of ranks. A rank
        enters every one of its shards, in order, also those without samples (no forward needed there). Gradients and
        buffers are complete after the last one.

        Models that are trained together have their blocks open together, `with a.shard(shard), b.shard(shard):`, before
        the backward; UsageError where one is opened inside another after that.
        """
        if self._sharder is None:
            raise UsageError("shard() needs DistributedDataParallel(..., shards=V) with the sampler's number of shards")
        return computing(self._sharder, shard)

    # ------------------------------------------------------------------ extras

    def register_comm_hook(self, state: Any, hook: Hook) -> None:
        """Reduce buckets with `hook(state, bucket: GradBucket) -> Future[Tensor]` instead of the averaging all-reduce.

        UsageError when one is registered already (mixed_precision has one of its own), when `hook` cannot be called
        with two arguments or is annotated with other types, with shards, or after the first backward that reduced, in
        which ranks compare their hooks; UsageTypeError for a state of another class than a built-in hook's. A program
        that goes on after that has all ranks raise CollectiveMismatch in the first backward that reduces, unless all
        refused theirs.
        """
        try:
            self._check_hook(state, hook)
        except UsageError as error:
            if self._reducer is not None:
                self._reducer.refuse_hook(str(error))
            raise
        self._comm_hook = hook
        if self._reducer is None:  # a world of one reduces nothing, but the hook must see every bucket
            self._attach_reducer(arguments.trained(self.module, DistributedDataParallel))
        assert self._reducer is not None, "attached above"
        self._reducer.set_hook(state, hook)

    def _check_hook(self, state: Any, hook: Any) -> None:
        arguments.check_hook("register_comm_hook", hook)
        arguments.check_state("register_comm_hook", hook, state)
        if self._sharder is not None:
            raise UsageError("register_comm_hook: fixed-shard mode sums along its own tree; use shards=None with hooks")
        if self._comm_hook is not None:
            raise UsageError("register_comm_hook: a hook is registered already; it can be set once")
        if self._reducer is not None and self._reducer.has_buckets:
            raise UsageError(
                "register_comm_hook: a backward of this model has reduced its gradients already, which is where ranks "
                "compare their hooks; register before the first backward, or wrap the module again, on all ranks"
            )

    def stats(self) -> Mapping[str, Any]:
        """What this rank did since construction. Seconds are sums over `backwards`; with "last_" before the name, those
        of the last one.

        backwards:         reductions so far. rebuilt: whether buckets follow the order of the first backward.
        bucket_bytes, bucket_parameters:  of each bucket, in the order of their reduction; empty before the first.
        forward_s:         in the module's forward.
        backward_s:        from the end of forward to the last gradient: loss and backward.
        communication_s:   in which some bucket was on its way, also while backward ran. exposed_s: of that, after the
                           last gradient. overlap: the share that was not exposed.
        wait_s:            from the last gradient to the end of backward: what reducing costs, but for the cores that it
                           takes from backward.
        traffic:           what the collectives of gradients carried, see `Traffic`.
        With shards: "shards", "own_shards", "steps", "bucket_bytes" and "wait_s" only.
        """
        part = self._reducer or self._sharder
        own = part.stats() if part is not None else {}
        return {"world_size": self.process_group.size(), "rank": self.process_group.rank(), **own}

    def _get_ddp_logging_data(self) -> dict[str, Any]:
        """`stats()` and the constructor's arguments under PyTorch's names."""
        return logging_data(self)


def steps_in_gradients(module: Any) -> set[int]:
    """The sampler's steps that were summed into the gradients of `module` by its last fixed-shard step.

    Empty when it is not wrapped with shards. A module that reduces by itself (`zero.shard`) says so itself.
    """
    own: set[int] | None = getattr(module, "steps_in_gradients", None)
    if own is not None:
        return own
    wrapper = wrapper_of(module)
    return set() if wrapper is None or wrapper._sharder is None else wrapper._sharder.steps_in_gradients


def wrapper_of(module: Any) -> DistributedDataParallel | None:
    """The DistributedDataParallel that `module` is wrapped in at present."""
    found = _attached.get(module) if isinstance(module, Module) else None
    return found() if found is not None else None


def _leave_former(module: Module) -> None:
    former = _attached.pop(module, None)
    wrapper = former() if former is not None else None
    if wrapper is not None:
        wrapper.detach()
