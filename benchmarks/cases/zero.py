"""Times a training step with the optimizer's state divided among the ranks, or not, and counts that state's bytes."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

from benchmarks.cases import models
from benchmarks.library import Library, rank, world_size

RATE = 1e-4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to train, how, and for how long."""
    parser.add_argument("--model", choices=sorted(models.MODELS), default="gpt")
    parser.add_argument("--ways", type=lambda text: text.split(";"), default=list(WAYS), help="separated by semicolons")
    parser.add_argument("--cycles", type=int, default=6, help="turns of each way")
    parser.add_argument("--updates", type=int, default=15, help="steps of the optimizer alone, after that")
    parser.add_argument("--block", type=int, default=3, help="steps of a turn")


def run(library: Library, args: argparse.Namespace) -> dict[str, Any]:
    """For each way: seconds per step on rank 0, and of the optimizer alone; losses; bytes of state where it is most.

    The ways take turns in one process, each with a model of its own, so that all meet the same machine.
    """
    torch = library.torch
    torch.set_num_threads(1)
    library.dist.init_process_group(library.backend)
    steps = {way: _Step(library, way, args.model) for way in args.ways}
    for step in steps.values():  # warm-up: allocations, and the first step of every optimizer
        for _ in range(2):
            step()
    for _ in range(args.cycles):
        for step in steps.values():
            step.turn(args.block)
    for _ in range(args.updates):
        for step in steps.values():
            step.update()
    found = {way: step.found() for way, step in steps.items()}
    library.dist.destroy_process_group()
    return {"ways": found, "parameters": sum(param.numel() for param in steps[args.ways[0]].model.parameters())}


class _Step:
    """One step of one way, on a fixed batch."""

    def __init__(self, library: Library, way: str, model: str) -> None:
        torch = library.torch
        torch.manual_seed(0)
        self.library = library
        self.samples: list[float] = []
        self.updates: list[float] = []
        self.losses: list[float] = []
        self.model = library.ddp(models.MODELS[model].build(torch))
        self.optimizer = WAYS[way](library, self.model)
        self.steps = way != "overlapped"
        self.x, self.y = models.MODELS[model].batch(torch, rank())

    def __call__(self) -> None:
        self.optimizer.zero_grad()
        out = self.model(self.x)
        loss = self.library.torch.nn.functional.cross_entropy(out.view(-1, out.shape[-1]), self.y.view(-1))
        loss.backward()
        if self.steps:
            self.optimizer.step()
        self.losses.append(float(loss.item()))

    def turn(self, count: int) -> None:
        """`count` steps that are timed."""
        for _ in range(count):
            begin = time.perf_counter()
            self()
            self.samples.append(time.perf_counter() - begin)

    def update(self) -> None:
        """The optimizer's step alone, on the last gradients, until all ranks have done it."""
        if self.steps:
            self.library.dist.barrier()
            begin = time.perf_counter()
            self.optimizer.step()
            self.library.dist.barrier()
            self.updates.append(time.perf_counter() - begin)

    def found(self) -> dict[str, Any]:
        """What was measured. SystemExit when the loss did not fall."""
        if not self.losses[-1] < self.losses[0]:
            raise SystemExit(f"the loss did not fall: {self.losses[0]} -> {self.losses[-1]}")
        torch = self.library.torch
        held = torch.zeros(world_size(), dtype=torch.float64)
        held[rank()] = float(_state_bytes(torch, self.optimizer))
        self.library.dist.all_reduce(held)
        return {
            "samples": self.samples, "updates": self.updates, "losses": self.losses, "state_bytes": max(held.tolist()),
        }  # fmt: skip


def _state_bytes(torch: Any, optimizer: Any) -> int:
    """Bytes of this rank's tensors of state, counters of steps not counted."""
    if hasattr(optimizer, "stats"):
        return int(optimizer.stats()["own_state_bytes"])
    inner = getattr(optimizer, "optim", optimizer)  # where PyTorch's keeps the rank's own
    tensors = [value for state in inner.state.values() for value in state.values() if torch.is_tensor(value)]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors if tensor.dim())


# ---------------------------------------------------------------------------------------------- ways


def _undivided(library: Library, model: Any) -> Any:
    return library.torch.optim.AdamW(model.parameters(), lr=RATE)


def _divided(library: Library, model: Any, **more: Any) -> Any:
    return library.zero(model.parameters(), library.torch.optim.AdamW, lr=RATE, **more)


def _as_view(library: Library, model: Any) -> Any:
    return _divided(library, model, parameters_as_bucket_view=True)


def _overlapped(library: Library, model: Any) -> Any:
    hooks = library.torch.ddp.comm_hooks
    optimizer = _divided(library, model, parameters_as_bucket_view=True, overlap_with_ddp=True)
    hook = hooks.ddp_zero_hook.hook_with_zero_step(hooks.default_hooks.allreduce_hook, model, optimizer)
    model.register_comm_hook(None, hook)
    return optimizer


WAYS: dict[str, Callable[[Library, Any], Any]] = {
    "undivided": _undivided,
    "divided": _divided,
    "divided, as view": _as_view,
    "overlapped": _overlapped,
}
