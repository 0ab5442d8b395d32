"""What a kubelet asks for and reads: health checks over gRPC, and the termination message."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from typing import Any

import grpc
import pytest

from resilin.elastic.agent.config import Outcome
from resilin.elastic.failure import Failure
from resilin.launcher import termination
from resilin.testing.patience import PATIENCE_S
from resilin.testing.ports import held

_RUN = [sys.executable, "-m", "resilin.launcher.elastic_run", "--standalone"]


def _check(port: int, service: str = "") -> bytes:
    name = service.encode()
    request = bytes([0x0A, len(name)]) + name if name else b""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        return bytes(check(request, timeout=PATIENCE_S, wait_for_ready=True))


def test_an_agent_serves_once_its_node_is_in_the_world_and_tells_unknown_services_apart():
    with held(1) as ports:
        port = ports[0]
        command = [*_RUN, "--health-port", str(port), "--no-python", "sleep", "600"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        try:
            assert _check(port, "liveness") == b"\x08\x01"
            while _check(port) != b"\x08\x01":
                assert process.poll() is None
            with pytest.raises(grpc.RpcError) as refused:
                _check(port, "other")
            assert refused.value.code() is grpc.StatusCode.NOT_FOUND
        finally:
            process.terminate()
            process.communicate(timeout=PATIENCE_S)


def test_a_port_for_health_checks_that_is_taken_is_wrong_usage():
    with held(1) as (port,), socket.create_server(("127.0.0.1", port)):
        command = [*_RUN, "--health-port", str(port), "--no-python", "true"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 2
    assert f"--health-port: 127.0.0.1:{port} cannot be listened on: Address already in use" in done.stderr


def _world(port: int) -> dict[str, Any]:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        ask = channel.unary_unary("/resilin.agent.v1.Agent/World")
        return json.loads(ask(b"", timeout=PATIENCE_S, wait_for_ready=True))


def test_an_agent_tells_of_the_workers_that_it_has_replaced(tmp_path):
    program = tmp_path / "killed_once.py"
    program.write_text(
        "import os, signal, time\n"
        "from resilin import elastic\n"
        "@elastic.run\n"
        "def train(state):\n"
        f"    mark = {str(tmp_path / 'mark')!r}\n"
        "    while True:\n"
        "        state.commit()\n"
        "        if not os.path.exists(mark):\n"
        "            open(mark, 'w').close()\n"
        "            os.kill(os.getpid(), signal.SIGKILL)\n"
        "        time.sleep(0.02)\n"
        "train(elastic.State())\n"
    )
    with held(1) as (port,):
        command = [*_RUN, "--health-port", str(port), "--max-restarts", "3", str(program)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        try:
            while not (world := _world(port))["faults"] or world["recovering"]:
                assert process.poll() is None
        finally:
            process.terminate()
            process.communicate(timeout=PATIENCE_S)
    (fault,) = world["faults"]
    assert world["restarts"] == 1
    assert fault["generation"] < world["generation"]
    assert (fault["number"], fault["rank"], fault["cause"]) == (1, 0, "SIGKILL")
    assert "killed by SIGKILL" in fault["message"]
    assert 0 < fault["lost_s"] < PATIENCE_S


def test_an_agent_behind_a_shell_leaves_when_its_container_is_to_stop(tmp_path):
    variables = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path), "RESILIN_RDZV_ID": f"job-{os.getpid()}"}
    run = " ".join(map(shlex.quote, [*_RUN, "--no-python", "sleep", "600"]))
    shell = ["sh", "-c", f"trap : TERM; {run}; exit 7"]  # as a first process that hands nothing on
    hook = [sys.executable, "-m", "resilin.launcher.main", "k8s", "leave", f"--timeout={PATIENCE_S}"]
    with subprocess.Popen(shell, stderr=subprocess.PIPE, env=variables, text=True) as process:
        try:
            while not list(tmp_path.glob("resilin/*.sock")):
                assert process.poll() is None
                time.sleep(0.02)
            process.send_signal(signal.SIGTERM)
            other = {**variables, "RESILIN_RDZV_ID": "another"}
            assert subprocess.run(hook, timeout=PATIENCE_S, env=other, check=False).returncode == 0
            assert process.poll() is None, "an agent of another job is left alone"
            assert subprocess.run(hook, timeout=PATIENCE_S, env=variables, check=False).returncode == 0
            assert process.wait(PATIENCE_S) == 7, "the hook returned when the agent had left"
            assert "SIGTERM: asking the workers to end" in process.stderr.read()
        finally:
            process.kill()


def test_who_leaves_must_say_which_job():
    command = [sys.executable, "-m", "resilin.launcher.main", "k8s", "leave"]
    variables = {key: value for key, value in os.environ.items() if key != "RESILIN_RDZV_ID"}
    done = subprocess.run(command, timeout=PATIENCE_S, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "expected --job, or the variable RESILIN_RDZV_ID" in done.stderr


def test_the_termination_message_begins_with_the_first_line_of_the_report(tmp_path):
    program, message = tmp_path / "boom.py", tmp_path / "message"
    program.write_text("raise ValueError('boom')")
    message.write_text("from an earlier container, " * 100)
    done = subprocess.run(
        [*_RUN, "--termination-message", str(message), str(program)],
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    first = next(line for line in done.stderr.splitlines() if line.startswith("elastic-run: job failed: "))
    assert message.read_text().splitlines()[0] == first


def test_a_job_that_succeeds_leaves_no_message(tmp_path):
    message = tmp_path / "message"
    command = [*_RUN, "--termination-message", str(message), "--no-python", "true"]
    assert subprocess.run(command, timeout=PATIENCE_S, check=False).returncode == 0
    assert not message.exists()


def test_a_message_that_cannot_be_written_is_said_and_changes_nothing_else(tmp_path):
    command = [*_RUN, "--termination-message", str(tmp_path / "none" / "message"), "--no-python", "false"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 1
    assert "the termination message is not written" in done.stderr


def test_a_long_report_is_cut_to_what_kubelets_take():
    failure = Failure(
        rank=1, local_rank=0, node="n", host="h", pid=7, generation=1, code=1, type="ValueError", message="x",
        traceback="line of a traceback äöü\n" * 1000,
    )  # fmt: skip
    text = termination.text(Outcome(code=1, reason="failed", failure=failure))
    assert text.startswith("elastic-run: job failed: rank 1 (host h, pid 7) raised ValueError: x")
    assert termination.MOST_BYTES - 4 <= len(text.encode()) <= termination.MOST_BYTES
