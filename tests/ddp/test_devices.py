"""DistributedDataParallel of modules on devices: placement by PyTorch's rules, and the bits of the CPU on `sim`."""

from __future__ import annotations

import copy
import pickle
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ddp_models import IN, OUT, batches, make_model
from hooked import SHAPES, gradients_of

import resilin
from resilin import bfloat16, checkpoint, nn, optim
from resilin import distributed as dist
from resilin.core.backends.numpy import SimBackend
from resilin.core.device import device
from resilin.core.tensor import Tensor
from resilin.data import ElasticSampler
from resilin.ddp import DistributedDataParallel as DDP
from resilin.ddp.comm_hooks import DDPCommHookType, default_hooks, register_ddp_comm_hook
from resilin.ddp.comm_hooks.ddp_zero_hook import hook_with_zero_step, hook_with_zero_step_interleaved
from resilin.ddp.comm_hooks.on_host import on_host
from resilin.ddp.comm_hooks.onebit_hook import OneBitState, onebit_hook
from resilin.ddp.comm_hooks.powerSGD_hook import PowerSGDState, batched_powerSGD_hook, powerSGD_hook
from resilin.ddp.mixed_precision import _MixedPrecision
from resilin.ddp.model_averaging import DiLoCoOptimizer, PeriodicModelAverager, PostLocalSGDOptimizer
from resilin.errors import CollectiveMismatch, UsageError, UsageTypeError
from resilin.nn.utils.rnn import PackedSequence, pack_sequence
from resilin.testing.ranks import run_ranks
from resilin.zero import ZeroRedundancyOptimizer

BACKEND = "cpu:gloo,sim:gloo"
Pair = namedtuple("Pair", "x y")


def run(world: int, work: Callable[..., Any], *args: Any) -> list[Any]:
    found: list[Any] = run_ranks(world, work, *args, backend=BACKEND).results()
    return found


def bits(arrays: list[np.ndarray | None]) -> list[bytes | None]:
    return [None if array is None else array.tobytes() for array in arrays]


# ------------------------------------------------------------------------- where modules may lie, and what is said


@pytest.mark.parametrize(
    ("given", "ids", "output"),
    [
        ({}, None, None),
        ({"device_ids": []}, None, None),
        ({"device_ids": [2]}, [2], 2),
        ({"device_ids": ["sim:2"]}, [2], 2),
        ({"device_ids": (device("sim:2"),)}, [2], 2),
        ({"device_ids": [np.int64(2)], "output_device": 2}, [2], 2),
        ({"device_ids": [2], "output_device": "sim:5"}, [2], 5),
    ],
    ids=str,
)
def test_the_wrapper_says_where_its_module_is(given: dict[str, Any], ids: Any, output: Any) -> None:
    (model,) = run(1, lambda rank: DDP(make_model().to("sim:2"), **given))
    assert (model.device, model.device_type, model.is_multi_device_module) == (device("sim:2"), "sim", False)
    assert (model.device_ids, model.output_device) == (ids, output)
    assert model.join_device is device("sim:2")


def _scattered() -> nn.Module:
    return nn.Sequential(nn.Linear(IN, 4).to("sim:1"), nn.Linear(4, OUT).to("cpu"))


def _spread() -> nn.Module:
    return nn.Sequential(nn.Linear(IN, 4).to("sim:1"), nn.Linear(4, OUT).to("sim:2"))


