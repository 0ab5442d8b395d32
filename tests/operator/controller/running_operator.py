"""A cluster over HTTP without kubelets, and an operator in it, in a thread of its own: what tests start them with."""

from __future__ import annotations

import asyncio
import json
import threading
import urllib.request
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from resilin._base.clock import SYSTEM
from resilin.operator import client, names
from resilin.operator.client import Client
from resilin.operator.controller import Controller, OperatorOptions
from resilin.operator.crd import definition
from resilin.operator.metrics import Metrics
from resilin.testing.kube.server import KubeServer

WAIT_S = 20.0


def impatient() -> dict[str, Any]:
    """The resource, but a node may be lost after a second."""
    result: dict[str, Any] = json.loads(json.dumps(definition.definition()))
    schema = result["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema["properties"]["spec"]["properties"]["elasticPolicy"]["properties"]["nodeLostSeconds"]["minimum"] = 1
    return result


def job(name: str = "digits", **spec: Any) -> dict[str, Any]:
    """A job."""
    template = {"spec": {"containers": [{"name": "worker", "image": "r:1", "command": ["elastic-run", "train.py"]}]}}
    policy = {"graceSeconds": 1, "backoffSeconds": 0, "nodeLostSeconds": 1}
    return {
        "apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": {"name": name, "namespace": "default"},
        "spec": {"template": template, "minReplicas": 1, "maxReplicas": 64, "elasticPolicy": policy, **spec},
    }  # fmt: skip


class RunningOperator:
    """An operator in a thread with a loop of its own."""

    def __init__(self, url: str, options: OperatorOptions | None = None, watch_s: float = 120.0) -> None:
        self._url, self._watch_s = url, watch_s
        self.metrics = Metrics()
        self.controller: Controller | None = None
        self.options = options or OperatorOptions()
        self._stop: asyncio.Event | None = None
        self._started: Future[None] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="operator")

    async def _run(self) -> None:
        self._stop = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        async with Client(client.find_server(self._url), self._watch_s) as api:
            self.controller = Controller(api, self.options, self.metrics)
            running = asyncio.create_task(self.controller.run())
            stopping = asyncio.create_task(self._stop.wait())
            self._started.set_result(None)
            await asyncio.wait((running, stopping), return_when=asyncio.FIRST_COMPLETED)
            running.cancel()
            stopping.cancel()
            outcome = (await asyncio.gather(running, return_exceptions=True))[0]
            if isinstance(outcome, Exception):
                raise outcome

    def call(self, function: Callable[[], Any]) -> Any:
        """Call something in the operator's loop."""
        done: Future[Any] = Future()
        self._loop.call_soon_threadsafe(lambda: done.set_result(function()))
        return done.result(WAIT_S)

    def __enter__(self) -> RunningOperator:
        self._thread.start()
        self._started.result(WAIT_S)
        return self

    def __exit__(self, *error: object) -> None:
        assert self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()


class ClusterUnderTest:
    """The server, with words for what tests look at."""

    def __init__(self, server: KubeServer) -> None:
        self.server = server
        self.url = server.url

    def job(self, name: str = "digits") -> dict[str, Any] | None:
        return self.server.get(names.API_VERSION, names.KIND, name)

    def pods(self, role: str | None = names.WORKER) -> dict[str, dict[str, Any]]:
        found = self.server.find("v1", "Pod")
        return {
            pod["metadata"]["name"]: pod for pod in found
            if role is None or (pod["metadata"].get("labels") or {}).get(names.ROLE) == role
        }  # fmt: skip

    def condition(self, kind: str, name: str = "digits") -> dict[str, Any]:
        raw = self.job(name) or {}
        found = {one["type"]: one for one in (raw.get("status") or {}).get("conditions", ())}
        return found.get(kind, {"status": "", "reason": "", "message": ""})

    def wait(self, what: Callable[[], Any], within_s: float = WAIT_S) -> Any:
        """Wait until `what` returns something; looked at after each change of the cluster."""
        storage = self.server.storage
        end = SYSTEM.monotonic() + within_s
        while True:
            if found := what():  # it may call the server, so not under its lock
                return found
            if SYSTEM.monotonic() > end:
                raise AssertionError(f"not so after {within_s} s; pods {sorted(self.pods(None))}, {self.job()}")
            with storage.changed:
                storage.changed.wait(0.02)

    def call(self, method: str, path: str, body: Any = None, kind: str = "application/merge-patch+json") -> Any:
        """Call the server as a user would."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": kind}, method=method)
        with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
            return json.loads(answer.read())

    def patch_job(self, spec: dict[str, Any], name: str = "digits") -> Any:
        path = f"/apis/{names.API_VERSION}/namespaces/default/{names.PLURAL}/{name}"
        return self.call("PATCH", path, {"spec": spec})

    def set_pod(self, name: str, **status: Any) -> None:
        """Write a pod's status as its kubelet would."""
        self.call("PATCH", f"/api/v1/namespaces/default/pods/{name}/status", {"status": status})

    def run_pods(self, node: str = "n0") -> None:
        """Have all pending pods run and be ready, on `node`."""
        for name, pod in self.pods(None).items():
            if (pod.get("status") or {}).get("phase", "Pending") == "Pending":
                if not pod["spec"].get("nodeName"):
                    binding = {"apiVersion": "v1", "kind": "Binding", "target": {"kind": "Node", "name": node}}
                    path = f"/api/v1/namespaces/default/pods/{name}"
                    self.call("POST", f"{path}/binding", {**binding, "metadata": {"name": name}}, "application/json")
                self.set_pod(name, phase="Running", conditions=[{"type": "Ready", "status": "True"}])
