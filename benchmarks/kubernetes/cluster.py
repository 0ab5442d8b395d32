"""A cluster of the test API server and an operator as a process, for benchmarks."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

from benchmarks import harness
from benchmarks.harness import BenchmarkError
from resilin.operator import names
from resilin.operator.crd.definition import definition
from resilin.testing import ports
from resilin.testing.kube.server import KubeServer

PATIENCE_S = 120.0
_TICKS = os.sysconf("SC_CLK_TCK")

T = TypeVar("T")


class Operator:
    """Its process, and what it tells of itself. A context manager."""

    def __init__(self, url: str, folder: Path, flags: Sequence[str] = ()) -> None:
        self._command = [sys.executable, "-m", "resilin.operator", "--server", url, *flags]
        self._log = folder / "operator.txt"

    def __enter__(self) -> Self:
        self._held = ports.held()
        self._port = self._held.__enter__()[0]
        command = [*self._command, "--health-host", "127.0.0.1", "--health-port", str(self._port)]
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                command, stdout=output, stderr=output, env=harness.environment(), cwd=harness.ROOT
            )
        wait("an operator that is ready", self._is_ready)
        return self

    def __exit__(self, *error: object) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(PATIENCE_S)
        self._held.__exit__(None, None, None)

    def _is_ready(self) -> bool:
        if self._process.poll() is not None:
            raise BenchmarkError(f"the operator ended: {self._log.read_text()[-2000:]}")
        try:
            return self._page("/readyz") == "ok\n"
        except OSError:
            return False

    def _page(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}{path}", timeout=10) as answer:
            return str(answer.read().decode())

    def metric(self, name: str) -> float:
        """The sum of a metric over its labels."""
        pattern = rf"^resilin_operator_{name}(?:{{[^}}]*}})? (\S+)$"
        return sum(map(float, re.findall(pattern, self._page("/metrics"), re.MULTILINE)))

    @property
    def processor_s(self) -> float:
        """Processor time so far."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    @property
    def memory_mb(self) -> float:
        """Resident memory."""
        found = re.search(r"VmRSS:\s*(\d+)", Path(f"/proc/{self._process.pid}/status").read_text())
        assert found is not None
        return int(found[1]) / 1000


class Cluster:
    """What people do to it."""

    def __init__(self, server: KubeServer) -> None:
        self.server = server
        server.create(definition())

    def call(self, method: str, path: str, body: Any = None, kind: str = "application/merge-patch+json") -> None:
        """One request of a user's, or of a kubelet's."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.server.url + path, data, {"Content-Type": kind}, method=method)
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            answer.read()

    def scale(self, name: str, replicas: int) -> None:
        """As `kubectl scale` does."""
        path = f"/apis/{names.API_VERSION}/namespaces/default/{names.PLURAL}/{name}/scale"
        self.call("PATCH", path, {"spec": {"replicas": replicas}})

    def pods(self, role: str = names.WORKER, *, leaving: bool = False) -> list[dict[str, Any]]:
        """The pods of a role; with `leaving` also those that are asked to go."""
        found = self.server.find("v1", "Pod")
        return [
            pod for pod in found
            if pod["metadata"]["labels"].get(names.ROLE) == role
            and (leaving or "deletionTimestamp" not in pod["metadata"])
        ]  # fmt: skip

    def wait(self, what: str, look: Callable[[], T | None]) -> T:
        """Look after each change until `look` returns something."""
        storage = self.server.storage

        def pause() -> None:
            with storage.changed:
                storage.changed.wait(0.02)

        return wait(what, look, pause)


def wait(what: str, look: Callable[[], T | None], pause: Callable[[], None] = lambda: time.sleep(0.02)) -> T:
    """Look until `look` returns something. BenchmarkError: it does not in time."""
    end = time.monotonic() + PATIENCE_S
    while not (found := look()):
        if time.monotonic() > end:
            raise BenchmarkError(f"{what}: not seen within {PATIENCE_S:.0f} s")
        pause()
    return found


def job(name: str, replicas: int, command: Sequence[str] = ("elastic-run", "train.py"), **spec: Any) -> dict[str, Any]:
    """An ElasticJob."""
    container = {"name": "worker", "image": "resilin:bench", "command": list(command)}
    meta = {"name": name, "namespace": "default"}
    body = {"template": {"spec": {"containers": [container]}}, "replicas": replicas, "maxRestarts": 1000, **spec}
    return {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": meta, "spec": body}
