"""The operator's command line: what is wrong is said in one line, with the flag and what was expected."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from resilin.operator import main
from resilin.testing.patience import PATIENCE_S

NOWHERE = "http://127.0.0.1:1"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--workers", "0"], "argument --workers: expected a whole number from 1 to 1024, got '0'"),
        (["--workers=-1"], "argument --workers: expected a whole number from 1 to 1024, got '-1'"),
        (["--workers", "two"], "argument --workers: expected a whole number from 1 to 1024, got 'two'"),
        (["--health-port", "65536"], "argument --health-port: expected a whole number from 0 to 65535, got '65536'"),
        (["--health-port=-1"], "argument --health-port: expected a whole number"),
        (["--resync", "0"], "argument --resync: expected 1 to 86400 seconds, got '0'"),
        (["--resync", "nan"], "argument --resync: expected 1 to 86400 seconds, got 'nan'"),
        (["--resync", "inf"], "argument --resync: expected 1 to 86400 seconds, got 'inf'"),
        (["--watch=-5"], "argument --watch: expected 1 to 86400 seconds, got '-5'"),
        (["--agents=-1"], "argument --agents: expected 0 to 86400 seconds, got '-1'"),
        (["--namespace", ""], "argument --namespace: expected 1 to 63 lower-case letters"),
        (["--namespace", "Team A"], "argument --namespace: expected 1 to 63 lower-case letters"),
        (["--lease-namespace", ""], "argument --lease-namespace: expected 1 to 63 lower-case letters"),
        (["--server", ""], "argument --server: expected a URL such as"),
        (["--server", "127.0.0.1:8001"], "argument --server: expected a URL such as"),
        (["--server", "http://a:99999"], "argument --server: expected a URL such as"),
        (["--name", "x"], "unrecognized arguments: --name x"),
        (["digits"], "unrecognized arguments: digits"),
    ],
    ids=" ".join,
)
def test_a_bad_flag_is_named_with_what_was_expected(words, expected, capsys):
    with pytest.raises(SystemExit) as refused:
        main.main(words)
    assert refused.value.code == 2
    assert expected in capsys.readouterr().err


_CONTEXT = "current-context: a\ncontexts: [{name: a, context: {cluster: c, user: u}}]\nusers: [{name: u, user: {}}]\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, "not found"),
        ("a: [", "while parsing"),
        ("hello", "AttributeError"),
        (_CONTEXT, "no cluster"),
        (f"{_CONTEXT}clusters: [{{name: c, cluster: {{server: here}}}}]", "server: expected a URL, got 'here'"),
        (
            f"{_CONTEXT}clusters: [{{name: c, cluster: {{server: 'https://a', certificate-authority: /none}}}}]",
            "the certificates or the user cannot be used",
        ),
    ],
    ids=["none", "no YAML", "a word", "no cluster", "no URL", "no certificate"],
)
def test_a_kubeconfig_that_cannot_be_used_is_no_traceback(text, expected, tmp_path, monkeypatch, capsys):
    file = tmp_path / "config"
    if text is not None:
        file.write_text(text)
    monkeypatch.setenv("KUBECONFIG", str(file))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert main.main(["--health-host=127.0.0.1", "--health-port=0"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("resilin.operator: error: ")
    assert said.count("\n") == 1
    assert expected in said


def test_a_port_that_is_taken_and_a_namespace_that_is_none_are_said(monkeypatch, capsys):
    assert main.main(["--server", NOWHERE, "--health-host=192.0.2.1"]) == 2
    assert "--health-host, --health-port: cannot listen at 192.0.2.1:8080: " in capsys.readouterr().err
    monkeypatch.setenv("RESILIN_POD_NAMESPACE", "A.b")
    assert main.main(["--server", NOWHERE, "--health-host=127.0.0.1", "--health-port=0"]) == 2
    assert "environment variable RESILIN_POD_NAMESPACE: expected" in capsys.readouterr().err


def test_who_waits_for_leadership_answers_its_kubelet_and_ends_when_asked_to(cluster, repository: Path):
    with cluster.server.storage.lock:
        lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "resilin-operator"}}
        cluster.server.create({**lease, "spec": {"holderIdentity": "another", "leaseDurationSeconds": 3600}})
    words = ["--server", cluster.url, "--leader-elect", "--health-host=127.0.0.1", "--health-port=0"]
    command = [sys.executable, "-m", "resilin.operator", *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=repository) as process:
        try:
            found = None
            while found is None:
                line = process.stderr.readline()
                assert line, "it has ended"
                found = re.search(r"health_port=(\d+)", line)
            for page in ("healthz", "readyz"):
                with urllib.request.urlopen(f"http://127.0.0.1:{found[1]}/{page}", timeout=PATIENCE_S) as answer:
                    assert answer.read() == b"ok\n"
            with urllib.request.urlopen(f"http://127.0.0.1:{found[1]}/metrics", timeout=PATIENCE_S) as answer:
                told = answer.read().decode()
            assert "resilin_operator_leader 0\n" in told
            assert "resilin_operator_watch_silence_seconds 0\n" in told
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()
