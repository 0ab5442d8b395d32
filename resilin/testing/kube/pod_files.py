"""What a container finds in a test cluster: its variables, the files of its volumes, its place, names of Services."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from resilin.testing.kube.networks import PodNetwork, PodPlace
from resilin.testing.kube.server import KubeServer

Raw = Mapping[str, Any]


class PodFiles:
    """Of all pods of a cluster."""

    def __init__(self, server: KubeServer, folder: Path, network: PodNetwork) -> None:
        self._server, self._folder, self._network = server, folder, network

    def variables(self, pod: Raw, container: Raw, address: str, places: Mapping[str, str]) -> dict[str, str]:
        """The variables of a container."""
        fields = {
            "metadata.name": pod["metadata"]["name"], "metadata.namespace": pod["metadata"]["namespace"],
            "metadata.uid": pod["metadata"]["uid"], "spec.nodeName": pod["spec"]["nodeName"],
            "status.podIP": address, "status.hostIP": "127.0.0.1",
        }  # fmt: skip
        result = {}
        for one in container.get("env") or ():
            value = one.get("value", "")
            source = one.get("valueFrom") or {}
            if "fieldRef" in source:
                value = fields[source["fieldRef"]["fieldPath"]]
            result[one["name"]] = self.translate(value, pod["metadata"]["namespace"], places)
        return result

    def translate(self, text: str, namespace: str, places: Mapping[str, str]) -> str:
        """`text` as it has to be here: files of volumes lie elsewhere, names of Services are addresses."""
        for path in sorted(places, key=len, reverse=True):
            text = text.replace(path, places[path])
        for service in self._server.find("v1", "Service", namespace) if not self._network.has_names else ():
            name = service["metadata"]["name"]
            address = self._network.place(f"service {namespace}/{name}", "").address
            text = text.replace(f"{name}.{namespace}.svc", address)
        return text

    def names(self, running: Iterable[tuple[Raw, str, bool]]) -> dict[str, str]:
        """What a cluster's DNS says: of each headless Service one pod that is ready, and of each pod in it.

        running: pods, their addresses, and whether they are ready.
        """
        found = {}
        services = self._server.find("v1", "Service")
        for pod, address, ready in running:
            labels = pod["metadata"].get("labels") or {}
            for service in services:
                wanted = service["spec"].get("selector") or {}
                if not wanted or any(labels.get(key) != wanted[key] for key in wanted):
                    continue
                name = f"{service['metadata']['name']}.{pod['metadata']['namespace']}.svc"
                found[f"{pod['metadata']['name']}.{name}"] = address
                if ready:
                    found[name] = address
        return found

    def missing_claim(self, pod: Raw) -> str:
        """Why a scheduler binds a pod to no node, as its volumes have it; empty: nothing does."""
        namespace = pod["metadata"]["namespace"]
        for volume in pod["spec"].get("volumes") or ():
            name = (volume.get("persistentVolumeClaim") or {}).get("claimName")
            if name and self._server.get("v1", "PersistentVolumeClaim", name, namespace) is None:
                return f'persistentvolumeclaim "{name}" not found'
        return ""

    def missing_volume(self, pod: Raw) -> str:
        """Why a kubelet cannot mount a pod's volumes; empty: nothing is missing."""
        for volume in pod["spec"].get("volumes") or ():
            for kind, field in (("Secret", "secretName"), ("ConfigMap", "name")):
                source = volume.get(kind[0].lower() + kind[1:])
                if not source or source.get("optional"):
                    continue
                if self._server.get("v1", kind, source[field], pod["metadata"]["namespace"]) is None:
                    what = f'{kind.lower()} "{source[field]}" not found'
                    return f'MountVolume.SetUp failed for volume "{volume["name"]}" : {what}'
        return ""

    def volumes(self, pod: Raw) -> dict[str, str]:
        """Write the volumes of a pod, of which none is missing: where each mount path is."""
        meta = pod["metadata"]
        found: dict[str, str] = {}
        for volume in pod["spec"].get("volumes") or ():
            folder = self._folder / meta["uid"] / volume["name"]
            data: dict[str, bytes] = {}
            if "secret" in volume:
                data = self._data("Secret", volume["secret"]["secretName"], meta["namespace"])
            elif "configMap" in volume:
                data = self._data("ConfigMap", volume["configMap"]["name"], meta["namespace"])
            folder.mkdir(parents=True, exist_ok=True)
            for key, value in data.items():
                (folder / key).write_bytes(value)
                (folder / key).chmod(0o400)
            found[volume["name"]] = str(folder)
        mounts = pod["spec"]["containers"][0].get("volumeMounts") or ()
        return {one["mountPath"]: found[one["name"]] for one in mounts if one["mountPath"] != "/dev/shm"}

    def _data(self, kind: str, name: str, namespace: str) -> dict[str, bytes]:
        raw = self._server.get("v1", kind, name, namespace) or {}
        plain = {key: str(value).encode() for key, value in (raw.get("stringData") or {}).items()}
        if kind == "ConfigMap":
            return {key: str(value).encode() for key, value in (raw.get("data") or {}).items()}
        return {key: base64.b64decode(value) for key, value in (raw.get("data") or {}).items()} | plain

    def place_of(self, pod: Raw) -> PodPlace:
        """Where a pod runs. On loopback one that a Service with ports selects has the Service's address, so that its
        successor has it as well."""
        meta = pod["metadata"]
        for service in self._server.find("v1", "Service", meta["namespace"]) if not self._network.has_names else ():
            wanted = service["spec"].get("selector") or {}
            labels = meta.get("labels") or {}
            if service["spec"].get("ports") and wanted and all(labels.get(key) == wanted[key] for key in wanted):
                return self._network.place(f"service {meta['namespace']}/{service['metadata']['name']}", meta["name"])
        return self._network.place(meta["uid"], pod["spec"].get("hostname") or meta["name"])
