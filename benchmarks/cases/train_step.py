"""Times a whole training step: zero_grad, forward, cross entropy, backward with the gradients' all_reduce, AdamW."""

from __future__ import annotations

import argparse
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from benchmarks.cases import models
from benchmarks.library import Library, rank, world_size


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to train and for how long."""
    parser.add_argument("--model", choices=sorted(models.MODELS), required=True)
    parser.add_argument("--seconds", type=float, default=3.0, help="about how long to measure")
    parser.add_argument("--warmup", type=int, default=5, help="steps before measuring")
    parser.add_argument("--threads", type=int, default=1, help="threads of each process")
    parser.add_argument("--shards", type=int, default=0, help="fixed-shard mode with this many shards in all")
    parser.add_argument("--stage", type=int, choices=(2, 3), help="divide gradients, and parameters (ours only)")
    parser.add_argument("--apart", action="store_true", help="each process trains a model of its own")
    parser.add_argument("--in-step", action="store_true", help="with --apart: wait for one another before each update")
    parser.add_argument("--fused", action="store_true", help="ask the optimizer for its fused form")
    parser.add_argument("--compile", action="store_true", help="compile the model (torch.compile)")
    parser.add_argument("--device", default="cpu", help="where to train")
    parser.add_argument("--zero", action="store_true", help="divide the optimizer's state among the processes")


def run(library: Library, args: argparse.Namespace) -> dict[str, Any]:
    """Samples in seconds per step on rank 0, the loss of the first and the last step, and the memory of training."""
    torch = library.torch
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    before = memory_of_process("VmRSS")
    model = models.MODELS[args.model].build(torch).to(args.device)
    if world_size() > 1 or args.shards:
        library.dist.init_process_group(library.backend)
        if not args.apart:
            model = _wrapped(library, model, args)
    optimizer = _optimizer(library, model, args)
    if args.compile:
        model = torch.compile(model)
    step = _Step(library, model, optimizer, args)
    losses = [step() for _ in range(args.warmup)]
    steps = _agreed_steps(library, step, args.seconds)
    samples = []
    for _ in range(steps):
        begin = time.perf_counter()
        losses.append(step())
        samples.append(time.perf_counter() - begin)
    if not losses[-1] < losses[0]:
        raise SystemExit(f"{args.model}: the loss did not fall: {losses[0]} -> {losses[-1]}")
    if library.dist.is_initialized():
        library.dist.destroy_process_group()
    return {
        "samples": samples, "first_loss": losses[0], "last_loss": losses[-1],
        "peak_bytes": memory_of_process("VmHWM") - before,
        "stats": dict(model.stats()) if hasattr(model, "stats") else {},
        **({} if args.device == "cpu" else {"gpu": torch.cuda.get_device_name()}),
    }  # fmt: skip


def _wrapped(library: Library, model: Any, args: argparse.Namespace) -> Any:
    fixed = {"shards": args.shards} if args.shards else {}
    return library.shard(model, args.stage, **fixed) if args.stage else library.ddp(model, **fixed)


def _optimizer(library: Library, model: Any, args: argparse.Namespace) -> Any:
    options = {"lr": 1e-4, **({"fused": True} if args.fused else {})}
    if not args.zero:
        return library.torch.optim.AdamW(model.parameters(), **options)
    return library.zero(model.parameters(), library.torch.optim.AdamW, parameters_as_bucket_view=True, **options)


def memory_of_process(field: str) -> int:
    """Bytes of this process: VmRSS now, VmHWM at most."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise SystemExit(f"/proc/self/status has no {field}: memory is measured on Linux only")


class _Step:
    """One step on a fixed batch; with shards, this rank's shards of it one after the other."""

    def __init__(self, library: Library, model: Any, optimizer: Any, args: argparse.Namespace) -> None:
        self.model, self.optimizer = model, optimizer
        self.meet = library.dist.barrier if args.in_step else lambda: None
        self.cross_entropy = library.torch.nn.functional.cross_entropy
        x, y = (part.to(args.device) for part in models.MODELS[args.model].batch(library.torch, rank()))
        self.parts: list[tuple[Any, Any, Any]] = [(nullcontext, x, y)]
        if args.shards:
            self.parts = [
                (lambda shard=shard: model.shard(shard), x[shard.indices % len(x)], y[shard.indices % len(x)])
                for shard in _shards(library, len(x), args)
            ]

    def __call__(self) -> float:
        self.optimizer.zero_grad()
        total = 0.0
        for context, x, y in self.parts:
            with context():
                out = self.model(x)
                loss = self.cross_entropy(out.view(-1, out.shape[-1]), y.view(-1))
                loss.backward()
            total += loss.item()
        self.meet()
        self.optimizer.step()
        return total / len(self.parts)


def _shards(library: Library, batch: int, args: argparse.Namespace) -> list[Any]:
    """This rank's shards of a step with `batch` samples per rank."""
    size = batch * world_size()
    sampler = library.elastic.ElasticSampler(size, size, args.shards, shuffle=False, in_rounds=args.stage is not None)
    sampler.bind(rank(), world_size())
    return list(next(iter(sampler.steps())).shards)


def _agreed_steps(library: Library, step: _Step, seconds: float) -> int:
    """Number of steps that fill about `seconds`, the same on every rank."""
    begin = time.perf_counter()
    for _ in range(3):
        step()
    steps = library.torch.tensor([float(max(10, seconds / ((time.perf_counter() - begin) / 3)))])
    if library.dist.is_initialized() and world_size() > 1:
        library.dist.broadcast(steps, src=0)
    return int(steps.item())
