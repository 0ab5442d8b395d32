"""A job of real agents under the operator: its cluster, what may happen to it, and what must hold at its end."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from resilin._base.clock import SYSTEM
from resilin.operator import names
from resilin.operator.crd import definition
from resilin.testing.kube.kubelet import Kubelets
from resilin.testing.kube.pods import is_ready
from resilin.testing.kube.server import KubeServer
from resilin.testing.patience import PATIENCE_S

ROOT = Path(__file__).parents[3]
PROGRAM = str(Path(__file__).parent / "paced_digits.py")
FLAGS = ["--epochs", "16", "--log-every", "1"]
WAIT_S = PATIENCE_S
_GENERATION = re.compile(r"generation (\d+): rank (\d+) of (\d+), pid (\d+)")
_WEIGHTS = re.compile(r"weights sha256 ([0-9a-f]{64})")
_STEP = re.compile(r"step (\d+) loss .* workers (\d+)")


def undisturbed() -> str:
    """The weights of the same training with one worker and nothing else."""
    variables = {**os.environ, "TEST_BRAKE": "/nowhere", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, PROGRAM, *FLAGS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True, env=variables)
    return _WEIGHTS.findall(done.stdout)[0]


def _definition() -> dict[str, Any]:
    """The resource, but a node may be lost after a second."""
    result: dict[str, Any] = json.loads(json.dumps(definition.definition()))
    schema = result["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema["properties"]["spec"]["properties"]["elasticPolicy"]["properties"]["nodeLostSeconds"]["minimum"] = 1
    return result


def job() -> dict[str, Any]:
    """The job with two pods."""
    container = {
        "name": "worker", "image": "resilin:test", "command": ["elastic-run", PROGRAM, *FLAGS],
        "env": [{"name": "RESILIN_RDZV_CONF", "value": "is_host=false,lease_ttl=3"}],
    }  # fmt: skip
    policy = {"graceSeconds": 20, "backoffSeconds": 0, "nodeLostSeconds": 1}
    spec = {
        "template": {"spec": {"containers": [container]}}, "minReplicas": 1, "maxReplicas": 8, "replicas": 2,
        "maxRestarts": 50, "elasticPolicy": policy, "cleanPodPolicy": "None",
    }  # fmt: skip
    meta = {"name": "digits", "namespace": "default"}
    return {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": meta, "spec": spec}


class Run:
    """One job, its cluster and the operator's process."""

    def __init__(self, server: KubeServer, kubelets: Kubelets, brake: Path) -> None:
        self.server, self.kubelets, self.brake = server, kubelets, brake
        self.operator: subprocess.Popen[bytes] | None = None
        self.cut_off: set[str] = set()  # names and uids of pods that were on a node when it was cut off

    def start_operator(self) -> None:
        command = [sys.executable, "-m", "resilin.operator", "--server", self.server.url, "--health-port", "0"]
        command += ["--agents", "1"]
        with (self.kubelets.folder / "operator.txt").open("ab") as output:
            self.operator = subprocess.Popen(command, stdout=output, stderr=output, cwd=ROOT)

    def kill_operator(self) -> None:
        assert self.operator is not None
        self.operator.send_signal(signal.SIGKILL)
        self.operator.wait(WAIT_S)

    def call(self, method: str, path: str, body: Any = None, media: str = "application/merge-patch+json") -> None:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.server.url + path, data, {"Content-Type": media}, method=method)
        with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
            answer.read()

    def scale(self, replicas: int) -> None:
        path = f"/apis/{names.API_VERSION}/namespaces/default/{names.PLURAL}/digits/scale"
        self.call("PATCH", path, {"spec": {"replicas": replicas}})

    def delete_pod(self, name: str) -> None:
        self.call("DELETE", f"/api/v1/namespaces/default/pods/{name}")

    def evict_pod(self, name: str) -> None:
        """Evict it as soon as the disruption budget lets."""
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": "default"}}

        def done() -> bool:
            try:
                self.call("POST", f"/api/v1/namespaces/default/pods/{name}/eviction", eviction, "application/json")
            except urllib.error.HTTPError as refused:
                refused.close()
                if refused.code != 429:
                    raise
                return False
            return True

        self.wait(done)

    def nodes(self) -> dict[str, set[str]]:
        """The workers' pods that stay, by node."""
        found: dict[str, set[str]] = {}
        for pod in self.server.find("v1", "Pod"):
            if pod["metadata"]["name"] in self.pods():
                found.setdefault(pod["spec"].get("nodeName", ""), set()).add(pod["metadata"]["name"])
        return found

    def can_be_cut(self, size: int) -> str | None:
        """A node with some of the pods, if there is one: on loopback without the store, whose address it would keep."""
        kept = set()
        if not self.kubelets.network.has_names:
            stores = [pod for pod in self.server.find("v1", "Pod") if pod["metadata"]["name"].startswith("digits-rdzv")]
            kept = {pod["spec"].get("nodeName") for pod in stores}
        return next((node for node, pods in self.nodes().items() if node not in kept and 0 < len(pods) < size), None)

    def cut(self, node: str) -> None:
        """Cut a node off. Its pods are to be replaced under other names, and none deleted by force."""
        lost = [pod for pod in self.server.find("v1", "Pod") if pod["spec"].get("nodeName") == node]
        self.cut_off |= {f"{pod['metadata']['name']}.{pod['metadata']['uid']}" for pod in lost}
        self.kubelets.cut(node)

        def replaced() -> bool:
            there = {pod["metadata"]["uid"]: pod for pod in self.server.find("v1", "Pod")}
            kept = [there.get(pod["metadata"]["uid"]) for pod in lost]
            assert all(pod is not None for pod in kept), "deleted by force"
            return all("deletionTimestamp" in pod["metadata"] for pod in kept)

        self.wait(replaced)

    def restore(self, node: str) -> None:
        """Its kubelet ends what was replaced meanwhile."""
        self.kubelets.restore(node)
        gone = {stem.rpartition(".")[2] for stem in self.cut_off}
        self.wait(lambda: not any(pod["metadata"]["uid"] in gone for pod in self.server.find("v1", "Pod")))

    def pods(self) -> dict[str, str]:
        """Names and uids of the workers' pods that stay."""
        found = self.server.find("v1", "Pod")
        return {
            pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in found
            if pod["metadata"]["labels"].get(names.ROLE) == names.WORKER and "deletionTimestamp" not in pod["metadata"]
        }  # fmt: skip

    def names_of_running(self) -> list[str]:
        found = self.server.find("v1", "Pod")
        over = ("Succeeded", "Failed")
        return [pod["metadata"]["name"] for pod in found if (pod.get("status") or {}).get("phase") not in over]

    def trains_with(self, workers: int) -> bool:
        """Whether the last step that was logged was done by so many, and so many pods are to stay and are ready."""
        staying = self.pods()
        if (
            sum(pod["metadata"]["name"] in staying and is_ready(pod) for pod in self.server.find("v1", "Pod"))
            != workers
        ):
            return False
        last = max((found for text in self.kubelets.logs().values() for found in self._steps(text)), default=(0, 0))
        return last[1] == workers == len(self.pods())

    @staticmethod
    def _steps(text: str) -> list[tuple[int, int]]:
        return [(int(step), int(workers)) for step, workers in _STEP.findall(text)]

    def status(self) -> dict[str, Any]:
        raw = self.server.get(names.API_VERSION, names.KIND, "digits") or {}
        return raw.get("status") or {}

    def holds(self, kind: str) -> bool:
        return any(one["type"] == kind and one["status"] == "True" for one in self.status().get("conditions", ()))

    def wait(self, what: Callable[[], bool]) -> None:
        end = SYSTEM.monotonic() + WAIT_S
        while not what():
            if SYSTEM.monotonic() > end:
                tails = {name: text[-1500:] for name, text in self.kubelets.logs().items()}
                operator = (self.kubelets.folder / "operator.txt").read_text()[-2000:]
                raise AssertionError(
                    f"not so after {WAIT_S} s: {self.status()}\n{operator}\n" + "\n".join(map(str, tails.items()))
                )
            with self.server.storage.changed:
                self.server.storage.changed.wait(0.05)

    def check(self, weights: str) -> None:
        """Let it train to its end: the weights are those of the undisturbed run, and survivors have one process."""
        self.brake.unlink()
        self.wait(lambda: self.holds("Succeeded"))
        self.wait(lambda: not self.names_of_running())  # rank 0 evaluates after the others have ended
        logs = self.kubelets.logs()
        assert {found for text in logs.values() for found in _WEIGHTS.findall(text)} == {weights}
        pids = {
            stem: {pid for *_, pid in _GENERATION.findall(text)}
            for stem, text in logs.items() if stem not in self.cut_off
        }  # fmt: skip
        assert all(len(found) <= 1 for found in pids.values()), pids
        status = self.status()
        assert (status.get("restarts", 0), status.get("workerRestarts", 0)) == (0, 0), status


@contextmanager
def running(folder: Path, *, loopback: bool = False) -> Iterator[Run]:
    """A cluster and an operator in it."""
    brake = folder / "brake"
    brake.touch()
    folder.joinpath("pods").mkdir()
    with KubeServer() as server:
        server.create(_definition())
        variables = {"TEST_BRAKE": str(brake), "OMP_NUM_THREADS": "1"}
        with Kubelets(server, folder / "pods", ROOT, environment=variables, loopback=loopback) as kubelets:
            run = Run(server, kubelets, brake)
            run.start_operator()
            try:
                yield run
            finally:
                assert run.operator is not None
                run.operator.terminate()
                run.operator.wait(WAIT_S)
