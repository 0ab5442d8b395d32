"""What DistributedDataParallel does with a module on the device `cuda`: on the stand-in in threads, on a GPU in
processes. Each case is called by every rank of a group."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

import resilin
from resilin import bfloat16, nn, optim, zero
from resilin import distributed as dist
from resilin.amp import GradScaler
from resilin.data import ElasticSampler
from resilin.ddp import DistributedDataParallel as DDP
from resilin.ddp.comm_hooks import DDPCommHookType, default_hooks, register_ddp_comm_hook
from resilin.ddp.comm_hooks.onebit_hook import OneBitState, onebit_hook
from resilin.ddp.comm_hooks.powerSGD_hook import PowerSGDState, batched_powerSGD_hook, powerSGD_hook
from resilin.ddp.mixed_precision import _MixedPrecision
from resilin.zero import ZeroRedundancyOptimizer

IN, OUT, BATCH = 6, 3, 4


class Net(nn.Module):
    """With buffers of both kinds, a scalar, and a layer that not every forward uses."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(IN, 8)
        self.norm = nn.BatchNorm1d(8)
        self.scale = nn.Parameter(resilin.ones(()))
        self.head = nn.Linear(8, OUT)
        self.extra = nn.Linear(8, OUT)

    def forward(self, x: Any, extra: bool = True) -> Any:
        hidden = self.norm(self.first(x)).tanh() * self.scale
        return self.head(hidden) + self.extra(hidden) if extra else self.head(hidden)


def make_net() -> Net:
    resilin.manual_seed(7)
    return Net()


def batch(step: int, rank: int) -> Any:
    return resilin.from_numpy(np.random.default_rng([step, rank]).standard_normal((BATCH, IN)).astype(np.float32))


def options_of(net: Net, name: str) -> dict[str, Any]:
    return {
        "plain": {},
        "small buckets": {"bucket_cap_mb": 1e-4},
        "copied gradients": {"gradient_as_bucket_view": False},
        "unused": {"find_unused_parameters": True},
        "static": {"static_graph": True},
        "skipped": {"skip_all_reduce_unused_params": True, "find_unused_parameters": True, "bucket_cap_mb": 1e-4},
        "delayed": {
            "delay_all_reduce_named_params": [("head.bias", net.head.bias)],
            "param_to_hook_all_reduce": net.first.weight,
        },
        "bfloat16": {"mixed_precision": _MixedPrecision(param_dtype=bfloat16, reduce_dtype=bfloat16)},
    }[name]


OPTIONS = ("plain", "small buckets", "copied gradients", "unused", "static", "skipped", "delayed", "bfloat16")
LEAVES_OUT = ("unused", "static", "skipped")  # of which forwards do without `extra`


def trained(rank: int, where: str, name: str = "plain", hook: Any = None, steps: int = 3) -> list[np.ndarray]:
    """Gradients of every step, then the state, of a model trained on `where`."""
    net = make_net().to(where)
    model = DDP(net, device_ids=None if where == "cpu" else [where], **options_of(net, name))
    if hook is not None:
        hook(model)
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    seen = []
    for step in range(steps):
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        if step == 1:
            with model.no_sync():
                model(batch(step + 100, rank), extra=name not in LEAVES_OUT).square().mean().backward()
        model(batch(step, rank), extra=name not in LEAVES_OUT).square().mean().backward()
        seen += [None if param.grad is None else param.grad.cpu().numpy().copy() for param in net.parameters()]
        optimizer.step()
    return [*seen, *(value.cpu().numpy() for value in net.state_dict().values())]


