"""Pipelines: a GPT's step in two stages or alone, stages that sleep, one hop, and what a rank keeps alive.

B batch, T time, W width.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

from benchmarks.cases import models
from benchmarks.library import Library, rank, world_size

MICROBATCHES = 8
SLEEP_S = 0.01
HOP_BYTES, HOPS = 1 << 20, 1000
ROWS, WIDTH, LAYERS = 8192, 64, 8  # of the stages whose activations are counted


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to measure."""
    parser.add_argument("--what", choices=sorted(CASES), required=True)
    parser.add_argument("--schedule", default="1F1B")
    parser.add_argument("--per-rank", type=int, default=1, help="stages on each rank")
    parser.add_argument("--microbatches", type=int, default=MICROBATCHES)
    parser.add_argument("--seconds", type=float, default=3.0, help="about how long to measure")


def run(library: Library, args: argparse.Namespace) -> dict[str, Any]:
    """What the case says, on rank 0."""
    library.torch.set_num_threads(1)
    library.torch.manual_seed(0)
    cores = sorted(os.sched_getaffinity(0))
    if world_size() <= len(cores):
        os.sched_setaffinity(0, {cores[rank()]})  # a core each
    if world_size() > 1:
        library.dist.init_process_group(library.backend)
    found = CASES[args.what](library, args)
    if world_size() > 1:
        library.dist.destroy_process_group()
    return found


# --- a step of a GPT ---


def _units(torch: Any, model: Any) -> list[Any]:
    """A GPT's parts in a row."""
    nn = torch.nn

    class Embedding(nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.token, self.position = model.token, model.position

        def forward(self, token_BT: Any) -> Any:
            return self.token(token_BT) + self.position(torch.arange(token_BT.shape[1]))

    class Half(nn.Module):  # type: ignore[name-defined, misc]
        """Attention of a block, or what comes after it."""

        def __init__(self, block: Any, attends: bool) -> None:
            super().__init__()
            self.block, self.attends = block, attends

        def forward(self, x_BTW: Any) -> Any:
            return self.block.attend(x_BTW) if self.attends else self.block.compute(x_BTW)

    halves = [Half(block, attends) for block in model.blocks for attends in (True, False)]
    return [Embedding(), *halves, nn.Sequential(model.norm, model.head)]


def _loss(torch: Any) -> Callable[[Any, Any], Any]:
    def loss(logits: Any, target: Any) -> Any:
        return torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), target.reshape(-1))

    return loss


def _unit_times(torch: Any, units: list[Any], x: Any, target: Any) -> list[float]:
    """Seconds of forward and backward of each unit on one micro-batch, a median; the last with the loss."""
    loss_fn, found = _loss(torch), []
    for place, unit in enumerate(units):
        samples = []
        for _ in range(8):
            given = x.detach().requires_grad_() if x.dtype.is_floating_point else x
            begin = time.perf_counter()
            y = unit(given)
            (loss_fn(y, target) if place == len(units) - 1 else y.sum()).backward()
            samples.append(time.perf_counter() - begin)
        found.append(statistics.median(samples[2:]))
        x = y.detach()
    for unit in units:
        unit.zero_grad()
    return found


def _cut(times: list[float], stages: int) -> int:
    """Where two stages are as equal as they can be."""
    assert stages == 2, "the GPT is cut in two"
    return min(range(1, len(times)), key=lambda place: max(sum(times[:place]), sum(times[place:])))


