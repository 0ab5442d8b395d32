"""`DistributedDataParallel`: the module that the user calls."""

from __future__ import annotations

import contextlib
import inspect
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import resilin.dist as dist
from resilin._base import trace
from resilin.core.autograd.grad_mode import mode
from resilin.core.autograd.tape import Node, edge_of
from resilin.core.tensor import Tensor
from resilin.ddp import buckets, initial, misuse
from resilin.ddp.flat import listen, specs_of
from resilin.ddp.grad_bucket import Hook
from resilin.ddp.reducer import Reducer
from resilin.ddp.shards import Shard, ShardReducer
from resilin.errors import UsageError
from resilin.nn import Module

_MEGABYTE = 1 << 20
# arguments of PyTorch's constructor without a meaning here, and why
_REFUSED = {
    "delay_all_reduce_named_params": "gradients are reduced as they become ready",
    "param_to_hook_all_reduce": "gradients are reduced as they become ready",
    "mixed_precision": "keep the module in one dtype and compress gradients with a communication hook",
    "device_mesh": "pass process_group instead",
    "skip_all_reduce_unused_params": "unused parameters are handled by find_unused_parameters",
    "bucket_cap_mb_list": "all buckets but the first share one size, bucket_cap_mb",
    "batched_grad_copy": "gradients are written into the buckets by backward, nothing is copied",
    "lazy_bucket_allocation": "buckets are needed by the first backward",
}
_attached: weakref.WeakKeyDictionary[Module, weakref.ref[DistributedDataParallel]] = weakref.WeakKeyDictionary()


