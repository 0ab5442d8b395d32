"""`shard(module, stage)`: ZeRO stages 2 and 3."""

from __future__ import annotations

import weakref
from dataclasses import fields
from numbers import Integral
from typing import Any

import resilin.distributed as dist
from resilin.core.argument_checks import flag, mebibytes
from resilin.core.device import CPU
from resilin.core.tensor import Parameter
from resilin.distributed.agreement.broadcast import broadcast_tensors
from resilin.errors import UsageError, UsageTypeError
from resilin.nn import Module
from resilin.nn.parameter import is_lazy
from resilin.shards import block
from resilin.zero import agreement
from resilin.zero.sharded import flatten, optimizer_hooks, validation
from resilin.zero.sharded.mixed_precision import MixedPrecisionPolicy
from resilin.zero.sharded.module import ShardedModule
from resilin.zero.sharded.unit import Unit
from resilin.zero.sharded.wrap_policy import Units, buckets, choose

_MEGABYTE = 1 << 20
BUCKET_MB = 25.0

_sharded: weakref.WeakSet[Module] = weakref.WeakSet()


def shard(
    module: Module,
    stage: int = 3,
    process_group: dist.ProcessGroup | None = None,
    *,
    units: Units = None,
    mixed_precision: MixedPrecisionPolicy | None = None,
    cpu_offload: bool = False,
    init_sync: bool = True,
    broadcast_buffers: bool = True,
    find_unused_parameters: bool = False,
    bucket_cap_mb: float | None = None,
    buddies: bool = True,
    shards: int | None = None,
) -> ShardedModule:
    """Divide the training of `module` among the ranks of a group.

        model = zero.shard(net, stage=3)
        optimizer = optim.AdamW(model.parameters(), lr=1e-3)

    stage 2: gradients, and what the optimizer remembers, are divided; parameters are whole on every rank.
    stage 3: parameters, too: those of a unit are gathered before its forward and before its backward, the next unit's
             meanwhile, and freed after. A rank holds (parameters + gradients + state) / N and two units at a time.

    After `loss.backward()` every rank has its pieces of the mean of the ranks' gradients. Each element is summed along
    the path of `dist.reduce_scatter_tensor`; inside one host, and on two ranks, that gives the bits of
    DistributedDataParallel. Loss and gradients do not depend on the stage.

    process_group:  default: the world. Without one the pieces are whole, until `elastic.run` divides them among its
                    workers (register the sharded module and its optimizer in `elastic.State`).
    units:          stage 3: what is gathered together, see `units.choose`. Default: the children of `module`, with the
                    elements of ModuleList, ModuleDict and Sequential in the place of these.
    mixed_precision: dtypes to compute and to sum in; pieces keep theirs.
    cpu_offload:    pieces, their gradients and so the optimizer's state live on the CPU, parameters on their device
                    while they are used.
    init_sync:      modules are compared, and parameters and buffers made equal to those of rank 0. False: the caller
                    knows that they are, or loads them; no rank communicates (as when others `reshard`).
    broadcast_buffers: buffers are made equal to rank 0's before each forward in training (not with shards).
    find_unused_parameters: parameters that get no gradient count as zero; where no rank has one, none is given (with
                    shards zero is, as DistributedDataParallel does).
    bucket_cap_mb:  stage 2: gradients are reduced in rows of about so many MiB (25).
    buddies:        within `elastic.run`, whether another rank keeps a second copy of this one's pieces and of what the
                    optimizer remembers of them, so that the loss of a worker costs no step. False: nothing is kept
                    twice or sent, and such a loss needs a checkpoint.
    shards:         fixed shards, see `ShardedModule.shard`: the same bits for any number of ranks, which are those of
                    DistributedDataParallel with as many shards. Each sum is rounded to reduce_dtype.

    Raises UsageError for a module that is sharded, or holds one that is, has no parameters, or not on one device;
    UsageTypeError for flags that are neither True nor False;
    CollectiveMismatch on all ranks when they shard different modules: it names the first difference. Where a rank
    refuses its arguments the others raise an error of the same class, with its reason.
    """
    with validation.propagating(process_group, init_sync):
        policy = _checked(module, stage, mixed_precision, bucket_cap_mb)
        cpu_offload, init_sync = flag("zero.shard: cpu_offload", cpu_offload), flag("zero.shard: init_sync", init_sync)
        broadcast_buffers = flag("zero.shard: broadcast_buffers", broadcast_buffers)
        find_unused_parameters = flag("zero.shard: find_unused_parameters", find_unused_parameters)
        buddies = flag("zero.shard: buddies", buddies)
        group = agreement.group_of("zero.shard", process_group)
        rank, world = (0, 1) if group is None else (group.rank(), group.size())
        if shards is not None:
            block.check_world("zero.shard", shards, world)
            block.check_module("zero.shard", shards, module)
        members = choose(module, units)  # in stage 2, too, so that what are no units is refused
        if stage == 2:
            members = buckets(module, int(float(bucket_cap_mb or BUCKET_MB) * _MEGABYTE))
    settings = {
        "stage": stage,
        **(
            {"units": [each.name for each in members]}
            if stage == 3
            else {"bucket_cap_mb": float(bucket_cap_mb or BUCKET_MB)}
        ),
        **{f"mixed_precision.{one.name}": getattr(policy, one.name) for one in fields(policy)},
        "cpu_offload": cpu_offload,
        "broadcast_buffers": broadcast_buffers,
        "find_unused_parameters": find_unused_parameters,
        "buddies": buddies,
        "shards": shards,
    }
    if group is not None and world > 1 and init_sync:
        told = {name: str(value) for name, value in settings.items()}
        validation.check([*module.named_parameters(), *module.named_buffers()], told, group)
        broadcast_tensors([buffer for _, buffer in module.named_buffers()], group)
    made = [
        Unit(each, index, _here_dtype(each.named[0][1], policy), CPU if cpu_offload else each.named[0][1]._dev)
        for index, each in enumerate(members)
    ]
    movable = process_group is None
    sharded = ShardedModule(
        module, made, group, stage, policy, broadcast_buffers, find_unused_parameters, buddies, movable, shards
    )
    if group is not None and world > 1 and init_sync:
        for unit in made:
            flatten.equalise(unit, group)  # a failure up to here leaves the module whole; nothing communicates after it
    flatten.cut(made, rank, world, sharded.keep, filled=True)
    sharded.watch()
    _sharded.add(module)
    optimizer_hooks.watch(sharded)
    return sharded