def _gpt(library: Library, args: argparse.Namespace) -> dict[str, Any]:
    torch, chosen = library.torch, models.MODELS["gpt"]
    units = _units(torch, chosen.build(torch))
    x, target = chosen.batch(torch, 0)
    loss_fn = _loss(torch)
    first_x, first_target = x[: x.shape[0] // MICROBATCHES], target[: x.shape[0] // MICROBATCHES]
    times = torch.tensor(_unit_times(torch, units, first_x, first_target), dtype=torch.float64)
    if world_size() == 1:
        model = torch.nn.Sequential(*units)
        step = _alone(torch, model, x, target, loss_fn)
    else:
        library.dist.broadcast(times, 0)
        place = _cut(times.tolist(), world_size())
        model = torch.nn.Sequential(*(units[:place] if rank() == 0 else units[place:]))
        step = _in_stages(library, args, model, x, target, loss_fn)
    for _ in range(3):
        step()
    samples = []
    for _ in range(_agreed(library, step, args.seconds)):
        begin = time.perf_counter()
        step()
        samples.append(time.perf_counter() - begin)
    measured = times.tolist()
    place = _cut(measured, 2)
    balance = sum(measured) / (2 * max(sum(measured[:place]), sum(measured[place:])))
    return {"samples": samples, "balance": balance, "unit_times_s": measured, "cut": place}


def _agreed(library: Library, step: Callable[[], Any], seconds: float) -> int:
    """How many steps take about so long, the same on all ranks."""
    begin = time.perf_counter()
    step()
    count = library.torch.tensor([max(3.0, seconds / (time.perf_counter() - begin))], dtype=library.torch.float64)
    if world_size() > 1:
        library.dist.broadcast(count, 0)
    return int(count.item())


def _alone(torch: Any, model: Any, x: Any, target: Any, loss_fn: Any) -> Callable[[], Any]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> Any:
        optimizer.zero_grad()
        for xs, ts in zip(x.tensor_split(MICROBATCHES), target.tensor_split(MICROBATCHES), strict=True):
            loss_fn(model(xs), ts).backward()
        for param in model.parameters():
            param.grad /= MICROBATCHES
        optimizer.step()

    return step


def _in_stages(library: Library, args: argparse.Namespace, model: Any, x: Any, target: Any, loss_fn: Any) -> Any:
    torch, pipelining = library.torch, library.pipelining
    stage = pipelining.PipelineStage(model, rank(), world_size(), torch.device("cpu"))
    schedule = pipelining.schedules.get_schedule_class(args.schedule)(stage, MICROBATCHES, loss_fn=loss_fn)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> Any:
        optimizer.zero_grad()
        if rank() == 0:
            schedule.step(x)
        else:
            schedule.step(target=target, return_outputs=False)
        optimizer.step()
        library.dist.barrier()  # a step ends when both have: what is timed is the slower one

    return step


# --- stages that sleep ---


def _sleepers(torch: Any) -> Any:
    """The class of such stages; its `slept` is how long they have."""

    def sleep() -> None:
        begin = time.perf_counter()
        time.sleep(SLEEP_S)
        Sleeper.slept += time.perf_counter() - begin  # the kernel's sleeps are longer than they are asked for

    class SleepForwardAndInput(torch.autograd.Function):  # type: ignore[name-defined, misc]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            sleep()
            return x.clone()

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            sleep()
            return g

    class SleepWeight(torch.autograd.Function):  # type: ignore[name-defined, misc]
        @staticmethod
        def forward(ctx: Any, w: Any) -> Any:
            return w.clone()

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            sleep()
            return g

    class Sleeper(torch.nn.Module):  # type: ignore[name-defined, misc]
        """F, I and W each sleep."""

        slept = 0.0

        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(torch.ones(1))

        def forward(self, x: Any) -> Any:
            given = x if x.requires_grad else x.detach().requires_grad_()  # the first stage sleeps in I, too
            return SleepForwardAndInput.apply(given) * SleepWeight.apply(self.w)

    return Sleeper


def _bubble(library: Library, args: argparse.Namespace) -> dict[str, Any]:
    """The share of time in which ranks did not sleep, on the rank where it is largest."""
    torch, pipelining = library.torch, library.pipelining
    make, count = _sleepers(torch), world_size() * args.per_rank
    cls = pipelining.schedules.get_schedule_class(args.schedule)
    stages = [
        pipelining.PipelineStage(make(), index, count, "cpu")
        for index in cls.stage_indices(rank(), world_size(), count)
    ]
    schedule = cls(stages if args.per_rank > 1 else stages[0], args.microbatches, loss_fn=lambda y, t: y.sum())
    x = torch.ones(args.microbatches, 4)
    samples = []
    for turn in range(4):
        library.dist.barrier()
        begin, make.slept = time.perf_counter(), 0.0
        schedule.step(x, target=x, return_outputs=False)
        library.dist.barrier()
        if turn:
            samples.append(1 - make.slept / (time.perf_counter() - begin))
    largest = torch.tensor([statistics.median(samples)], dtype=torch.float64)
    library.dist.all_reduce(largest, library.dist.ReduceOp.MAX)
    return {"bubble": largest.item(), "samples": samples}


# --- one hop ---


def _hop(library: Library, args: argparse.Namespace) -> dict[str, Any]:
    """Half of the way there and back of one tensor."""
    messages, values = library.pipelining.messages, library.pipelining.values
    exchange = messages.Exchange(library.dist.group.WORLD, (0, 1), rank())
    there, back = (
        messages.Route(messages.MessageKind.FORWARD, 0, 1),
        messages.Route(messages.MessageKind.BACKWARD, 1, 0),
    )
    tensors, layout = values.take_apart(library.torch.ones(HOP_BYTES // 4))
    cpu, samples = library.torch.device("cpu"), []
    for number in range(HOPS):
        message = messages.StageMessage(0, number, True, messages.RngState(0, 0, 0), tensors, layout)
        begin = time.perf_counter()
        if rank() == 0:
            exchange.send(there, message)
            exchange.receive(back, 0, number, True, cpu)
        else:
            exchange.receive(there, 0, number, True, cpu)
            exchange.send(back, message)
        samples.append((time.perf_counter() - begin) / 2)
    exchange.finish()
    return {"samples": samples[HOPS // 10 :]}


# --- what is alive ---


def _memory(library: Library, args: argparse.Namespace) -> dict[str, Any]:
    """The most that the ranks' allocators ever had in use, in micro-batches' activations of one stage."""
    memory = library.memory
    torch, pipelining = library.torch, library.pipelining
    nn, count = torch.nn, world_size() * args.per_rank
    cls = pipelining.schedules.get_schedule_class(args.schedule)

    def layers() -> Any:
        return nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(LAYERS)))

    stages = [
        pipelining.PipelineStage(layers(), i, count, "cpu") for i in cls.stage_indices(rank(), world_size(), count)
    ]
    schedule = cls(stages if args.per_rank > 1 else stages[0], args.microbatches, loss_fn=lambda y, t: y.mean())
    x = torch.ones(ROWS * args.microbatches, WIDTH)
    target = torch.ones(args.microbatches)
    before = memory.stats()["allocated"]
    probe = stages[0].submod(torch.ones(ROWS, WIDTH).requires_grad_())
    one = memory.stats()["allocated"] - before
    probe.mean().backward()  # computes with more than it keeps: that is no activation
    work = memory.stats()["peak"] - before - one
    del probe
    stages[0].submod.zero_grad()
    schedule.step(x, target=target, return_outputs=False)
    held = torch.zeros(world_size(), dtype=torch.float64)
    held[rank()] = float(memory.stats()["peak"] - before - work) / one
    library.dist.all_reduce(held)
    return {"microbatches": held.tolist(), "one_bytes": one, "work_bytes": work}


CASES: dict[str, Callable[[Library, argparse.Namespace], dict[str, Any]]] = {
    "gpt": _gpt,
    "bubble": _bubble,
    "hop": _hop,
    "memory": _memory,
}
