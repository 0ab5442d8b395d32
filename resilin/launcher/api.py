"""`elastic_launch(config, function)(*args)`: workers that call a function, under `torch.distributed.launcher`'s names.

It runs `elastic-run` as a child process, so it can be used from any thread, in a notebook, and beside other work.
"""

from __future__ import annotations

import contextlib
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import spawn
from pathlib import Path
from typing import Any

from resilin._base import json_text
from resilin._base.owned_folder import PREFIX, OwnedFolder
from resilin.elastic.failure import Failure
from resilin.elastic.spawn import entrypoint
from resilin.errors import ChildFailedError, ElasticError, RendezvousError, SecretRequired, StoreError, UsageError
from resilin.launcher import exit_codes

_STOP_S = 45.0  # for workers that get the usual 30 s
_ERRORS: dict[int, type[Exception]] = {
    exit_codes.USAGE: UsageError,
    exit_codes.UNREACHABLE: StoreError,
    exit_codes.RENDEZVOUS: RendezvousError,
    exit_codes.REFUSED: SecretRequired,
}


@dataclass(kw_only=True)
class LaunchConfig:
    """What to launch, in torch's words; each is the flag of `elastic-run` with a like name.

    Not here: `logs_specs` (use log_dir, redirects, tee), `metrics_cfg`, `event_log_handler` (use event_log),
    `numa_options`, `rdzv_timeout` (use rdzv_configs={"join_timeout": seconds}).
    """

    min_nodes: int
    max_nodes: int
    nproc_per_node: int
    run_id: str = ""
    role: str = "default_role"
    rdzv_endpoint: str = ""
    rdzv_backend: str = ""
    """As `--rdzv-backend`; torch's default, etcd, is not ours."""
    rdzv_configs: Mapping[str, Any] = field(default_factory=dict)
    max_restarts: int = 3
    monitor_interval: float = 0.1
    """Accepted; nothing is polled."""
    start_method: str = "auto"
    """As `--start-method`; torch's default, spawn, starts replacements slower."""
    log_line_prefix_template: str | None = None
    local_addr: str | None = None
    signals_to_handle: str = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
    duplicate_stdout_filters: Sequence[str] = ()
    duplicate_stderr_filters: Sequence[str] = ()
    virtual_local_rank: bool = False
    shutdown_timeout: float | None = None
    """Seconds between asking a worker to end and killing it."""
    log_dir: str | None = None
    redirects: str = "0"
    tee: str = "0"
    secret_file: str | None = None
    event_log: str | None = None
    node_rank: int | None = None

    def flags(self) -> Iterator[str]:
        """The command line of `elastic-run` up to the program."""
        yield f"--nnodes={self.min_nodes}:{self.max_nodes}"
        yield f"--rdzv-conf={','.join(f'{key}={value}' for key, value in self.rdzv_configs.items())}"
        for name in ("stdout", "stderr"):
            texts: Sequence[str] = getattr(self, f"duplicate_{name}_filters")
            if texts:
                yield f"--duplicate-{name}-filters={','.join(text.replace(',', ',,') for text in texts)}"
        if self.virtual_local_rank:
            yield "--virtual-local-rank"
        if self.run_id:
            yield f"--rdzv-id={self.run_id}"
        for name in (
            "nproc_per_node", "role", "rdzv_endpoint", "rdzv_backend", "max_restarts", "monitor_interval",
            "start_method", "log_line_prefix_template", "local_addr", "signals_to_handle", "shutdown_timeout",
            "redirects", "tee", "secret_file", "event_log", "node_rank",
        ):  # fmt: skip
            if (value := getattr(self, name)) is not None:
                yield f"--{name.replace('_', '-')}={value}"


class elastic_launch:
    """Starts this node's workers when it is called, each of which calls `entrypoint(*args)`, and waits for their end.

    entrypoint: a function that `pickle` can name (of a module, no lambda), or the path of a program, whose arguments
        `args` then are.
    Returns what each worker of this node returned, by global rank; nothing for programs. As with `multiprocessing`, the
    main module is imported by the workers: what starts them stands under `if __name__ == "__main__":`.
    Raises: ChildFailedError with `failures` when workers failed for good; UsageError, StoreError, RendezvousError or
    SecretRequired when the job could not start, the reason stands on standard error.
    """

    def __init__(self, config: LaunchConfig, entrypoint: Callable[..., Any] | str) -> None:
        self._config = config
        self._entrypoint = entrypoint

    def __call__(self, *args: Any) -> dict[int, Any]:
        """See the class."""
        with OwnedFolder(f"{PREFIX}_launch_") as folder:
            if isinstance(self._entrypoint, str):
                program = ["--no-python", self._entrypoint, *map(str, args)]
            else:
                _write_call(folder / entrypoint.CALL, self._entrypoint, args)
                program = ["-m", entrypoint.__name__, str(folder)]
            logs = Path(self._config.log_dir or folder / "logs")
            before = set(logs.glob("*/failure.json"))
            command = [sys.executable, "-m", "resilin.launcher.elastic_run", *self._config.flags()]
            code = _run([*command, f"--log-dir={logs}", *program])
            if code != exit_codes.OK:
                raise _error(code, set(logs.glob("*/failure.json")) - before)
            found = [(path, path.stem.removeprefix("result_")) for path in folder.glob("result_*.pickle")]
            return {int(rank): pickle.loads(path.read_bytes()) for path, rank in sorted(found, key=lambda f: int(f[1]))}


def launch_agent(config: LaunchConfig, entrypoint: Callable[..., Any] | str, args: Sequence[Any]) -> dict[int, Any]:
    """`elastic_launch(config, entrypoint)(*args)`."""
    return elastic_launch(config, entrypoint)(*args)


def _write_call(path: Path, fn: Callable[..., Any], args: Sequence[Any]) -> None:
    parent = spawn.get_preparation_data("elastic_launch")
    parent.pop("authkey", None)  # for connections of multiprocessing; it refuses to be pickled
    try:
        data = pickle.dumps((fn, tuple(args)))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise UsageError(
            f"elastic_launch: workers cannot be told of {fn!r} and its arguments: {error}; expected a function of a "
            "module and arguments that pickle takes"
        ) from None
    path.write_bytes(pickle.dumps(parent) + data)


def _run(command: Sequence[str]) -> int:
    process = subprocess.Popen(command)
    try:
        return process.wait()
    finally:
        if process.poll() is None:  # Ctrl-C or another exception here: the workers are asked to end, then it ends
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_S)
            if process.poll() is None:
                process.kill()
                process.wait()


def _error(code: int, reports: set[Path]) -> Exception:
    if code in _ERRORS:
        return _ERRORS[code](f"elastic-run ended with exit code {code}; the line above says why")
    failures = []
    sentence = f"elastic-run ended with exit code {code}"
    for path in reports:
        body = json_text.parse(path.read_bytes())
        sentence = f"{body.pop('sentence')} ({body.pop('reason')})"
        failures.append(Failure.from_json(body))
    if not failures and code != exit_codes.FAILED:
        return ElasticError(sentence)
    text = "".join(f"\n{failure.traceback}" for failure in failures if failure.traceback)
    return ChildFailedError(sentence + text, failures)