def _here_dtype(param: Parameter, policy: MixedPrecisionPolicy) -> Any:
    floating = param._array.dtype.kind in "fV"
    return policy.param_dtype.np if policy.param_dtype is not None and floating else None


def _checked(module: Any, stage: Any, mixed_precision: Any, bucket_cap_mb: float | None) -> MixedPrecisionPolicy:
    if not isinstance(module, Module):
        raise UsageTypeError(f"zero.shard: expected an nn.Module, got {type(module).__name__}")
    if isinstance(stage, bool) or not isinstance(stage, Integral) or stage not in (2, 3):
        raise UsageError(
            f"zero.shard: stage must be 2 or 3, got {stage!r}; stage 1 is ZeroRedundancyOptimizer, with "
            "DistributedDataParallel"
        )
    if mixed_precision is not None and not isinstance(mixed_precision, MixedPrecisionPolicy):
        raise UsageTypeError(
            f"zero.shard: mixed_precision must be a MixedPrecisionPolicy, got {type(mixed_precision).__name__}"
        )
    if bucket_cap_mb is not None:
        mebibytes("zero.shard: bucket_cap_mb", bucket_cap_mb)
        if stage == 3:
            raise UsageError(f"zero.shard: bucket_cap_mb={bucket_cap_mb} is for stage 2 only: stage 3 has units")
    for path, inner in module.named_modules():
        where = f"its part {path!r}" if path else "the module"
        if isinstance(inner, ShardedModule) or inner in _sharded:
            raise UsageError(f"zero.shard: {where} is sharded already; use what the first call returned")
    _check_parameters(module)
    return mixed_precision or MixedPrecisionPolicy()


def _check_parameters(module: Module) -> None:
    params = list(module.named_parameters())
    if not params:
        raise UsageError("zero.shard: the module has no parameters; call it directly")
    _, first = params[0]
    for name, param in params:
        if is_lazy(param):
            raise UsageError(f"zero.shard: {name} has no shape yet; call the module once, with an input, before")
        if param._hooks is not None and param._hooks.post:
            raise UsageError(
                f"zero.shard: {name} has post-accumulate-grad hooks, as of DistributedDataParallel; shard the module "
                "without that: gradients are averaged over the ranks anyway"
            )
        if param._dev is not first._dev:
            raise UsageError(f"zero.shard: {name} is on {param._dev}, {params[0][0]} on {first._dev}; one is needed")