class DistributedDataParallel(Module):
    """Trains copies of `module` on all ranks of a group: gradients are averaged while backward runs.

    After `loss.backward()` every rank's `p.grad` is the mean over the ranks of their gradients, the same bits on all
    ranks; each element is summed along one fixed path.

    module:        parameters and buffers are made equal to those of rank 0 (`init_sync`); a module that is wrapped
                   again (as in each generation of `elastic.run`) leaves its former wrapper.
    device_ids, output_device:  None for modules on the CPU.
    broadcast_buffers:      buffers are made equal to rank 0's before each forward in training mode.
    init_sync:              False: the caller knows that shapes and values are equal already.
    process_group:          default: the world.
    bucket_cap_mb:          gradients are reduced in flat arrays of about so many MiB (25).
    find_unused_parameters: True: parameters outside the graph count as zero; they keep grad None if no rank used them.
    gradient_as_bucket_view: gradients are views of the flat arrays: nothing is copied. False: separate tensors.
    static_graph:           the graph is the same in every step: unused parameters are found once, in the first.
    shards:                 fixed-shard mode, see `shard`: the same bits for any number of ranks.

    Raises UsageError for arguments without a meaning here, CollectiveMismatch (on all ranks) when ranks wrap different
    modules; it names the parameter and both shapes.
    """

    def __init__(
        self,
        module: Module,
        device_ids: Sequence[Any] | None = None,
        output_device: Any = None,
        dim: int = 0,
        broadcast_buffers: bool | None = True,
        init_sync: bool = True,
        process_group: dist.ProcessGroup | None = None,
        bucket_cap_mb: float | None = None,
        find_unused_parameters: bool = False,
        check_reduction: bool = False,
        gradient_as_bucket_view: bool = True,
        static_graph: bool = False,
        forward_sync_buffers: bool | None = None,
        shards: int | None = None,
        **refused: Any,
    ) -> None:
        super().__init__()
        _check_arguments(module, device_ids, output_device, dim, bucket_cap_mb, refused)
        group = process_group or (dist.default_group() if dist.is_initialized() else None)
        if group is None:
            raise UsageError(
                "DistributedDataParallel: there is no process group; call resilin.dist.init_process_group() first, run "
                "inside elastic.run, or pass process_group"
            )
        self.module = module
        self.process_group = group
        self.dim, self.device_ids, self.output_device = dim, None, None
        self.find_unused_parameters, self.static_graph = find_unused_parameters, static_graph
        self.gradient_as_bucket_view = gradient_as_bucket_view
        self.broadcast_buffers = (forward_sync_buffers is not False) and broadcast_buffers is not False
        self.require_backward_grad_sync = True
        self.bucket_bytes_cap = int((bucket_cap_mb or buckets.DEFAULT_BUCKET_BYTES / _MEGABYTE) * _MEGABYTE)
        self.shards = shards
        _leave_former(module)
        named = [(name, param) for name, param in module.named_parameters() if param.requires_grad]
        if not named:
            raise UsageError(
                "DistributedDataParallel: the module has no parameter that requires a gradient; call it directly"
            )
        if init_sync and group.size() > 1:
            self._make_equal()
        self._reducer: Reducer | None = None
        self._sharder: ShardReducer | None = None
        self._stop: Callable[[], None] | None = None
        self._attach(named)
        _attached[module] = weakref.ref(self)

    def _make_equal(self) -> None:
        tensors = [*self.module.named_parameters(), *self.module.named_buffers()]
        initial.check_equal(tensors, f"shards={self.shards}", self.process_group)
        initial.broadcast([tensor for _, tensor in tensors], self.process_group)

    def _attach(self, named: Sequence[tuple[str, Tensor]]) -> None:
        plan = buckets.assign(specs_of(named), self.bucket_bytes_cap)
        params = [param for _, param in named]
        if self.shards is not None:
            self._sharder = ShardReducer(
                self.module, named, plan, self.process_group, self.shards, self.find_unused_parameters
            )
            self._listen(params, self._sharder)
        elif self.process_group.size() > 1:
            self._attach_reducer(named, plan)

    def _attach_reducer(self, named: Sequence[tuple[str, Tensor]], plan: Sequence[buckets.BucketSpec]) -> Reducer:
        self._reducer = Reducer(
            named,
            plan,
            self.process_group,
            as_view=self.gradient_as_bucket_view,
            find_unused=self.find_unused_parameters,
            static=self.static_graph,
        )
        self._listen([param for _, param in named], self._reducer)
        return self._reducer

    def _listen(self, params: Sequence[Tensor], listener: Reducer | ShardReducer) -> None:
        self._stop = weakref.finalize(self, listen(params, listener))  # runs once: here, or when this wrapper is gone

    def detach(self) -> None:
        """Leave the module: its backward is its own again. Done for you when the module is wrapped again."""
        if self._stop is not None:
            self._stop()
            self._stop = None

    # ------------------------------------------------------------------ forward

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's forward, with buffers made equal before it and backward prepared after it."""
        if self._sharder is not None:
            if mode.grad and self.training and not self._sharder.active:
                raise UsageError(
                    "DistributedDataParallel(shards=...): a forward that records gradients needs "
                    "`with model.shard(shard):` around it; evaluate under no_grad() or in eval mode"
                )
            return self.module(*args, **kwargs)
        reducer = self._reducer
        if reducer is None:
            return self.module(*args, **kwargs)
        sync = self.require_backward_grad_sync
        if sync and self.broadcast_buffers and self.training:
            self._broadcast_buffers()
        output = self.module(*args, **kwargs)
        if mode.grad:
            search = sync and self.find_unused_parameters and not self.static_graph
            reducer.prepare(sync, reachable(output) if search else None)
        return output

    def _broadcast_buffers(self) -> None:
        held = [buffer for _, buffer in self.module.named_buffers()]
        if held:
            with trace.span("ddp.broadcast_buffers"):
                initial.broadcast(held, self.process_group)

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
        """
        if self._sharder is None:
            raise UsageError("shard() needs DistributedDataParallel(..., shards=V) with the sampler's number of shards")
        return self._sharder.shard(shard)

    # ------------------------------------------------------------------ extras

    def register_comm_hook(self, state: Any, hook: Hook) -> None:
        """Reduce buckets with `hook(state, bucket: GradBucket) -> Future[Tensor]` instead of the averaging all-reduce.

        UsageError when one is registered already, when `hook` cannot be called with two arguments, or with shards.
        """
        if not callable(hook):
            raise UsageError(f"register_comm_hook: expected a function (state, bucket), got {type(hook).__name__}")
        if self._sharder is not None:
            raise UsageError("register_comm_hook: fixed-shard mode sums along its own tree; use shards=None with hooks")
        if getattr(self, "_comm_hook", None) is not None:
            raise UsageError("register_comm_hook: a hook is registered already; it can be set once")
        _check_signature(hook)
        self._comm_hook = hook
        if self._reducer is None:  # a world of one reduces nothing, but the hook must see every bucket
            named = [(name, param) for name, param in self.module.named_parameters() if param.requires_grad]
            plan = buckets.assign(specs_of(named), self.bucket_bytes_cap)
            self._attach_reducer(named, plan)
        assert self._reducer is not None, "attached above"
        self._reducer.set_hook(state, hook)

    def stats(self) -> Mapping[str, Any]:
        """Backward passes, bucket sizes in bytes, and seconds that backward waited for collectives at its end.

        "traffic": what the collectives of gradients carried so far, see `Traffic`; without shards.
        """
        part = self._reducer or self._sharder
        own = part.stats() if part is not None else {}
        return {"world_size": self.process_group.size(), "rank": self.process_group.rank(), **own}


def reachable(output: Any) -> set[int]:
    """ids of the leaves in the graph of every tensor found in `output` (tensors, lists, dicts, objects with fields)."""
    stack: list[Any] = [edge for edge in map(edge_of, _tensors(output)) if edge is not None]
    seen: set[int] = set()
    leaves: set[int] = set()
    while stack:
        node = stack.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, Node):
            stack.extend(edge for edge in node.edges if edge is not None)
        else:
            leaves.add(id(node))
    return leaves


def _tensors(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, Mapping):
        for value in output.values():
            yield from _tensors(value)
    elif isinstance(output, list | tuple | set):
        for value in output:
            yield from _tensors(value)
    elif hasattr(output, "__dataclass_fields__"):
        for name in output.__dataclass_fields__:
            yield from _tensors(getattr(output, name))


def steps_in_gradients(module: Any) -> set[int]:
    """The sampler's steps that were summed into the gradients of `module` by its last fixed-shard step.

    Empty when it is not wrapped with shards.
    """
    former = _attached.get(module) if isinstance(module, Module) else None
    wrapper = former() if former is not None else None
    return set() if wrapper is None or wrapper._sharder is None else wrapper._sharder.steps_in_gradients


def _leave_former(module: Module) -> None:
    former = _attached.pop(module, None)
    wrapper = former() if former is not None else None
    if wrapper is not None:
        wrapper.detach()


def _check_arguments(
    module: Any, device_ids: Any, output_device: Any, dim: int, bucket_cap_mb: float | None, refused: Mapping[str, Any]
) -> None:
    name = "DistributedDataParallel"
    if not isinstance(module, Module):
        raise UsageError(f"{name}: expected an nn.Module, got {type(module).__name__}")
    if device_ids is not None or output_device is not None:
        raise UsageError(f"{name}: device_ids and output_device must be None: modules here live on one device, the CPU")
    if dim != 0:
        raise UsageError(f"{name}: dim must be 0, got {dim}: inputs are not scattered, each rank brings its own")
    if bucket_cap_mb is not None and not bucket_cap_mb > 0:
        raise UsageError(f"{name}: bucket_cap_mb must be positive, got {bucket_cap_mb}")
    for key, value in refused.items():
        if key not in _REFUSED:
            raise TypeError(f"{name}.__init__() got an unexpected keyword argument {key!r}")
        if value:
            raise UsageError(f"{name}: {key}={value!r} is not supported: {_REFUSED[key]}")


def _check_signature(hook: Any) -> None:
    try:
        signature = inspect.signature(hook)
    except (TypeError, ValueError):  # of native code: it is found out when it is called
        return
    try:
        signature.bind(None, None)
    except TypeError:
        takes = len(signature.parameters)
        raise UsageError(
            f"register_comm_hook: {misuse.hook_name(hook)} must take (state, bucket), it takes {takes} arguments: "
            f"{signature}"
        ) from None
