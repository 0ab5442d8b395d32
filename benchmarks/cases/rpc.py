"""Times remote calls between workers: an echo, one way, backwards, many outstanding calls, a dead callee, an idle
worker, a module that lies at the other, steps of parameters, published weights."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.library import Library, rank, world_size

OUTSTANDING = 3000
MOST_CALLS, FEWEST_CALLS = 2000, 5
IDLE_S = 2.0
PUBLISHED, PUBLISHED_PARTS = 10, 50  # versions of each kind, and tensors of each
STEPPED = 10_000_000
PARTS = (
    "echo", "one way", "snapshots", "backward", "outstanding", "idle", "dead", "init", "module", "steps", "published",
)  # fmt: skip
HOPS = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which part is measured, how long, and over what."""
    parser.add_argument("--part", choices=PARTS, required=True)
    parser.add_argument("--sizes", default="4", help="bytes of the tensor, separated by commas")
    parser.add_argument("--seconds", type=float, default=0.5, help="about how long to measure each size")
    parser.add_argument("--transport", help="the only transport that may be used; resilin's")
    parser.add_argument("--channel", help="the only tensor channel that may be used; resilin's")
    parser.add_argument("--encrypt", action="store_true", help="encrypt messages of the network; resilin's")
    parser.add_argument("--busy", type=int, default=0, help="processes that compute all the time beside the two")


def name_of(number: int) -> str:
    """The name of worker `number`."""
    return f"worker{number}"


def echo(value: Any) -> Any:
    """Return what came."""
    return value


def sink(value: Any) -> None:
    """Take what came, and say nothing of it."""


def add(one: int, other: int) -> int:
    """Return the sum."""
    return one + other


_kept: dict[int, Any] = {}  # at the callee: by length, tensors that lie in no memory that may be lent


def swap(library: str, value: Any) -> Any:
    """Take what came, and return another tensor of its length: a copy goes each way."""
    size = value.numel()
    if size not in _kept:
        _kept[size] = importlib.import_module(library).from_numpy(foreign(size))
    return _kept[size]


def foreign(size: int) -> Any:
    """Return 0, 1, ... as float32 in memory that no library has allocated."""
    array = np.frombuffer(bytearray(4 * size), np.float32)
    array[:] = np.arange(size, dtype=np.float32)
    return array


def seconds_of_processor() -> float:
    """Processor time that this process has used."""
    return time.process_time()


def run(library: Library, args: argparse.Namespace) -> dict[str, Any] | None:
    """Samples in seconds, by size or by kind; of rank 0, which calls rank 1."""
    library.torch.set_num_threads(1)
    rpc, me = library.rpc, rank()
    if args.part == "dead" and me and not os.environ.get("MAY_DIE"):
        subprocess.run(sys.orig_argv, env={**os.environ, "MAY_DIE": "1"}, check=False)  # whose death is no failure
        return None
    if args.part == "module":
        _remote_module(library)  # PyTorch's callee finds what it makes there, and only when it is loaded
    options = _options(library, args)
    start = time.time()
    rpc.init_rpc(name_of(me), rank=me, world_size=world_size(), rpc_backend_options=options)
    if args.part == "init":
        return _init(library, start)
    if me:
        if args.part != "dead":
            rpc.shutdown()
        else:
            threading.Event().wait()
        return None
    with _busy(args.busy):
        samples = MEASURES[args.part](library, args)
    rpc.shutdown(graceful=args.part != "dead")
    return {"samples": samples}


def _options(library: Library, args: argparse.Namespace) -> Any:
    if library.name != "resilin":
        return None
    chosen = {"transports": args.transport, "channels": args.channel}
    given: dict[str, Any] = {name: [value] for name, value in chosen.items() if value}
    if args.encrypt:
        given["encrypt"] = True
    return library.rpc.TensorPipeRpcBackendOptions(**given) if given else None


@contextlib.contextmanager
def _busy(count: int) -> Iterator[None]:
    started = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def _init(library: Library, start: float) -> dict[str, Any] | None:
    """From the last worker's call of init_rpc to the last worker's return."""
    end = time.time()
    moments = library.rpc.api._all_gather((start, end))
    library.rpc.shutdown()
    if rank():
        return None
    return {
        "samples": {"init": [max(end for _, end in moments.values()) - max(start for start, _ in moments.values())]}
    }


