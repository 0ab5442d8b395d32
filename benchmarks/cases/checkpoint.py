"""Times saving and loading 1 GB with all ranks, beside the disk itself, and saving behind the training of a GPT."""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.cases import models
from benchmarks.library import Library, rank

TENSORS = 16
CHUNK = 16 << 20
STEPS_BETWEEN = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where, how much, how often."""
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--what", choices=("state", "training"), required=True)
    parser.add_argument("--nbytes", type=int, default=1 << 30)
    parser.add_argument("--rounds", type=int, default=5)


def run(library: Library, args: argparse.Namespace) -> dict[str, Any]:
    """Samples in seconds by name, of rank 0, from when all ranks begin until all have ended."""
    library.torch.set_num_threads(1)
    library.dist.init_process_group(library.backend)
    found = _state(library, args) if args.what == "state" else _training(library, args)
    library.dist.destroy_process_group()
    return found


# ---------------------------------------------------------------------------------------------- 1 GB


def _state(library: Library, args: argparse.Namespace) -> dict[str, Any]:
    torch, folder = library.torch, args.folder
    torch.manual_seed(0)
    state = {f"layer{n}": torch.randn(args.nbytes // TENSORS // 4 // 1024, 1024) for n in range(TENSORS)}
    target = {name: torch.zeros(*tensor.shape) for name, tensor in state.items()}
    samples: dict[str, list[float]] = {}
    peaks: dict[str, float] = {}

    def timed(what: str, work: Callable[[], Any]) -> None:
        library.dist.barrier()
        before = _reset_peak()
        begin = time.perf_counter()
        work()
        library.dist.barrier()
        samples.setdefault(what, []).append(time.perf_counter() - begin)
        peaks[what] = max(peaks.get(what, 0.0), float(_peak() - before))

    def saved(path: Path) -> None:
        timed("save", lambda: library.checkpoint.save(str(path), state))
        library.dist.barrier()
        if rank() == 0:
            _forget(path)
        for what in ("load, cold", "load, warm"):
            timed(what, lambda: library.checkpoint.load(str(path), target))
            _check(state, target)
        library.dist.barrier()
        if rank() == 0:
            shutil.rmtree(path)

    def alone(path: Path) -> None:
        timed("disk, write", lambda: _write_alone(path, args.nbytes))
        if rank() == 0:
            _forget(path)
        timed("disk, read cold", lambda: _read_alone(path))
        timed("disk, read warm", lambda: _read_alone(path))
        library.dist.barrier()
        if rank() == 0:
            path.unlink()

    for number in range(args.rounds + 1):
        work = [saved, alone]
        for step in work if number % 2 else reversed(work):  # disks slow down behind much that was written
            step(folder / f"round-{number}")
        if number == 0:  # warm-up
            samples.clear()
            peaks.clear()
    return {"samples": samples, "peaks": peaks, "nbytes": args.nbytes}


def _check(state: dict[str, Any], target: dict[str, Any]) -> None:
    for name, tensor in target.items():
        if not bool((tensor == state[name]).all()):
            raise SystemExit(f"{name} was not loaded as it was saved")
        tensor.zero_()


def _write_alone(path: Path, nbytes: int) -> None:
    """What the disk can do: rank 0 writes as much in one file, in large pieces, and flushes it."""
    if rank():
        return
    chunk = os.urandom(CHUNK)
    path.unlink(missing_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    for _ in range(nbytes // CHUNK):
        os.write(fd, chunk)
    os.fsync(fd)
    os.close(fd)


def _read_alone(path: Path) -> None:
    if rank():
        return
    buffer = bytearray(CHUNK)
    with open(path, "rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def _forget(folder: Path) -> None:
    """Let the system forget what it holds of the files: they are read from the disk again."""
    for path in [folder, *folder.rglob("*")]:
        if path.is_file():
            with open(path, "rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _reset_peak() -> int:
    """Begin to watch the largest memory of this process; its memory now, in bytes."""
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _peak() -> int:
    return _status("VmHWM")


def _status(name: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024


# ---------------------------------------------------------------------------------------------- training


def _training(library: Library, args: argparse.Namespace) -> dict[str, Any]:
    """Steps of a GPT with AdamW; a save behind them after every few."""
    torch = library.torch
    torch.manual_seed(0)
    module = models.MODELS["gpt"].build(torch)
    model, optimizer = library.ddp(module), torch.optim.AdamW(module.parameters(), lr=1e-4)
    x, y = models.MODELS["gpt"].batch(torch, rank())

    def step() -> None:
        optimizer.zero_grad()
        out = model(x)
        torch.nn.functional.cross_entropy(out.view(-1, out.shape[-1]), y.view(-1)).backward()
        optimizer.step()

    for _ in range(4):
        step()
    state = {"model": module.state_dict(), "optimizer": optimizer.state_dict()["state"]}
    nbytes = sum(tensor.numel() * tensor.element_size() for tensor in _tensors(torch, state))
    samples: dict[str, list[float]] = {"step": [], "pause": [], "copy": [], "step while writing": []}
    source, copy = (torch.ones(nbytes // 4 // int(os.environ["WORLD_SIZE"])) for _ in range(2))
    handle = None
    for number in range(args.rounds + 2):
        _time(samples["copy"], lambda: copy.copy_(source))
        for _ in range(STEPS_BETWEEN):
            _time(samples["step"], step)
        path = str(args.folder / f"async-{number}")
        begin = time.perf_counter()
        handle = library.checkpoint.save_async(path, state)
        samples["pause"].append(time.perf_counter() - begin)
        for _ in range(STEPS_BETWEEN):
            busy = not handle.done()
            _time(samples["step while writing" if busy else "step"], step)
        handle.wait()
        library.dist.barrier()
        if number == 1:  # warm-up: the first saves make the memory of the copies
            samples = {name: [] for name in samples}
    return {"samples": samples, "nbytes": nbytes, "step": statistics.median(samples["step"])}


def _tensors(torch: Any, state: Any) -> list[Any]:
    if isinstance(state, dict):
        return [tensor for value in state.values() for tensor in _tensors(torch, value)]
    return [state] if torch.is_tensor(state) else []


def _time(samples: list[float], work: Callable[[], Any]) -> None:
    begin = time.perf_counter()
    work()
    samples.append(time.perf_counter() - begin)
