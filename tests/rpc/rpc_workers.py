"""Run tests in real processes that are RPC workers, and are started once for all of them.

    @on_workers(3)                              # a test of pytest's; runs in three processes at once
    def test_that_everybody_can_add(me):
        assert rpc.rpc_sync(me.next, torch.add, args=(torch.ones(2), 1)).sum() == 4

`init_rpc` is called before and `shutdown` after, unless `setup=False`. The first error of any worker is the test's.
Functions of a test's module travel by name: all workers import it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from types import ModuleType
from typing import Any

import resilin.distributed.rpc as rpc
from resilin._base.clock import SYSTEM, Deadline
from resilin.rpc import current
from resilin.testing.patience import PATIENCE_S

MOST = 4


@dataclass
class Me:
    """What a test knows of its worker."""

    rank: int
    world_size: int
    folder: str
    options: dict[str, Any] = field(default_factory=dict)

    def name(self, rank: int) -> str:
        """Return the name of worker `rank`, counted round the world."""
        return f"worker{rank % self.world_size}"

    @property
    def next(self) -> str:
        """Return the name of the worker behind this one."""
        return self.name(self.rank + 1)

    def made_options(self, file: str = "store", **more: Any) -> rpc.TensorPipeRpcBackendOptions:
        """Return options of this test's store."""
        return rpc.TensorPipeRpcBackendOptions(init_method=f"file://{self.folder}/{file}", **{**self.options, **more})

    def init(self, file: str = "store", world_size: int | None = -1, **options: Any) -> None:
        """Call `init_rpc`."""
        world = self.world_size if world_size == -1 else world_size
        rpc.init_rpc(f"worker{self.rank}", None, self.rank, world, self.made_options(file, **options))

    def meet(self, what: str) -> None:
        """Return when all workers have called it, without RPC."""
        (Path(self.folder) / f"{what}.{self.rank}").touch()
        until(lambda: all((Path(self.folder) / f"{what}.{rank}").exists() for rank in range(self.world_size)))


def until(condition: Callable[[], object], limit_s: float = PATIENCE_S / 2) -> None:
    """Wait until `condition()`; AssertionError after `limit_s`."""
    deadline = Deadline(limit_s)
    while not condition():
        assert not deadline.passed(), "it did not come about"
        SYSTEM.sleep(0.002)


@dataclass(frozen=True)
class Case:
    """A test, as workers are told of it."""

    file: str
    name: str
    world_size: int
    setup: bool
    options: dict[str, Any]
    folder: str = ""


def on_workers(count: int = 3, setup: bool = True, **options: Any) -> Callable[[Callable[[Me], None]], Any]:
    """Make a test of a function that all of `count` workers run; `options` are TensorPipeRpcBackendOptions'."""

    def made(function: Callable[[Me], None]) -> Any:
        case = Case(function.__code__.co_filename, function.__name__, count, setup, options)

        @functools.wraps(function)
        def test() -> None:
            _pool().run(case)

        del test.__wrapped__  # pytest would look for a fixture `me`
        test.inner = function  # type: ignore[attr-defined]
        return test

    return made


# --- the process of the tests ---

_pools: list[_Pool] = []


def _pool() -> _Pool:
    if not _pools or _pools[0].broken:
        close_pool()
        _pools.append(_Pool())
    return _pools[0]


def close_pool() -> None:
    """End all workers."""
    while _pools:
        _pools.pop().close()


