"""Runs the pods of a test cluster as processes here: a scheduler, kubelets and name resolution in one thread.

Each pod has an address (see `networks`) and a folder. Images are not looked at: a container's command runs as it
stands, with this interpreter's programs first in PATH. Paths of mounted volumes are translated in its variables and
arguments; so are names of Services where pods have no network namespaces.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from resilin._base import env
from resilin._base.clock import SYSTEM
from resilin.testing.kube import metadata, probes
from resilin.testing.kube.networks import LoopbackNetwork, PodNetwork, PodPlace, open_network
from resilin.testing.kube.pod_files import PodFiles
from resilin.testing.kube.server import KubeServer

Raw = Mapping[str, Any]
_LOOK_S = 0.02
_CALL_TIMEOUT_S = 10.0
_END_TIMEOUT_S = 10.0
_TAIL_BYTES = 2048
_REFERENCE = re.compile(r"\$(\$|\(([A-Za-z_][A-Za-z0-9_.-]*)\))")  # $$ is one $, and no reference begins there


@dataclass
class _Running:
    """A pod whose process was started here."""

    uid: str
    name: str
    namespace: str
    node: str
    place: PodPlace
    process: subprocess.Popen[bytes]
    container: Raw
    environment: Mapping[str, str]
    log: Path
    message: Path
    ready: bool = False
    started: bool = False
    """Whether it has been ready."""
    kill_at: float | None = None
    ended: bool = False
    """Its end was reported."""
    stopping: subprocess.Popen[bytes] | None = None
    """Its preStop hook."""
    probes: float = 0.0
    """When to probe next."""


@dataclass(frozen=True)
class PodTimes:
    """By `time.monotonic`."""

    seen: float
    """When the kubelets first saw a pod."""
    started: float
    """When its process was started."""


@dataclass
class Kubelets:
    """Nodes of a test cluster. Use it as a context manager: at its end no process is left."""

    server: KubeServer
    folder: Path
    working_folder: Path
    nodes: tuple[str, ...] = ("n0", "n1", "n2")
    environment: Mapping[str, str] = field(default_factory=dict)
    """For all containers, besides their own."""
    loopback: bool = False
    """Whether pods are at addresses of loopback though namespaces are permitted."""

    def __post_init__(self) -> None:
        self.times: dict[str, PodTimes] = {}
        """By uid, of every pod that was started."""
        self._seen: dict[str, float] = {}  # by uid
        self._told: set[tuple[str, str]] = set()  # what Events there are, by uid and message
        self._running: dict[str, _Running] = {}  # by uid
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._silent: set[str] = set()  # nodes that are cut off; guarded by _lock, as what kubelets do
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="kubelets")
        self._turns = 0

    def __enter__(self) -> Self:
        self.network: PodNetwork = LoopbackNetwork() if self.loopback else open_network(self.folder)
        self._files = PodFiles(self.server, self.folder, self.network)
        self._sockets = Path(tempfile.mkdtemp(prefix="rk-"))  # a short name: those of sockets are bounded
        for node in self.nodes:
            raw = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}, "spec": {}}
            self.server.create(raw)
            self._set_node(node, "True", "KubeletReady")
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()
        for running in self._running.values():
            self._kill(running)
            running.process.wait(_END_TIMEOUT_S)
        self.network.close()
        shutil.rmtree(self._sockets)
        if self._error is not None:
            raise self._error

    def logs(self) -> dict[str, str]:
        """What each pod that ever ran has written, by name and uid (`NAME.UID`)."""
        return {path.stem: path.read_text(errors="replace") for path in sorted(self.folder.glob("*.log"))}

    def cut(self, node: str) -> None:
        """Cut a node off: its pods run, nobody reaches them, its kubelet is silent, and the cluster says so."""
        with self._lock:
            self._silent.add(node)
            for running in self._running.values():
                if running.node == node and not running.ended:
                    self.network.cut(running.place, running.process.pid)
        self._set_node(node, "Unknown", "NodeStatusUnknown")

    def restore(self, node: str) -> None:
        """End what `cut` did."""
        with self._lock:
            self._silent.discard(node)
            for running in self._running.values():
                if running.node == node and not running.ended:
                    self.network.restore(running.place, running.process.pid)
        self._set_node(node, "True", "KubeletReady")

    def _set_node(self, node: str, ready: str, reason: str) -> None:
        condition = {"type": "Ready", "status": ready, "reason": reason, "lastTransitionTime": metadata.now()}
        self._call("PATCH", f"/api/v1/nodes/{node}/status", {"status": {"conditions": [condition]}})

    # ----------------------------------------------------------------------------------------------- the loop

    def _run(self) -> None:
        try:
            storage = self.server.storage
            while not self._stop.is_set():
                known = storage.revision
                with self._lock:
                    self._look()
                with storage.changed:
                    if storage.revision == known:  # else something is to be seen already, if only what was done here
                        storage.changed.wait(_LOOK_S)
        except BaseException as error:  # noqa: BLE001 - the thread's top: raised where it is closed
            self._error = error

    def _look(self) -> None:
        pods = {pod["metadata"]["uid"]: pod for pod in self.server.find("v1", "Pod")}
        if self.network.has_names:
            self.network.set_names(
                self._files.names(
                    (pods[uid], one.place.address, one.ready and not self._is_away(one, pods[uid]))
                    for uid, one in self._running.items()
                    if uid in pods and not one.ended
                )
            )
        for uid, pod in pods.items():
            running = self._running.get(uid)
            if pod["spec"].get("nodeName") in self._silent:
                continue
            if running is None and not _is_over(pod):
                self._begin(pod)
            elif running is not None:
                self._follow(running, pod)
        for uid, running in list(self._running.items()):
            if uid not in pods and running.node not in self._silent:  # deleted by force: nobody waits for its end
                self._kill(running)
                self.network.leave(running.place)
                del self._running[uid]

    def _is_away(self, running: _Running, pod: Raw) -> bool:
        """Whether no Service names a pod: its node is silent, or its end was asked for."""
        return running.node in self._silent or bool(pod["metadata"].get("deletionTimestamp"))

    def _begin(self, pod: Raw) -> None:
        """Bind a pod to a node; start one that is bound."""
        meta, spec = pod["metadata"], pod["spec"]
        self._seen.setdefault(meta["uid"], SYSTEM.monotonic())
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        if not spec.get("nodeName"):
            if meta.get("deletionTimestamp"):
                return
            able = [node for node in self.nodes if node not in self._silent]
            if not able:
                return
            if missing := self._files.missing_claim(pod):
                why = f"0/{len(able)} nodes are available: {missing}."
                self._set_condition(pod, "PodScheduled", "False", "Unschedulable", why)
                return
            self._turns += 1
            node = able[self._turns % len(able)]
            target = {"apiVersion": "v1", "kind": "Binding", "target": {"kind": "Node", "name": node}}
            self._call("POST", f"{path}/binding", {**target, "metadata": {"name": meta["name"]}})
            return
        if missing := self._files.missing_volume(pod):  # kubelets wait, too, and tell it in Events alone
            self._set_condition(pod, "PodReadyToStartContainers", "False", "", "")
            self._tell(pod, "FailedMount", missing)
            return
        running = self._start(pod, self._files.volumes(pod))
        self._running[meta["uid"]] = running
        self.times[meta["uid"]] = PodTimes(self._seen.pop(meta["uid"]), SYSTEM.monotonic())
        self._report(running, "Running", {"running": {"startedAt": metadata.now()}})

    def _follow(self, running: _Running, pod: Raw) -> None:
        code = running.process.poll()
        deletion = pod["metadata"].get("deletionTimestamp")
        now = SYSTEM.monotonic()
        if code is not None:
            if not running.ended:
                running.ended = True
                self._kill(running)  # what it left behind
                self._report_end(running, code)
            if deletion:
                self._remove(running)
            return
        if deletion and running.kill_at is None:
            running.kill_at = now + float(pod["metadata"].get("deletionGracePeriodSeconds", 30))
            running.stopping = self._begin_stop(running)
            if running.stopping is None:
                running.process.send_signal(signal.SIGTERM)
        if running.stopping is not None and running.stopping.poll() is not None:
            running.stopping = None
            running.process.send_signal(signal.SIGTERM)
        if running.kill_at is not None and now >= running.kill_at:
            self._kill(running)
        if running.kill_at is None and now >= running.probes:
            running.probes = now + (0.05 if not running.ready else 0.5)
            ready = probes.is_ready(running.container, running.place.address)
            if ready != running.ready:
                running.ready, running.started = ready, running.started or ready
                self._report(running, "Running", {"running": {"startedAt": metadata.now()}})

    # ------------------------------------------------------------------------------------------- one process

    def _start(self, pod: Raw, volumes: dict[str, str]) -> _Running:
        meta = pod["metadata"]
        container = pod["spec"]["containers"][0]
        place = self._files.place_of(pod)
        stem = f"{meta['name']}.{meta['uid']}"
        message = self.folder / f"{stem}.message"
        places = {**volumes, container.get("terminationMessagePath", "/dev/termination-log"): str(message)}
        variables = self._files.variables(pod, container, place.address, places)

        def expand(text: str) -> str:
            return self._files.translate(expanded(text, variables), meta["namespace"], places)

        words = [expand(word) for word in (*container.get("command", ()), *container.get("args", ()))]
        log = self.folder / f"{stem}.log"
        sockets = self._sockets / str(len(list(self._sockets.iterdir())))
        sockets.mkdir(mode=0o700)  # as its file system would be its own
        path = f"{Path(sys.executable).parent}{os.pathsep}{env.get('PATH', '')}"
        variables = {**self.environment, **variables, "PATH": path, "XDG_RUNTIME_DIR": str(sockets)}
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*place.enter, *words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self.working_folder,
                env=env.snapshot(variables),
                start_new_session=True,
            )
        node = pod["spec"]["nodeName"]
        return _Running(
            meta["uid"], meta["name"], meta["namespace"], node, place, process, container, variables, log, message
        )  # fmt: skip

    def _begin_stop(self, running: _Running) -> subprocess.Popen[bytes] | None:
        """Start the preStop hook; None: there is none."""
        hook = ((running.container.get("lifecycle") or {}).get("preStop") or {}).get("exec")
        if hook is None:
            return None
        with running.log.open("ab") as output:
            return subprocess.Popen(
                [*running.place.enter, *hook["command"]], stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                cwd=self.working_folder, env=env.snapshot(running.environment),
            )  # fmt: skip

    def _kill(self, running: _Running) -> None:
        """End what is left of a container."""
        try:
            os.killpg(running.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return

    # ------------------------------------------------------------------------------------------------ words

    def _report(self, running: _Running, phase: str, state: Raw) -> None:
        now = metadata.now()
        conditions = [
            {"type": "PodReadyToStartContainers", "status": str(phase == "Running"), "lastTransitionTime": now},
            {"type": "PodScheduled", "status": "True", "lastTransitionTime": now},
            {"type": "Ready", "status": str(running.ready), "lastTransitionTime": now},
        ]
        before = self.server.get("v1", "Pod", running.name, running.namespace) or {}
        kept = [
            one for one in (before.get("status") or {}).get("conditions") or () if one["type"] == "DisruptionTarget"
        ]
        container = {
            "name": running.container["name"], "state": state, "ready": running.ready, "restartCount": 0,
            "image": running.container.get("image", ""), "imageID": "", "started": running.started,
        }  # fmt: skip
        status = {
            "phase": phase, "podIP": running.place.address, "podIPs": [{"ip": running.place.address}],
            "hostIP": "127.0.0.1",
            "startTime": now, "conditions": conditions + kept, "containerStatuses": [container],
        }  # fmt: skip
        path = f"/api/v1/namespaces/{running.namespace}/pods/{running.name}/status"
        self._call("PATCH", path, {"metadata": {"uid": running.uid}, "status": status}, missing_ok=True)

    def _set_condition(self, pod: Raw, kind: str, status: str, reason: str, message: str) -> None:
        """Write one condition of a pod that does not run, unless it is so already."""
        known = (pod.get("status") or {}).get("conditions") or []
        if any(one["type"] == kind and (one["status"], one.get("message", "")) == (status, message) for one in known):
            return
        now = metadata.now()
        new = {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": now}
        conditions = [*(one for one in known if one["type"] != kind), new]
        meta = pod["metadata"]
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/status"
        body = {"metadata": {"uid": meta["uid"]}, "status": {"conditions": conditions}}
        self._call("PATCH", path, body, missing_ok=True)

    def _tell(self, pod: Raw, reason: str, message: str) -> None:
        """Write a Warning about a pod, once."""
        meta = pod["metadata"]
        if (meta["uid"], message) in self._told:
            return
        self._told.add((meta["uid"], message))
        about = {"kind": "Pod", "name": meta["name"], "namespace": meta["namespace"], "uid": meta["uid"]}
        now = metadata.now()
        event = {
            "apiVersion": "v1", "kind": "Event", "type": "Warning", "reason": reason, "message": message,
            "metadata": {"name": f"{meta['name']}.{len(self._told):x}", "namespace": meta["namespace"]},
            "involvedObject": {"apiVersion": "v1", **about}, "source": {"component": "kubelet"},
            "firstTimestamp": now, "lastTimestamp": now, "count": 1,
        }  # fmt: skip
        self._call("POST", f"/api/v1/namespaces/{meta['namespace']}/events", event)

    def _report_end(self, running: _Running, code: int) -> None:
        running.ready = False
        said = running.message.read_text(errors="replace") if running.message.exists() else ""
        if not said and code and running.container.get("terminationMessagePolicy") == "FallbackToLogsOnError":
            said = running.log.read_bytes()[-_TAIL_BYTES:].decode(errors="replace")
        ended = {
            "exitCode": code if code >= 0 else 128 - code, "reason": "Error" if code else "Completed",
            "message": said, "finishedAt": metadata.now(), "startedAt": metadata.now(),
        }  # fmt: skip
        self._report(running, "Failed" if code else "Succeeded", {"terminated": ended})

    def _remove(self, running: _Running) -> None:
        """Nothing of it runs any more: the pod may go."""
        path = f"/api/v1/namespaces/{running.namespace}/pods/{running.name}"
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": running.uid}}
        self._call("DELETE", path, {"apiVersion": "v1", "kind": "DeleteOptions", **options}, missing_ok=True)

    def _call(self, method: str, path: str, body: Raw, *, missing_ok: bool = False) -> None:
        media = "application/merge-patch+json" if method == "PATCH" else "application/json"
        data = json.dumps(body).encode()
        request = urllib.request.Request(self.server.url + path, data, {"Content-Type": media}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=_CALL_TIMEOUT_S) as answer:
                answer.read()
        except urllib.error.HTTPError as error:
            with error:
                if not (missing_ok and error.code in (404, 409)):
                    raise


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """A word of a command with what Kubernetes puts in the place of `$(NAME)`; of names it does not know, nothing."""
    return _REFERENCE.sub(lambda match: "$" if match[1] == "$" else variables.get(match[2], match[0]), text)


def _is_over(pod: Raw) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
