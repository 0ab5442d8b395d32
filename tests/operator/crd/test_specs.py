"""What an ElasticJob may say, by its schema and rules, in two implementations of CEL."""

import copy
from typing import Any

import google_rules
import pytest
import yaml
from refused_specs import ALL, CHANGES, IMAGE, SUSPENDED, Refused, container

from resilin.operator import yaml_text
from resilin.operator.crd import schema
from resilin.operator.crd.definition import definition
from resilin.testing.kube import patches, rules, structural

ROOT = schema.root()
ENGINES = {"cel": rules.compiled, "google": google_rules.compiled}
GOOD: dict[str, Any] = {"replicas": 2, "template": {"spec": {"containers": [{"name": "worker", "image": IMAGE}]}}}


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Any:
    return ENGINES[request.param]


def completed(change: dict[str, Any], name: str = "digits") -> dict[str, Any]:
    """A job with a changed spec, as a server has it before it checks it."""
    value = {"apiVersion": "resilin.dev/v1alpha1", "kind": "ElasticJob", "metadata": {"name": name}}
    value["spec"] = patches.merge(copy.deepcopy(GOOD), change)
    assert structural.prune(value, ROOT, root=True) == []
    structural.fill_in(value, ROOT)
    return value


def causes(value: dict[str, Any], old: dict[str, Any] | None, engine: Any) -> list[str]:
    return [cause.text for cause in structural.check(value, old, ROOT, engine)]


def test_at_least_sixty_mistakes_are_known():
    assert len(ALL) >= 60
    assert len({(one.name, one.before is None) for one in ALL}) > 0.95 * len(ALL)


@pytest.mark.parametrize("refused", ALL, ids=lambda one: one.name)
def test_a_mistake_is_refused_with_the_field_and_the_rule(refused: Refused, engine: Any):
    old = None if refused.before is None else completed(refused.before)
    change = refused.change if refused.before is None else patches.merge(refused.before, refused.change)
    # what a merge takes away is not to come back from the spec before
    change = {**{key: None for key in refused.change if refused.change[key] is None}, **change}
    found = causes(completed(change), old, engine)
    assert any(f"{refused.field}: " in text and refused.words in text for text in found), found


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"minReplicas": 2, "maxReplicas": 2},
        {"nprocPerNode": "gpu", "shmSize": "1.5Gi"},
        {"rdzv": {"backend": "etcd", "endpoint": "a:2379,b.c:2379,[fd00::1]:2379", "tls": {"secretName": "ca"}}},
        {"rdzv": {"resources": {"requests": {"cpu": "50m", "memory": 1000000}}}},
        {"checkpoint": {"bucket": {"url": "s3://models/run-1", "secretName": "keys"}}},
        {"checkpoint": {"volume": {"claimName": "data"}}},
        {"elasticPolicy": {"hangTimeoutSeconds": 60, "forceDeleteLost": True}},
        {"queueName": "training", "priorityClassName": "low", "suspend": True},
        {"workloadApi": True, "managedBy": "kueue.x-k8s.io/multikueue"},
        {"activeDeadlineSeconds": 3600, "ttlSecondsAfterFinished": 0, "cleanPodPolicy": "None", "maxRestarts": 0},
        container(resources={"requests": {"nvidia.com/gpu": 2}, "limits": {"nvidia.com/gpu": 2}}, tty=True),
        container(resources={"limits": {"nvidia.com/gpu": "2", "amd.com/gpu": "1k", "cpu": "0.5", "memory": "1.5Gi"}}),
        container(volumeMounts=[{"name": "a", "mountPath": "/dev/shm"}, {"name": "b", "mountPath": "/etc/resilinx"}]),
        {
            "template": {
                "metadata": {"labels": {"app.kubernetes.io/name": "A_b.c", "x": ""}, "annotations": {"a/B_c": "é"}}
            }
        },
        container(ports=[{"containerPort": 80}, {"containerPort": 80, "protocol": "UDP"}]),
        container(env=[{"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}]),
        {"template": {"metadata": {"labels": {"team": "a"}}, "spec": {"affinity": {"nodeAffinity": {}}}}},
        {"template": {"spec": {"initContainers": [{"name": "log", "image": "b", "restartPolicy": "Always"}]}}},
        {"template": {"spec": {"restartPolicy": "Never", "someFieldOfLaterVersions": {"a": [1]}}}},
    ],
    ids=str,
)
def test_a_good_spec_is_accepted(change: dict[str, Any], engine: Any):
    assert causes(completed(change), None, engine) == []


@pytest.mark.parametrize("change", CHANGES[:-1], ids=lambda one: one.name)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_suspended_job_may_be_changed(change: Refused, when: str, engine: Any):
    """Before it is resumed, in the same write as it is resumed, and in the same write as it is suspended."""
    before = {**(change.before or {}), "suspend": when == "before"}
    after = {**patches.merge(before, change.change), "suspend": when == "after"}
    assert causes(completed(after), completed(before), engine) == []
    assert causes(completed({**after, **SUSPENDED}), completed({**before, **SUSPENDED}), engine) == []


def test_sizes_and_limits_may_change_while_a_job_runs(engine: Any):
    after = completed({"replicas": 4, "minReplicas": 2, "maxReplicas": 8, "maxRestarts": 9, "suspend": True})
    assert causes(after, completed({}), engine) == []


@pytest.mark.parametrize("name", ["1digits", "digits.one", "d" * 51])
def test_a_name_that_no_service_can_have_is_refused(name: str, engine: Any):
    found = causes(completed({}, name), None, engine)
    assert len(found) == 1
    assert "metadata.name becomes that of Services and pods" in found[0]


def test_defaults_are_those_that_the_documentation_tells():
    spec = completed({})["spec"]
    del spec["template"]
    assert spec == {
        "replicas": 2,
        "minReplicas": 1,
        "nprocPerNode": 1,
        "maxRestarts": 3,
        "rdzv": {"backend": "embedded"},
        "elasticPolicy": {
            "graceSeconds": 30,
            "backoffSeconds": 10,
            "excludeAfter": 3,
            "nodeLostSeconds": 40,
            "forceDeleteLost": False,
        },
        "suspend": False,
        "cleanPodPolicy": "Running",
        "managedBy": "resilin.dev/operator",
        "workloadApi": False,
    }


def test_unknown_fields_are_dropped_but_not_those_of_pods():
    value = completed({})
    value["spec"]["worldSize"] = 3
    value["spec"]["rdzv"]["port"] = 1
    value["spec"]["template"]["spec"]["gangName"] = "a"
    assert sorted(structural.prune(value, ROOT, root=True)) == ["spec.rdzv.port", "spec.worldSize"]
    assert value["spec"]["template"]["spec"]["gangName"] == "a"
    assert "worldSize" not in value["spec"]


def test_the_definition_read_as_yaml_is_the_one_in_python():
    assert yaml.safe_load(yaml_text.dump(definition())) == definition()