class _Pool:
    """The processes."""

    def __init__(self) -> None:
        self.broken = False
        self._folder = tempfile.mkdtemp(prefix="resilin-rpc-tests-")
        self._cases = 0
        self._ends: list[Connection] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        for rank in range(MOST):
            ours, theirs = Pipe()
            command = [sys.executable, __file__, str(theirs.fileno()), str(rank)]
            with open(f"{self._folder}/log{rank}", "wb") as output:
                self._processes.append(
                    subprocess.Popen(
                        command,
                        pass_fds=[theirs.fileno()],
                        stdout=output,
                        stderr=output,
                        env={**os.environ, "RESILIN_SECRET": ""},
                    )
                )
            theirs.close()
            self._ends.append(ours)

    def run(self, case: Case) -> None:
        """Run a test on its workers."""
        self._cases += 1
        folder = Path(self._folder) / str(self._cases)
        folder.mkdir()
        told = Case(**{**case.__dict__, "folder": str(folder)})
        waiting = {self._ends[rank]: rank for rank in range(case.world_size)}
        for end in waiting:
            end.send(told)
        failed: list[str] = []
        deadline = Deadline(PATIENCE_S)
        while waiting:
            ready = wait(list(waiting), deadline.left())
            for end in ready:
                rank = waiting.pop(end)  # type: ignore[index]
                try:
                    said = end.recv()  # type: ignore[union-attr]
                except EOFError:
                    said = f"its process ended with code {self._processes[rank].wait()}"
                if said:
                    failed.append(f"worker {rank}: {said}")
                    deadline = Deadline(3.0)  # the others may wait for it
            if not ready:
                failed += [f"worker {rank}: did not end in time" for rank in waiting.values()]
                break
        shutil.rmtree(folder, ignore_errors=True)
        if failed:
            self.broken = True
            logs = [Path(f"{self._folder}/log{rank}").read_text()[-1500:] for rank in range(case.world_size)]
            raise AssertionError(
                "\n\n".join([*failed, *(f"log of worker {n}:\n{text}" for n, text in enumerate(logs))])
            )

    def close(self) -> None:
        """End the processes."""
        for end in self._ends:
            end.close()
        for process in self._processes:
            if self.broken:
                process.kill()
            try:
                process.wait(10.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


@contextlib.contextmanager
def spawned(function: Callable[[Me], None], count: int, folder: Path) -> Iterator[Callable[[int], int]]:
    """Run `function(me)` in processes that may die; the block gets what returns a rank's exit code."""
    command = [sys.executable, __file__, "run", function.__code__.co_filename, function.__name__]
    env = {**os.environ, "RESILIN_SECRET": ""}
    processes = [subprocess.Popen([*command, str(rank), str(count), str(folder)], env=env) for rank in range(count)]
    try:
        yield lambda rank: processes[rank].wait(PATIENCE_S)
    finally:
        for process in processes:
            process.kill()
            process.wait()


# --- the processes of the workers ---


def _module(file: str) -> ModuleType:
    name = Path(file).stem
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]


@contextlib.contextmanager
def _rpc(me: Me, setup: bool) -> Iterator[None]:
    if setup:
        me.init()
    try:
        yield
    except BaseException:
        if current.agent is not None:
            rpc.shutdown(graceful=False)
        raise
    if current.agent is not None:
        rpc.shutdown()


def _run(case: Case, rank: int) -> str:
    me = Me(rank, case.world_size, case.folder, dict(case.options))
    try:
        test = getattr(_module(case.file), case.name)  # before others can call what is in it
        with _rpc(me, case.setup):
            test.inner(me)
    except BaseException:  # noqa: BLE001 - of a test: told to who runs it
        return traceback.format_exc()
    return ""


def main() -> None:
    """Run what is asked for, until nobody can ask any more."""
    if sys.argv[1] == "run":
        file, name, own, count, folder = sys.argv[2:]
        sys.path.insert(0, str(Path(__file__).parent.parent))
        getattr(_module(file), name)(Me(int(own), int(count), folder))
        return
    end, rank = Connection(int(sys.argv[1])), int(sys.argv[2])
    sys.path.insert(0, str(Path(__file__).parent.parent))
    while True:
        try:
            case = end.recv()
        except EOFError:
            return
        end.send(_run(case, rank))


if __name__ == "__main__":
    sys.modules["rpc_workers"] = sys.modules["__main__"]
    main()