def close(got: list[np.ndarray], wanted: list[np.ndarray], tolerance: float = 2e-5) -> None:
    for a, b in zip(got, wanted, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            np.testing.assert_allclose(a.astype(float), b.astype(float), rtol=tolerance, atol=tolerance)


def every_option(rank: int) -> None:
    """With every option a model trains on the device as on the CPU."""
    for name in OPTIONS:
        close(trained(rank, "cuda", name), trained(rank, "cpu", name), 0.03 if name == "bfloat16" else 2e-5)


def _powers(model: Any) -> None:
    model.register_comm_hook(PowerSGDState(None, 2, start_powerSGD_iter=2), powerSGD_hook)


def _batched_powers(model: Any) -> None:
    model.register_comm_hook(PowerSGDState(None, 2, start_powerSGD_iter=2), batched_powerSGD_hook)


def _signs(model: Any) -> None:
    model.register_comm_hook(OneBitState(None, start_onebit_iter=1), onebit_hook)


def _wrapped(model: Any) -> None:
    hook = default_hooks.fp16_compress_wrapper(powerSGD_hook)
    model.register_comm_hook(PowerSGDState(None, start_powerSGD_iter=2), hook)


HOOKS: dict[str, Any] = {
    **{
        kind.name: (lambda model, kind=kind: register_ddp_comm_hook(kind, model))
        for kind in DDPCommHookType
        if "POWER_SGD" not in kind.name and kind is not DDPCommHookType.ONE_BIT
    },
    "POWER_SGD": _powers,
    "BATCHED_POWER_SGD": _batched_powers,
    "ONE_BIT": _signs,
    "FP16(POWER_SGD)": _wrapped,
}
# what all ranks' gradients are within, on the device and on the CPU: gradients differ by rounding before they are cut
COARSE = {"TOP_K": 0.05, "ONE_BIT": 0.05, "QUANTIZE_PER_TENSOR": 0.02, "QUANTIZE_PER_CHANNEL": 0.02}


def every_hook(rank: int) -> None:
    """With every communication hook a model trains on the device as on the CPU."""
    for name, hook in HOOKS.items():
        tolerance = COARSE.get(name, 0.01 if "16" in name else 2e-3 if "POWER" in name else 2e-5)
        close(trained(rank, "cuda", hook=hook, steps=2), trained(rank, "cpu", hook=hook, steps=2), tolerance)


def fixed_shards(rank: int) -> None:
    """Fixed shards give the bits of one process."""
    own = _one_of_each_rank()
    for dtype in (resilin.float32, bfloat16):
        alone = _sharded(0, 1, own, dtype)
        together = _sharded(rank, dist.get_world_size(), None, dtype)
        for a, b in zip(together, alone, strict=True):
            assert a.tobytes() == b.tobytes()


def _one_of_each_rank() -> Any:
    """This rank's own group of one; all ranks make all of them."""
    groups = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
    return groups[dist.get_rank()]


def _sharded(rank: int, world: int, group: Any, dtype: Any) -> list[np.ndarray]:
    net = make_net().to("cuda").to(dtype)
    model = DDP(net, device_ids=["cuda"], shards=4, process_group=group, bucket_cap_mb=1e-4)
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x = resilin.from_numpy(np.random.default_rng(5).standard_normal((22, IN)).astype(np.float32)).to(dtype)
    sampler = ElasticSampler(22, 11, 4, seed=1)
    while sampler.step < 4:
        for plan in sampler.steps(rank, world):
            if sampler.step != 2:  # else gradients of two steps are summed
                optimizer.zero_grad()
            for shard in plan.shards:
                with model.shard(shard):
                    if len(shard):
                        nn.functional.dropout(model(x[shard.indices]), 0.3).square().mean().backward()
            optimizer.step()
            sampler.advance(plan)
    return [value.cpu().numpy() for value in net.state_dict().values()]


def uneven_inputs(rank: int) -> None:
    """A rank without data shadows the others."""
    results = []
    for where in ("cuda", "cpu"):
        net = make_net().to(where)
        model = DDP(net, device_ids=None if where == "cpu" else ["cuda"])
        optimizer = optim.SGD(model.parameters(), lr=0.1)
        with model.join(divide_by_initial_world_size=False):
            for step in range(1 + rank):
                optimizer.zero_grad()
                model(batch(step, rank)).square().mean().backward()
                optimizer.step()
        results.append([value.cpu().numpy() for value in net.state_dict().values()])
    close(*results)


def divided_optimizer(rank: int) -> None:
    """ZeRO beside DistributedDataParallel, and a copy of the wrapper."""
    results = []
    for where in ("cuda", "cpu"):
        net = make_net().to(where)
        model = DDP(net, device_ids=None if where == "cpu" else ["cuda"])
        optimizer = ZeroRedundancyOptimizer(model.parameters(), optim.SGD, lr=0.1, momentum=0.9)
        for step in range(3):
            optimizer.zero_grad()
            model(batch(step, rank)).square().mean().backward()
            optimizer.step()
        copied = copy.deepcopy(model)
        assert copied.device is model.device
        results.append([value.cpu().numpy() for value in copied.state_dict().values()])
    close(*results)


def sharded_module(rank: int) -> None:
    """A module whose parameters are divided trains as on the CPU, in both stages, with its state on either side."""
    for stage, offload in ((2, False), (3, False), (3, True)):
        results = []
        for where in ("cuda", "cpu"):
            model = zero.shard(make_net().to(where), stage, cpu_offload=offload)
            optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            for step in range(3):
                optimizer.zero_grad()
                model(batch(step, rank).to(where)).square().mean().backward()
                model.clip_grad_norm_(0.5)
                optimizer.step()
            results.append([value.cpu().numpy() for value in model.state_dict().values()])
        close(*results)


def sharded_module_in_fixed_shards(rank: int) -> None:
    """The bits of one process, with gradients and buffers summed in rounds."""
    together, alone = _rounds(rank, dist.default_group()), _rounds(0, _one_of_each_rank())
    for a, b in zip(together, alone, strict=True):
        assert a.tobytes() == b.tobytes()


def _rounds(rank: int, group: Any) -> list[np.ndarray]:
    model = zero.shard(make_net().to("cuda"), shards=4, process_group=group)
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x = resilin.from_numpy(np.random.default_rng(5).standard_normal((22, IN)).astype(np.float32)).to("cuda")
    sampler = ElasticSampler(22, 11, 4, seed=1, in_rounds=True)
    while sampler.step < 4:
        for plan in sampler.steps(rank, group.size()):
            optimizer.zero_grad()
            for shard in plan.shards:
                with model.shard(shard):
                    model(x[shard.indices]).square().mean().backward()
            optimizer.step()
            sampler.advance(plan)
    return [value.cpu().numpy() for value in model.state_dict().values()]


def scaled_losses(rank: int) -> None:
    """A step that overflows in one rank's piece is left out by all, and the scale of all becomes smaller."""
    for divided in (False, True):
        resilin.manual_seed(7)
        net = make_net().to("cuda")
        model = zero.shard(net, 2) if divided else DDP(net, [0])
        optimizer: Any = (
            optim.SGD(model.parameters(), lr=0.1)
            if divided
            else ZeroRedundancyOptimizer(net.parameters(), optim.SGD, lr=0.1)
        )
        scaler = zero.ShardedGradScaler("cuda", 8.0) if divided else GradScaler("cuda", 8.0)
        for overflows in (False, True, False):
            before = [value.cpu().numpy().copy() for value in model.state_dict().values()]
            optimizer.zero_grad()
            scaler.scale(model(batch(0, rank).to("cuda")).square().mean()).backward()
            if overflows and rank == 1:
                next(p.grad for p in model.parameters() if p.grad is not None and p.numel()).fill_(float("inf"))
            running = [value.cpu().numpy().copy() for value in net.buffers()]
            scaler.step(optimizer)
            scaler.update()
            after = [value.cpu().numpy() for value in model.state_dict().values()]
            changed = sum(not np.array_equal(a, b) for a, b in zip(before, after, strict=True))
            assert running
            assert (changed > len(running)) is not overflows, (divided, overflows, changed)
        assert scaler.get_scale() == 4.0


CASES = {
    "scaled": scaled_losses,
    "options": every_option,
    "hooks": every_hook,
    "shards": fixed_shards,
    "uneven": uneven_inputs,
    "divided": divided_optimizer,
    "sharded": sharded_module,
    "rounds": sharded_module_in_fixed_shards,
}
