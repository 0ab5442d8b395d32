"""`resilin k8s`: manifests from the command line."""

import json
from typing import Any

import pytest
import yaml

from resilin.launcher import main
from resilin.operator.crd import schema
from resilin.operator.crd.definition import definition
from resilin.testing.kube import kubelet, structural


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
    given = "--node-rank, --rdzv-endpoint, --secret-file"
    assert text.startswith(f"# Left out, for the operator gives it to each pod: {given}\n")
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
        (["--namespace=X Y", "--", "elastic-run", "t.py"], "--namespace: expected the name of a namespace, got 'X Y'"),
        (["--namespace=", "--", "elastic-run", "t.py"], "--namespace: expected the name of a namespace, got ''"),
        (["--shm-size=big", "--", "elastic-run", "t.py"], "--shm-size: expected a size above 0, such as 1Gi"),
        (["--queue=Team A", "--", "elastic-run", "t.py"], "--queue: expected the name of a queue, got 'Team A'"),
        (["--image=a b", "--", "elastic-run", "t.py"], "--image: expected the name of an image, got 'a b'"),
        (["--image=", "--", "elastic-run", "t.py"], "--image: expected the name of an image, got ''"),
        (["--", "elastic-run", "--nnodes=4097", "t.py"], "--nnodes: expected at most 4096 pods"),
        (["--", "elastic-run", "--nproc-per-node=65", "t.py"], "--nproc-per-node: expected 1 to 64 or one of auto"),
        (["--", "elastic-run", "--nproc-per-node=all", "t.py"], "--nproc-per-node: expected 1 to 64 or one of auto"),
        (["--", "elastic-run", "--max-restarts=-4", "t.py"], "--max-restarts: expected 0 to 1000000, got -4"),
        (["--", "elastic-run", "--shutdown-timeout=nan", "t.py"], "--shutdown-timeout: expected 0 to 86400, got nan"),
        (["--", "elastic-run", "--shutdown-timeout=-1", "t.py"], "--shutdown-timeout: expected 0 to 86400, got -1"),
        (["--", "elastic-run", "--hang-timeout=1e9", "t.py"], "--hang-timeout: expected 0 to 86400, got 1e+09"),
        (["--", "env", "A=1", "elastic-run", "t.py"], "expected a command line behind --"),
    ],
)
def test_render_refuses_what_makes_no_job(words: list[str], expected: str, capsys: pytest.CaptureFixture[str]):
    assert main.main(["k8s", "render", "--image=a", *words]) == 2
    assert expected in capsys.readouterr().err


def _command(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    job = rendered(capsys, *words)
    assert accepted(job)
    return job["spec"]["template"]["spec"]["containers"][0]["command"]


def test_render_needs_no_dashes_before_the_command(capsys: pytest.CaptureFixture[str]):
    words = ["elastic-run", "--nnodes=2", "t.py", "--image", "of-the-program", "--", "-x"]
    assert _command(capsys, *words) == ["elastic-run", "t.py", "--image", "of-the-program", "--", "-x"]


def test_render_keeps_every_word_as_the_program_is_to_get_it(capsys: pytest.CaptureFixture[str]):
    words = [
        "--lr=.1=x",
        "a b",
        "",
        "it's",
        '"',
        "#x",
        "- y",
        "{a: 1}",
        "yes",
        "12",
        "null",
        "\n",
        "$HOME",
        "${A}",
        "ä",
    ]
    template = "--log-line-prefix-template=[${rank}]: =a b"
    assert _command(capsys, "--", "elastic-run", template, "t.py", *words) == ["elastic-run", template, "t.py", *words]
    assert _command(capsys, "--", "elastic-run", "--", "-t.py", "-a") == ["elastic-run", "--", "-t.py", "-a"]


def test_render_keeps_what_kubernetes_would_take_for_a_variable(capsys: pytest.CaptureFixture[str]):
    for given, written in (
        ("$(date)", "$$(date)"), ("a$$b", "a$$$b"), ("$$(X)", "$$$$(X)"), ("$x$(Y)", "$x$$(Y)"), ("a$", "a$"),
    ):  # fmt: skip
        assert _command(capsys, "--", "elastic-run", "t.py", given)[-1] == written
        assert kubelet.expanded(written, {"date": "?", "X": "?", "Y": "?"}) == given


def test_render_leaves_out_what_the_operators_probes_rely_on(capsys: pytest.CaptureFixture[str]):
    words = ["elastic-run", "--health-port=3", "--termination-message=/x", "t.py"]
    text = printed(capsys, "render", "--image=a", "--", *words)
    assert text.startswith("# Left out, for the operator gives it to each pod: --health-port, --termination-message\n")
    assert yaml.safe_load(text)["spec"]["template"]["spec"]["containers"][0]["command"] == ["elastic-run", "t.py"]
