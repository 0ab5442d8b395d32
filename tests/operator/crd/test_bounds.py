"""The definition is one that a real server takes: structural, bounded, and cheap to check."""

import copy
import json
from typing import Any

import pytest
import yaml

from resilin.operator import yaml_text
from resilin.operator.crd import schema
from resilin.operator.crd.definition import definition
from resilin.testing.kube import cel_cost, definitions

MOST_ANNOTATION_BYTES = 256 << 10  # kubectl apply keeps a copy of what it applied in one
COST_SHARE = 0.5  # of a server's budget: its estimate and ours differ


def test_every_string_list_and_map_has_a_bound():
    assert list(cel_cost.unbounded(schema.root(), "")) == []


def test_the_schema_is_structural():
    assert list(definitions.structure(schema.root(), "", root=True)) == []
    assert definitions.problems(definition()) == []


def test_no_rule_costs_more_than_half_of_what_a_server_allows():
    costs = {where: cost for where, _, cost in cel_cost.costs(schema.root(), "")}
    assert len(costs) > 20
    assert max(costs.values()) < COST_SHARE * cel_cost.RULE_BUDGET
    assert sum(costs.values()) < COST_SHARE * cel_cost.TOTAL_BUDGET


def test_kubectl_can_apply_the_definition():
    assert len(json.dumps(definition())) < MOST_ANNOTATION_BYTES / 4


def test_the_definition_in_deploy_is_this_one(repository: Any):
    path = repository / "deploy" / "k8s" / "base" / "crd.yaml"
    assert path.read_text() == yaml_text.dump(definition()), "run: resilin k8s crd > deploy/k8s/base/crd.yaml"
    assert yaml.safe_load(path.read_text()) == definition()


def broken(change: Any) -> list[str]:
    value = copy.deepcopy(definition())
    change(value["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"])
    return [cause.text for cause in definitions.problems(value)]


def _unbound(spec: Any) -> None:
    containers = spec["properties"]["template"]["properties"]["spec"]["properties"]["containers"]
    del containers["maxItems"], containers["items"]["properties"]["volumeMounts"]["maxItems"]


def _no_type(spec: Any) -> None:
    del spec["properties"]["shmSize"]["type"]


def _no_items(spec: Any) -> None:
    del spec["properties"]["template"]["properties"]["spec"]["properties"]["containers"]["items"]


def _no_key(spec: Any) -> None:
    del spec["properties"]["template"]["properties"]["spec"]["properties"]["containers"]["items"]["required"]


def _no_cel(spec: Any) -> None:
    spec["x-kubernetes-validations"].append({"rule": "self.replicas >", "message": "x"})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_unbound, "estimated rule cost exceeds budget by factor of"),
        (_no_type, "properties[shmSize].type: Required value"),
        (_no_items, "properties[containers].items: Required value"),
        (_no_key, "so it must have a default or be a required property"),
        (_no_cel, "compilation failed"),
    ],
    ids=["list without a bound", "no type", "list of nothing", "key that may be missing", "no CEL"],
)
def test_a_definition_that_a_server_refuses_is_found(change: Any, words: str):
    assert any(words in text for text in broken(change)), broken(change)


def test_the_lint_names_what_has_no_bound():
    spec: Any = {
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "list": {"type": "array", "items": {"type": "string", "maxLength": 3}},
            "map": {"type": "object", "additionalProperties": {"type": "integer"}},
            "amount": {"x-kubernetes-int-or-string": True},
            "fine": {"type": "string", "enum": ["a"]},
        },
    }
    assert list(cel_cost.unbounded(spec, "")) == [
        ".text: maxLength",
        ".list: maxItems",
        ".map: maxProperties",
        ".amount: maxLength",
    ]
