"""`resilin k8s`: manifests from the command line."""

import json
from typing import Any

import pytest
import yaml

from resilin.launcher import main
from resilin.operator.crd import schema
from resilin.operator.crd.definition import definition
from resilin.testing.kube import structural


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main.main(["k8s", *words]) == 0
    return capsys.readouterr().out


def rendered(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    job = yaml.safe_load(printed(capsys, "render", "--image=resilin:cpu", *words))
    assert isinstance(job, dict)
    return job


def accepted(job: dict[str, Any]) -> bool:
    assert structural.prune(job, schema.root(), root=True) == []
    structural.fill_in(job, schema.root())
    return structural.check(job, None, schema.root()) == []


def test_crd_prints_the_definition(capsys: pytest.CaptureFixture[str]):
    assert yaml.safe_load(printed(capsys, "crd")) == definition()
    assert json.loads(printed(capsys, "crd", "--json")) == definition()


def test_render_turns_flags_into_fields_and_keeps_the_others(capsys: pytest.CaptureFixture[str]):
    line = (
        "elastic-run --nnodes 2:4 --nproc-per-node gpu --max-restarts 5 --tee 3 --rdzv-id My_Job -m pkg.train --lr .1"
    )
    job = rendered(capsys, "--gpus=2", "--shm-size=1Gi", "--queue=training", "--namespace=ml", "--", *line.split())
    assert job["metadata"] == {"name": "my-job", "namespace": "ml"}
    container = {
        "name": "worker",
        "image": "resilin:cpu",
        "command": ["elastic-run", "--module", "--tee=3", "pkg.train", "--lr", ".1"],
        "resources": {"limits": {"nvidia.com/gpu": 2}},
    }
    assert job["spec"] == {
        "replicas": 4,
        "minReplicas": 2,
        "maxReplicas": 4,
        "nprocPerNode": "gpu",
        "maxRestarts": 5,
        "shmSize": "1Gi",
        "queueName": "training",
        "template": {"spec": {"containers": [container]}},
    }
    assert accepted(job)


def test_render_names_the_flags_that_the_operator_gives(capsys: pytest.CaptureFixture[str]):
    words = ["--", "torchrun", "--nnodes=2", "--node-rank=1", "--rdzv-endpoint=a:1", "--secret-file=/s", "train.py"]
    text = printed(capsys, "render", "--image=a", *words)
    assert text.startswith("# Left out, for the operator gives it to each pod: --node-rank, --secret-file\n")
    job = yaml.safe_load(text)
    assert job["spec"]["template"]["spec"]["containers"][0]["command"] == ["torchrun", "train.py"]
    assert job["metadata"]["name"] == "train"
    assert accepted(job)


def test_render_takes_an_etcd_and_time_limits(capsys: pytest.CaptureFixture[str]):
    limits = "--hang-timeout 90.5 --shutdown-timeout 7"
    words = f"elastic-run --rdzv-backend etcd --rdzv-endpoint etcd://a:2379,b:2379 {limits} t.py"
    spec = rendered(capsys, "--", *words.split())["spec"]
    assert spec["rdzv"] == {"backend": "etcd", "endpoint": "a:2379,b:2379"}
    assert spec["elasticPolicy"] == {"graceSeconds": 7, "hangTimeoutSeconds": 91}


def test_render_keeps_a_hang_timeout_that_is_off(capsys: pytest.CaptureFixture[str]):
    job = rendered(capsys, "--", "elastic-run", "--hang-timeout", "off", "t.py")
    assert job["spec"]["template"]["spec"]["containers"][0]["command"] == ["elastic-run", "--hang-timeout=off", "t.py"]
    assert "elasticPolicy" not in job["spec"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "expected a command line behind --"),
        (["--", "python", "train.py"], "expected a command line behind --"),
        (["--", "elastic-run", "--rdzv-backend=file", "--rdzv-endpoint=/x", "t.py"], "pods share no folder"),
        (["--", "elastic-run", "--rdzv-backend=etcd", "t.py"], "expected --rdzv-endpoint, which pods can reach"),
        (
            ["--", "elastic-run", "--rdzv-backend=etcd", "--rdzv-endpoint=etcd://a:1?ca=/x", "t.py"],
            "files of TLS are a Secret that rdzv.tls names",
        ),
        (["--", "elastic-run", "--nnodes=4:2", "t.py"], "--nnodes: expected a number or MIN:MAX"),
        (["--name=No_Name", "--", "elastic-run", "t.py"], "--name: expected at most 50 lower-case letters"),
        (["--gpus=-1", "--", "elastic-run", "t.py"], "--gpus: expected 0 or more, got -1"),
    ],
)
def test_render_refuses_what_makes_no_job(words: list[str], expected: str, capsys: pytest.CaptureFixture[str]):
    assert main.main(["k8s", "render", "--image=a", *words]) == 2
    assert expected in capsys.readouterr().err