@pytest.mark.parametrize(
    ("make", "given", "said"),
    [
        (make_model, {"device_ids": [1]}, r"must be None unless .* output_device None, and parameters on cpu"),
        (make_model, {"output_device": 1}, r"must be None unless .* output_device 1, and parameters on cpu"),
        (_spread, {"device_ids": [1]}, "must be None unless .* and parameters on sim:1, sim:2"),
        (lambda: make_model().to("sim:1"), {"output_device": 1}, "must be None unless .*, and device_ids names it"),
        (lambda: make_model().to("sim:1"), {"device_ids": [1, 2]}, "device_ids must be None or contain a single"),
        (lambda: make_model().to("sim:1"), {"device_ids": [0]}, r"device_ids is \[0\], but 0\.weight is on sim:1"),
        (lambda: make_model().to("sim:1"), {"device_ids": ["cpu"]}, r"device_ids\[0\] must be a device that is not"),
        (lambda: make_model().to("sim:1"), {"device_ids": [99]}, r"device_ids\[0\]: device sim:99 does not exist"),
        (lambda: make_model().to("sim:1"), {"device_ids": [1], "output_device": "cpu"}, "output_device must be a dev"),
        (_scattered, {}, r"devices of the same type, found 0\.weight on sim:1 and 1\.weight on cpu"),
        (lambda: make_model().to("meta"), {}, r"0\.weight is on meta, where tensors have no elements"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_a_device_that_does_not_fit_is_refused_with_what_to_do(make: Any, given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        run(1, lambda rank: DDP(make(), **given))
    assert isinstance(caught.value, ValueError)  # as in PyTorch


@pytest.mark.parametrize("given", [1, "sim:1", [None], [True], [1.5], [-1]], ids=repr)
def test_what_is_no_list_of_one_device_is_refused(given: Any) -> None:
    with pytest.raises(UsageTypeError, match="device_ids"):
        run(1, lambda rank: DDP(make_model().to("sim:1"), device_ids=given))


def test_ranks_on_devices_of_other_types_are_told() -> None:
    def wrap(rank: int) -> None:
        with pytest.raises(CollectiveMismatch, match="rank 0 was made with devices=cpu, rank 1 with devices=sim"):
            DDP(make_model().to("sim:1" if rank else "cpu"))

    run(2, wrap)


def test_a_group_without_a_backend_for_the_device_says_what_to_write() -> None:
    def wrap(rank: int) -> None:
        with pytest.raises(UsageError, match=r"no backend for 'sim' tensors: this group has .* as in backend='.*sim:g"):
            DDP(make_model().to("sim:1"))
        dist.barrier()  # it lives on

    run_ranks(2, wrap, backend="cpu:gloo").results()


# ------------------------------------------------------------------------- inputs and outputs


class Nested(nn.Module):
    """Tells on which devices its inputs lie."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(resilin.ones(3))

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        self.seen = args, kwargs
        return {"out": [self.weight * 2], "kept": "as it is"}


def test_tensors_in_inputs_are_moved_wherever_they_are_nested() -> None:
    packed = pack_sequence([resilin.ones(3, 2), resilin.ones(2, 2)])
    there = resilin.ones(1, device="sim:1")

    def work(rank: int) -> tuple[Any, Any]:
        model = DDP(Nested().to("sim:1"), device_ids=[1])
        x = resilin.ones(2)
        model(x, [x, (x, Pair(x, 3))], OrderedDict(a=x, b={"c": {x}}), there, packed, keyword=[x], other=None)
        return model.module.seen

    ((args, kwargs),) = run(1, work)
    first, (in_list, (in_tuple, pair)), mapping, same, sequence = args
    place = device("sim:1")
    assert [each.device for each in (first, in_list, in_tuple, pair.x, mapping["a"], *kwargs["keyword"])] == [place] * 6
    assert (type(pair), pair.y, type(mapping), kwargs["other"]) == (Pair, 3, OrderedDict, None)
    assert [each.device.type for each in mapping["b"]["c"]] == ["cpu"]  # sets are passed as they are, as in PyTorch
    assert same is there
    assert isinstance(sequence, PackedSequence)
    assert (sequence.data.device, sequence.batch_sizes.device.type) == (place, "cpu")


def test_without_device_ids_inputs_are_passed_as_they_are() -> None:
    def work(rank: int) -> Any:
        model = DDP(Nested().to("sim:1"))
        x = resilin.ones(2)
        output = model(x)
        return model.module.seen[0][0] is x, output["out"][0].device

    assert run(1, work) == [(True, device("sim:1"))]


def test_outputs_come_to_the_output_device_and_gradients_find_their_way_back() -> None:
    def work(rank: int) -> None:
        model = DDP(Nested().to("sim:1"), device_ids=[1], output_device=3, find_unused_parameters=True)
        output = model()
        assert (output["out"][0].device, output["kept"]) == (device("sim:3"), "as it is")
        (output["out"][0].sum() * (rank + 1)).backward()
        assert model.module.weight.grad.device is device("sim:1")
        assert model.module.weight.grad.tolist() == [3.0] * 3

    run(2, work)


# ------------------------------------------------------------------------- every option: the bits of the CPU


class Net(nn.Module):
    """Its arithmetic is the same on `sim` and on the CPU, bit by bit."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(IN, 8)
        self.head = nn.Linear(8, OUT)
        self.extra = nn.Linear(8, OUT)
        self.register_buffer("seen", resilin.zeros(8))
        self.register_buffer("steps", resilin.zeros((), dtype=resilin.int64))

    def forward(self, x: Tensor, extra: bool = True) -> Tensor:
        hidden = self.first(x).tanh()
        if self.training:
            with resilin.no_grad():
                self.seen += hidden.float().mean(0)
                self.steps += 1
        return self.head(hidden) + self.extra(hidden) if extra else self.head(hidden)


def make_net() -> Net:
    resilin.manual_seed(4)
    return Net()


OPTIONS: dict[str, Callable[[Net], dict[str, Any]]] = {
    "plain": lambda net: {},
    "small buckets": lambda net: {"bucket_cap_mb": 1e-4},
    "list of caps": lambda net: {"bucket_cap_mb_list": [1e-5, 1e-4]},
    "copied gradients": lambda net: {"gradient_as_bucket_view": False},
    "no buffers": lambda net: {"broadcast_buffers": False},
    "no init": lambda net: {"init_sync": False},
    "unused": lambda net: {"find_unused_parameters": True},
    "static": lambda net: {"static_graph": True},
    "skipped": lambda net: {
        "skip_all_reduce_unused_params": True,
        "find_unused_parameters": True,
        "bucket_cap_mb": 1e-5,
    },
    "delayed": lambda net: {
        "delay_all_reduce_named_params": [("head.bias", net.head.bias)],
        "param_to_hook_all_reduce": net.first.weight,
    },
    "bfloat16": lambda net: {"mixed_precision": _MixedPrecision(param_dtype=bfloat16, reduce_dtype=bfloat16)},
    "float16 sums": lambda net: {"mixed_precision": _MixedPrecision(reduce_dtype=resilin.float16)},
}
LEAVES_OUT = ("unused", "static", "skipped")


def trained(rank: int, where: str, name: str) -> list[bytes | None]:
    """Gradients of every step and the state after the last one. Each rank has a device of its own."""
    place = f"{where}:{rank + 1}" if where == "sim" else where
    net = make_net().to(place)
    model = DDP(net, device_ids=None if where == "cpu" else [rank + 1], **OPTIONS[name](net))
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    seen: list[np.ndarray | None] = []
    for step in range(4):
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        x, extra = batches(8, seed=step)[rank], name not in LEAVES_OUT
        if step == 2:
            with model.no_sync():
                model(batches(8, seed=20)[rank], extra=extra).square().mean().backward()
        model(x, extra=extra).square().mean().backward()
        seen += [None if param.grad is None else param.grad.cpu().numpy().copy() for param in net.parameters()]
        for param in net.parameters():
            assert param.grad is None or param.grad.device is device(place)
        optimizer.step()
    return bits([*seen, *(value.cpu().numpy() for value in net.state_dict().values())])


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("name", list(OPTIONS))
def test_every_option_gives_the_bits_of_the_cpu(name: str, world: int) -> None:
    there, here = (run(world, trained, where, name) for where in ("sim", "cpu"))
    assert there == here


def test_a_rank_without_data_shadows_those_on_their_devices() -> None:
    def work(rank: int, where: str) -> list[bytes | None]:
        net = make_net().to(where)
        model = DDP(net, device_ids=None if where == "cpu" else [where])
        optimizer = optim.SGD(model.parameters(), lr=0.1)
        with model.join(divide_by_initial_world_size=False):
            for step in range(1 + 2 * rank):
                optimizer.zero_grad()
                model(batches(8, seed=step)[rank]).square().mean().backward()
                optimizer.step()
        return bits([value.cpu().numpy() for value in net.state_dict().values()])

    assert run(3, work, "sim:1") == run(3, work, "cpu")


def test_a_module_spread_over_devices_is_reduced_where_its_parts_are() -> None:
    class Split(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            resilin.manual_seed(2)
            self.a, self.b = nn.Linear(IN, 8), nn.Linear(8, OUT)

        def forward(self, x: Tensor) -> Tensor:
            hidden = self.a(x.to(self.a.weight.device)).tanh()
            return self.b(hidden.to(self.b.weight.device))

    def work(rank: int, places: tuple[str, str]) -> list[bytes | None]:
        net = Split()
        net.a.to(places[0])
        net.b.to(places[1])
        model = DDP(net)
        assert model.is_multi_device_module == (places[0] != places[1])
        for step in range(3):
            model.zero_grad()
            model(batches(8, seed=step)[rank]).square().mean().backward()
            assert [param.grad.device for param in net.parameters()] == [param.device for param in net.parameters()]
        return bits([param.grad.cpu().numpy() for param in net.parameters()])

    assert run(2, work, ("sim:1", "sim:2")) == run(2, work, ("cpu", "cpu"))


def test_a_copy_and_what_pickle_reads_are_wrappers_on_the_same_device() -> None:
    def work(rank: int) -> None:
        model = DDP(make_net().to("sim:1"), device_ids=[1])
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            other(batches(8)[rank]).square().mean().backward()
            assert (other.device, other.device_ids, other.output_device) == (device("sim:1"), [1], 1)
            grads = [param.grad for param in other.parameters()]
            assert {grad.device for grad in grads} == {device("sim:1")}
            for grad in grads:
                both = [resilin.empty_like(grad) for _ in range(2)]
                dist.all_gather(both, grad)
                assert both[0].tolist() == both[1].tolist()

    run(2, work)


# ------------------------------------------------------------------------- hooks


def _with(make_state: Callable[[], Any], hook: Any) -> Callable[[DDP], None]:
    return lambda model: model.register_comm_hook(make_state(), hook)


HOOKS: dict[str, tuple[Callable[[DDP], None], bool]] = {  # how to register each, and whether it computes on the host
    **{
        kind.name: (
            lambda model, kind=kind: register_ddp_comm_hook(kind, model),
            kind.name.startswith(("QUANTIZE", "TOP")),
        )
        for kind in DDPCommHookType
        if "POWER" not in kind.name and "ONE" not in kind.name
    },
    "POWER_SGD": (_with(lambda: PowerSGDState(None, 2, start_powerSGD_iter=2), powerSGD_hook), True),
    "BATCHED": (_with(lambda: PowerSGDState(None, 2, start_powerSGD_iter=2), batched_powerSGD_hook), True),
    "ONE_BIT": (_with(lambda: OneBitState(None, start_onebit_iter=1), onebit_hook), True),
    "BF16(POWER_SGD)": (
        _with(lambda: PowerSGDState(None, start_powerSGD_iter=2), default_hooks.bf16_compress_wrapper(powerSGD_hook)),
        True,
    ),
}


class Given(nn.Module):
    """Its gradients are what `forward` is given."""

    def __init__(self, dtype: Any) -> None:
        super().__init__()
        self.params = nn.ParameterList(nn.Parameter(resilin.zeros(shape, dtype=dtype)) for shape in SHAPES)

    def forward(self, *gradients: Tensor) -> Tensor:
        total: Any = 0
        for param, gradient in zip(self.params, gradients, strict=True):
            total = total + (param * gradient.to(param.dtype)).sum().float()
        return total


@pytest.mark.parametrize("dtype", [resilin.float32, resilin.bfloat16], ids=str)
@pytest.mark.parametrize("name", list(HOOKS))
def test_every_hook_gives_the_bits_of_the_cpu_and_copies_a_bucket_once_each_way(name: str, dtype: Any) -> None:
    register, hosted = HOOKS[name]
    steps = 4

    def work(rank: int, where: str) -> tuple[list[bytes | None], dict[str, int]]:
        net = Given(dtype).to(where)
        model = DDP(net, device_ids=None if where == "cpu" else [where], bucket_cap_mb=1e-3)
        register(model)
        seen: list[np.ndarray | None] = []
        for step in range(steps):
            model.zero_grad()
            model(*map(Tensor._wrap, gradients_of(step, rank))).backward()
            seen += [param.grad.cpu().numpy().copy() for param in net.parameters()]
        traffic = model.stats()["traffic"]
        buckets = len(model.stats()["bucket_bytes"])
        assert traffic.pop("copies") == (2 * buckets * steps if hosted and where != "cpu" else 0)
        assert (traffic.pop("copied_bytes") > 0) == (hosted and where != "cpu")
        return bits(seen), traffic

    assert run(2, work, "sim:1") == run(2, work, "cpu")


def test_a_hook_of_the_programs_sees_tensors_on_the_device() -> None:
    def work(rank: int) -> None:
        model = DDP(make_net().to("sim:1"), device_ids=[1])
        seen: set[device] = set()

        def hook(state: Any, bucket: Any) -> Any:
            seen.update(each.device for each in (bucket.buffer(), *bucket.gradients(), *bucket.parameters()))
            work = dist.all_reduce(bucket.buffer() / dist.get_world_size(), async_op=True)
            return work.get_future()

        model.register_comm_hook(None, hook)
        model(batches(8)[rank]).square().mean().backward()
        assert seen == {device("sim:1")}
        assert {param.grad.device for param in model.parameters()} == {device("sim:1")}

    run(2, work)


def test_a_hook_of_the_programs_that_computes_with_numpy_is_given_the_host_s_memory() -> None:
    def work(rank: int, where: str) -> list[bytes | None]:
        model = DDP(make_net().to(where), None if where == "cpu" else [where])

        @on_host
        def clipped(state: Any, bucket: Any) -> Any:
            array = bucket.buffer().numpy()
            array[abs(array) < 0.01] = 0
            return default_hooks.allreduce_hook(state, bucket)

        model.register_comm_hook(None, clipped)
        model(batches(8)[rank]).square().mean().backward()
        return bits([param.grad.cpu().numpy() for param in model.parameters()])

    assert run(2, work, "sim:1") == run(2, work, "cpu")


def test_a_result_on_another_device_is_refused() -> None:
    def work(rank: int) -> None:
        model = DDP(make_net().to("sim:1"), device_ids=[1])

        def hook(state: Any, bucket: Any) -> Any:
            future = resilin.futures.Future()
            future.set_result(bucket.buffer().to("sim:2"))
            return future

        model.register_comm_hook(None, hook)
        with pytest.raises(UsageError, match="the bucket is on sim:1, the result on sim:2: return it on sim:1, or on"):
            model(batches(8)[rank]).square().mean().backward()

    run(1, work)


# ------------------------------------------------------------------------- copies


def test_a_step_by_way_of_the_host_copies_once_what_is_sent_and_what_is_received(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out: list[int] = []
    back: list[int] = []
    to_host, from_host = SimBackend.to_host, SimBackend.from_host

    def leaving(self: Any, array: Any) -> Any:
        out.append(array.nbytes)
        return to_host(self, array)

    def coming(self: Any, array: Any, index: int) -> Any:
        back.append(array.nbytes)
        return from_host(self, array, index)

    monkeypatch.setattr(SimBackend, "to_host", leaving)
    monkeypatch.setattr(SimBackend, "from_host", coming)

    def work(rank: int) -> tuple[list[int], list[int], list[int]]:
        net = nn.Sequential(nn.Linear(IN, 8), nn.Linear(8, OUT))
        net.register_buffer("some", resilin.ones(5))
        net.register_buffer("more", resilin.ones(7))
        net.to("sim:1")
        model = DDP(net, bucket_cap_mb=1e-4)
        x = batches(8)[rank].to("sim:1")
        for _ in range(3):
            dist.barrier()
            if rank == 0:
                out.clear()
                back.clear()
            dist.barrier()
            model.zero_grad()
            model(x).square().mean().backward()
        dist.barrier()
        return sorted(out), sorted(back), sorted(model.stats()["bucket_bytes"])

    copied, brought, buckets = run(2, work)[0]
    assert copied == brought == sorted([*buckets, *buckets, 4 * (5 + 7)])  # of both ranks: buffers go from one to one


# ------------------------------------------------------------------------- fixed shards


def _sharded(rank: int, world: int, where: str, dtype: Any) -> list[bytes | None]:
    net = make_net().to(where).to(dtype)
    model = DDP(net, shards=4, bucket_cap_mb=1e-4, device_ids=None if where == "cpu" else [where])
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x = Tensor._wrap(np.random.default_rng(5).standard_normal((23, IN)).astype(np.float32)).to(dtype)
    sampler = ElasticSampler(23, 11, 4, seed=1)
    while sampler.step < 6:
        for plan in sampler.steps(rank, world):
            if sampler.step % 3:  # else gradients of two steps are summed
                optimizer.zero_grad()
            for shard in plan.shards:
                with model.shard(shard):
                    if len(shard):
                        nn.functional.dropout(model(x[shard.indices]), 0.3).square().mean().backward()
            optimizer.step()
            sampler.advance(plan)
    assert {param.grad.device for param in net.parameters()} == {device(where)}
    return bits([value.cpu().numpy() for value in net.state_dict().values()])


@pytest.mark.parametrize("dtype", [resilin.float32, resilin.bfloat16], ids=str)
def test_fixed_shards_give_the_bits_of_the_cpu_in_every_world(dtype: Any) -> None:
    (alone,) = run(1, _sharded, 1, "cpu", dtype)
    for world in (1, 2, 3, 4):
        assert run(world, _sharded, world, "sim:1", dtype) == [alone] * world


def test_buffers_of_whole_numbers_that_depend_on_the_samples_are_found_on_a_device() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(resilin.ones(IN))
            self.register_buffer("rows", resilin.zeros((), dtype=resilin.int64))
            self.register_buffer("calls", resilin.zeros(2, dtype=resilin.int32))

        def forward(self, x: Tensor) -> Tensor:
            self.rows += x.shape[0]
            self.calls += 1
            return x * self.weight

    def work(rank: int) -> None:
        model = DDP(Counting().to("sim:1"), shards=2, device_ids=[1])
        sampler = ElasticSampler(3, 3, 2, seed=1)
        x = Tensor._wrap(np.ones((3, IN), np.float32))
        for plan in sampler.steps(0, 1):
            for shard in plan.shards:
                with model.shard(shard):
                    model(x[shard.indices]).mean().backward()

    with pytest.raises(CollectiveMismatch, match=r"buffer rows .*only float buffers may depend on the samples"):
        run(1, work)


# ------------------------------------------------------------------------- averages of models


def _averaged(rank: int, where: str, how: str) -> list[bytes | None]:
    net = make_net().to(where)
    inner = optim.SGD(net.parameters(), lr=0.1 * (rank + 1), momentum=0.9)
    if how == "DiLoCo":
        optimizer: Any = DiLoCoOptimizer(inner, period=2)
    else:
        optimizer = PostLocalSGDOptimizer(inner, PeriodicModelAverager(period=2, warmup_steps=0))
    for step in range(5):
        optimizer.zero_grad()
        net(batches(8, seed=step)[rank].to(where)).square().mean().backward()
        optimizer.step()
        if step == 3:
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert {param.device for param in net.parameters()} == {device(where)}
    return bits([value.detach().cpu().numpy() for value in net.parameters()])


@pytest.mark.parametrize("how", ["DiLoCo", "periodic"])
def test_averages_of_models_have_the_bits_of_the_cpu(how: str) -> None:
    assert run(2, _averaged, "sim:1", how) == run(2, _averaged, "cpu", how)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("shard_buckets", [False, True])
def test_a_divided_optimizer_that_updates_in_backward_has_the_bits_of_the_cpu(
    interleaved: bool, shard_buckets: bool
) -> None:
    make = hook_with_zero_step_interleaved if interleaved else hook_with_zero_step

    def work(rank: int, where: str) -> list[bytes | None]:
        net = make_net().to(where)
        model = DDP(net, None if where == "cpu" else [where], bucket_cap_mb=1e-4)
        optimizer = ZeroRedundancyOptimizer(net.parameters(), optim.SGD, lr=0.1, momentum=0.9, overlap_with_ddp=True)
        model.register_comm_hook(None, make(default_hooks.allreduce_hook, model, optimizer, shard_buckets))
        for step in range(4):
            optimizer.zero_grad()
            model(batches(8, seed=step)[rank]).square().mean().backward()
        return bits([value.cpu().numpy() for value in net.state_dict().values()])

    assert run(2, work, "sim:1") == run(2, work, "cpu")


# ------------------------------------------------------------------------- beside DistributedDataParallel


def test_batch_norm_over_ranks_on_devices_is_that_of_the_whole_batch() -> None:
    def work(rank: int, where: str) -> list[bytes | None]:
        resilin.manual_seed(1)
        net = nn.Sequential(nn.Linear(IN, 8), nn.SyncBatchNorm(8), nn.Linear(8, OUT)).to(where)
        model = DDP(net, None if where == "cpu" else [where])
        for step in range(2):
            model.zero_grad()
            model(batches(8, seed=step)[rank]).square().mean().backward()
        return bits([param.grad.cpu().numpy() for param in net.parameters()] + [net[1].running_mean.cpu().numpy()])

    there, here = run(2, work, "sim:1"), run(2, work, "cpu")
    for ours, expected in zip(there, here, strict=True):
        for a, b in zip(ours, expected, strict=True):
            np.testing.assert_allclose(np.frombuffer(a, np.float32), np.frombuffer(b, np.float32), rtol=1e-4, atol=1e-6)


def test_a_checkpoint_of_a_wrapper_on_a_device_is_read_on_any_other(tmp_path: Path) -> None:
    def work(rank: int) -> None:
        model = DDP(make_net().to("sim:1"), [1])
        optimizer = optim.AdamW(model.parameters(), lr=0.1)
        model(batches(8)[rank]).square().mean().backward()
        optimizer.step()
        checkpoint.save(str(tmp_path), {"model": model, "optimizer": optimizer})
        for where in ("cpu", "sim:3"):
            other = DDP(Net().to(where))
            its = optim.AdamW(other.parameters(), lr=0.3)
            checkpoint.load(str(tmp_path), {"model": other, "optimizer": its})
            assert {read.device for read in other.state_dict().values()} == {device(where)}
            for param, saved in zip(other.parameters(), model.parameters(), strict=True):
                assert param.tolist() == saved.tolist()
                moment = its.state[param]["exp_avg"]
                assert (moment.device, moment.tolist()) == (
                    device(where),
                    optimizer.state[saved]["exp_avg"].tolist(),
                )
            assert its.param_groups[0]["lr"] == 0.1

    run(2, work)