def _repeat(call: Callable[[], Any], seconds: float) -> list[float]:
    for _ in range(3):
        call()
    samples: list[float] = []
    end = time.perf_counter() + seconds
    while len(samples) < FEWEST_CALLS or (len(samples) < MOST_CALLS and time.perf_counter() < end):
        start = time.perf_counter()
        call()
        samples.append(time.perf_counter() - start)
    return samples


def _sized(function: Any, library: Library, args: argparse.Namespace) -> dict[str, list[float]]:
    samples = {}
    for size in map(int, args.sizes.split(",")):
        tensor = library.torch.arange(size // 4).to(library.torch.float32)
        found = library.rpc.rpc_sync(name_of(1), echo, (tensor,))
        if not bool((found == tensor).all()):
            raise SystemExit(f"echo of {size} bytes: the answer differs")
        del found
        samples[str(size)] = _repeat(
            lambda tensor=tensor: library.rpc.rpc_sync(name_of(1), function, (tensor,)), args.seconds
        )
    return samples


def _snapshots(library: Library, args: argparse.Namespace) -> dict[str, list[float]]:
    samples = {}
    for size in map(int, args.sizes.split(",")):
        array = foreign(size // 4)
        tensor, target = library.torch.from_numpy(array), np.ones_like(array)
        call = (swap, (library.torch.__name__, tensor))
        if not bool((library.rpc.rpc_sync(name_of(1), *call) == tensor).all()):
            raise SystemExit(f"{size} bytes there and back: the answer differs")
        samples[str(size)] = _repeat(lambda call=call: library.rpc.rpc_sync(name_of(1), *call), args.seconds)
        if library.name == "resilin":
            samples[f"two memcpy of {size}"] = _repeat(
                lambda target=target, array=array: (np.copyto(target, array), np.copyto(target, array)), args.seconds
            )
    return samples


def plus_one(value: Any) -> Any:
    """Return something that was computed."""
    return value + 1.0


def _backward(library: Library, args: argparse.Namespace) -> dict[str, list[float]]:
    autograd = importlib.import_module(f"{library.torch.__name__}.distributed.autograd")
    samples = {}
    for size in map(int, args.sizes.split(",")):
        first = library.torch.ones(size // 4, requires_grad=True)
        with autograd.context() as context_id:
            value = first
            for _ in range(HOPS // 2):
                value = library.rpc.rpc_sync(name_of(1), plus_one, (value,))
            loss = value.sum()
            autograd.backward(context_id, [loss], retain_graph=True)
            if not bool((autograd.get_gradients(context_id)[first] == 1).all()):
                raise SystemExit(f"a backward of {HOPS} hops: the gradient is wrong")
            samples[str(size)] = _repeat(
                lambda loss=loss, id=context_id: autograd.backward(id, [loss], retain_graph=True), args.seconds
            )
    return samples


def _outstanding(library: Library, args: argparse.Namespace) -> dict[str, list[float]]:
    rpc = library.rpc

    def dropped() -> None:
        for number in range(OUTSTANDING):
            rpc.rpc_async(name_of(1), add, (number, 1))
        rpc.rpc_sync(name_of(1), add, (1, 1))

    def awaited() -> None:
        calls = [rpc.rpc_async(name_of(1), add, (number, 1)) for number in range(OUTSTANDING)]
        if [call.wait() for call in calls] != list(range(1, OUTSTANDING + 1)):
            raise SystemExit("a sum is wrong")

    return {
        "dropped": [each / OUTSTANDING for each in _repeat(dropped, args.seconds)],
        "awaited": [each / OUTSTANDING for each in _repeat(awaited, args.seconds)],
    }


def _idle(library: Library, args: argparse.Namespace) -> dict[str, list[float]]:
    rpc = library.rpc
    rpc.rpc_sync(name_of(1), add, (1, 1))
    time.sleep(0.5)
    before = time.process_time(), rpc.rpc_sync(name_of(1), seconds_of_processor)
    time.sleep(IDLE_S)
    after = time.process_time(), rpc.rpc_sync(name_of(1), seconds_of_processor)
    return {"caller": [(after[0] - before[0]) / IDLE_S], "callee": [(after[1] - before[1]) / IDLE_S]}


def _dead(library: Library, args: argparse.Namespace) -> dict[str, list[float]]:
    rpc = library.rpc
    pid = rpc.rpc_sync(name_of(1), os.getpid)
    pending = [rpc.rpc_async(name_of(1), time.sleep, (100,)) for _ in range(3)]
    rpc.rpc_sync(name_of(1), add, (1, 1))
    start = time.perf_counter()
    os.kill(pid, signal.SIGKILL)
    samples = []
    for call in pending:
        try:
            call.wait()
        except RuntimeError:
            samples.append(time.perf_counter() - start)
    return {"dead": samples}


_subscriptions: list[Any] = []  # at a reader


def subscribe(library: str) -> None:
    """Begin to read what worker 0 publishes."""
    rpc = importlib.import_module(f"{library}.distributed.rpc")
    _subscriptions.append(rpc.subscribe("weights", src=name_of(0)))


def use(version: int) -> float:
    """Wait for a version, look into each of its tensors, and return when that was done."""
    _, state = _subscriptions[0].wait(version)
    if {float(part[0]) for part in state.values()} != {float(version)}:
        raise ValueError(f"version {version} is another one")
    return time.perf_counter()


def _published(library: Library, args: argparse.Namespace) -> dict[str, list[float]]:
    rpc, torch = library.rpc, library.torch
    readers = [name_of(number) for number in range(1, world_size())]
    for reader in readers:
        rpc.rpc_sync(reader, subscribe, (library.name,))
    length = int(args.sizes) // 4 // PUBLISHED_PARTS
    samples: dict[str, list[float]] = {"new memory": [], "written since": [], "its call": [], "the next step": []}
    weights: dict[str, Any] = {}
    for number in range(1, 2 * PUBLISHED + 1):
        if number % 2:  # of memory that was never published; the other times all of it is written in between
            weights = {}
            weights = {str(part): torch.full((length,), float(number)) for part in range(PUBLISHED_PARTS)}
        using = [rpc.rpc_async(reader, use, (number,)) for reader in readers]
        time.sleep(0.2)
        start = time.perf_counter()
        rpc.publish(weights)
        samples["its call"].append(time.perf_counter() - start)
        last = max(each.wait() for each in using)
        samples["new memory" if number % 2 else "written since"].append(last - start)
        start = time.perf_counter()
        for part in weights.values():
            part.add_(1.0)
        samples["the next step"].append(time.perf_counter() - start)
    return samples


def _remote_module(library: Library) -> Any:
    return importlib.import_module(f"{library.torch.__name__}.distributed.nn.api.remote_module").RemoteModule


def _module(library: Library, args: argparse.Namespace) -> dict[str, list[float]]:
    torch = library.torch
    module = _remote_module(library)(f"{name_of(1)}/cpu", torch.nn.Linear, (16, 16))
    x = torch.ones(1, 16)
    if tuple(module.forward(x).shape) != (1, 16):
        raise SystemExit("the module's result has another shape")
    return {"Linear(16, 16)": _repeat(lambda: module.forward(x), args.seconds)}


def _steps(library: Library, args: argparse.Namespace) -> dict[str, list[float]]:
    """What two clients' calls do at an owner, with nothing else of a step: two threads, parameters of their own."""
    torch = library.torch
    optim = importlib.import_module(f"{torch.__name__}.distributed.optim")
    samples: dict[str, list[float]] = {}
    for kind in ("SGD", "Adam"):
        owners = []
        for _ in range(2):
            made = getattr(optim, f"_Functional{kind}")([torch.nn.Parameter(torch.ones(STEPPED))])
            gradient = torch.ones(STEPPED)
            owners.append(lambda made=made, gradient=gradient: made.step([gradient]))

        def in_threads(owners: list[Callable[[], None]] = owners) -> None:
            threads = [threading.Thread(target=owner) for owner in owners]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        samples[f"{kind}, one after the other"] = _repeat(
            lambda owners=owners: [owner() for owner in owners], args.seconds
        )
        samples[f"{kind}, at the same time"] = _repeat(in_threads, args.seconds)
    return samples


MEASURES: dict[str, Callable[[Library, argparse.Namespace], dict[str, list[float]]]] = {
    "echo": lambda library, args: _sized(echo, library, args),
    "one way": lambda library, args: _sized(sink, library, args),
    "snapshots": _snapshots,
    "backward": _backward,
    "outstanding": _outstanding,
    "idle": _idle,
    "dead": _dead,
    "published": _published,
    "module": _module,
    "steps": _steps,
}
