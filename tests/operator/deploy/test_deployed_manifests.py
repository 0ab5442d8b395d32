"""The manifests in deploy/k8s: valid for two versions of Kubernetes, restricted, and with no right too many."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from resilin.operator.crd import schema
from resilin.testing.kube import rbac, structural
from resilin.testing.kube.failures import Failure
from resilin.testing.kube.objects import Target
from resilin.testing.kube.rbac import User
from resilin.testing.kube.routes import Request
from resilin.testing.kube.server import KubeServer

K8S = Path(__file__).resolve().parents[3] / "deploy" / "k8s"
VERSIONS = ("1.36", "1.37")  # the two newest
OTHERS = ("Kustomization", "ElasticJob", "ResourceFlavor", "ClusterQueue", "LocalQueue")  # not Kubernetes' own
FILES = sorted(path for path in K8S.rglob("*.yaml") if path.name != "operator.yaml")  # which is a patch

# What the operator does, and nothing else: verb and resource.
OPERATOR_DOES = {
    "elasticjobs": {"get", "list", "watch", "patch", "delete"},
    "elasticjobs/status": {"update"},
    "elasticjobs/finalizers": {"update"},
    "pods": {"get", "list", "watch", "create", "delete"},
    "services": {"get", "list", "watch", "create", "patch"},
    "configmaps": {"get", "list", "watch", "create", "patch"},
    "secrets": {"create"},
    "poddisruptionbudgets": {"get", "list", "watch", "create", "patch"},
    "networkpolicies": {"get", "list", "watch", "create", "patch"},
    "events": {"list", "create", "patch"},
    "nodes": {"get", "list", "watch"},
}


def objects(path: Path) -> list[dict[str, Any]]:
    return [one for one in yaml.safe_load_all(path.read_text()) if one]


def everything() -> Iterator[tuple[Path, dict[str, Any]]]:
    for path in FILES:
        for one in objects(path):
            yield path, one


def of_kind(path: Path, kind: str, name: str = "") -> dict[str, Any]:
    return next(one for one in objects(path) if one["kind"] == kind and name in ("", one["metadata"]["name"]))


@pytest.mark.parametrize("version", VERSIONS)
def test_manifests_are_valid(version: str):
    checked = 0
    for _, one in everything():
        if one["kind"] not in OTHERS:
            kubernetes_validate.validate(one, version, strict=True)
            checked += 1
    assert checked >= 12


@pytest.mark.parametrize("version", VERSIONS)
def test_a_mistake_in_a_manifest_would_be_found(version: str):
    deployment = of_kind(K8S / "base" / "deployment.yaml", "Deployment")
    deployment["spec"]["template"]["spec"]["containers"][0]["imagePullPolice"] = "Always"
    with pytest.raises(kubernetes_validate.ValidationError, match="imagePullPolice"):
        kubernetes_validate.validate(deployment, version, strict=True)


def test_the_example_job_is_accepted():
    job = of_kind(K8S / "overlays" / "embedded" / "job.yaml", "ElasticJob")
    assert structural.prune(job, schema.root(), root=True) == []
    structural.fill_in(job, schema.root())
    assert structural.check(job, None, schema.root()) == []


@pytest.mark.parametrize(
    ("path", "kind"), [("base/deployment.yaml", "Deployment"), ("overlays/etcd/etcd.yaml", "StatefulSet")]
)
def test_pods_meet_the_restricted_pod_security_standard(path: str, kind: str):
    pod = of_kind(K8S / path, kind)["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in pod["containers"]:
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["readOnlyRootFilesystem"] is True
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert container["resources"]["limits"]["memory"]
        assert not container["image"].endswith(":latest")
        assert ":" in container["image"]


def rights(role: dict[str, Any]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for rule in role["rules"]:
        for resource in rule["resources"]:
            found.setdefault(resource, set()).update(rule["verbs"])
    return found


def test_the_operator_has_the_rights_that_it_uses_and_no_others():
    assert rights(of_kind(K8S / "base" / "roles.yaml", "ClusterRole")) == OPERATOR_DOES
    in_one = rights(of_kind(K8S / "overlays" / "namespaced" / "role.yaml", "Role"))
    assert in_one == {name: verbs for name, verbs in OPERATOR_DOES.items() if name != "nodes"}


def test_no_rule_has_a_star():
    for path, one in everything():
        for rule in one.get("rules", ()) if "Role" in one["kind"] else ():
            for words in rule.values():
                assert "*" not in words, path


def test_roles_let_the_operator_do_its_work_and_read_no_secret():
    with KubeServer() as kube:
        kube.create(of_kind(K8S / "base" / "namespace.yaml", "Namespace"))
        for path in ("roles.yaml", "lease_role.yaml"):
            for one in objects(K8S / "base" / path):
                one["metadata"].setdefault("namespace", "resilin-system")
                kube.create(one)
        user = User.of_account("resilin-system", "resilin-operator")

        def may(verb: str, group: str, plural: str, namespace: str = "ml", name: str = "") -> bool:
            resource = next(one for one in kube.registry.all() if (one.group, one.plural) == (group, plural))
            try:
                rbac.authorize(kube.storage, user, Request(verb, Target(resource, namespace, name), {}))
            except Failure:
                return False
            return True

        assert may("create", "", "pods")
        assert may("create", "", "secrets")
        assert may("watch", "", "nodes", "")
        assert not may("get", "", "secrets")
        assert not may("list", "", "secrets")
        assert not may("patch", "", "pods")
        assert not may("create", "", "namespaces", "")
        assert may("update", "coordination.k8s.io", "leases", "resilin-system", "resilin-operator")
        assert not may("update", "coordination.k8s.io", "leases", "resilin-system", "another")
        assert not may("update", "coordination.k8s.io", "leases", "ml", "resilin-operator")


def test_every_file_belongs_to_a_kustomization():
    for folder in (K8S / "base", *sorted((K8S / "overlays").iterdir())):
        told = yaml.safe_load((folder / "kustomization.yaml").read_text())
        used = {one for one in told["resources"] if one.endswith(".yaml")}
        used |= {one["path"] for one in told.get("patches", ()) if "path" in one}
        assert {path.name for path in folder.glob("*.yaml")} == used | {"kustomization.yaml"}
