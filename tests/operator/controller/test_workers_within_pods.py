"""Workers that agents replace within a pod: no object of the cluster tells of them, so agents are asked."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
from running_operator import ClusterUnderTest, RunningOperator, job

from resilin.operator import agents, names, observed
from resilin.operator.controller import OperatorOptions

METHOD = "/resilin.agent.v1.Agent/World"


class Agent(grpc.GenericRpcHandler):
    """What answers for a pod."""

    def __init__(self) -> None:
        self.answer: Any = {"generation": 1, "restarts": 0, "recovering": False, "faults": []}

    def service(self, call: Any) -> Any:
        assert call.method == METHOD
        return grpc.unary_unary_rpc_method_handler(lambda request, context: json.dumps(self.answer).encode())


@contextmanager
def served(host: str) -> Iterator[Agent]:
    agent = Agent()
    with ThreadPoolExecutor(1) as pool:
        server = grpc.server(pool, handlers=(agent,), options=[("grpc.so_reuseport", 0)])
        server.add_insecure_port(f"{host}:{names.HEALTH_PORT}")
        server.start()
        try:
            yield agent
        finally:
            server.stop(None).wait()


def _address(number: int) -> str:
    own = os.getpid()
    return f"127.{1 + own // 256 % 60}.{own % 256}.{number}"


def _fault(number: int, **fields: Any) -> dict[str, Any]:
    return {
        "number": number, "rank": 1, "cause": "SIGKILL", "message": "rank 1 (host a, pid 7) killed by SIGKILL",
        "time": time.time(), "lost_s": 0.25, **fields,
    }  # fmt: skip


def _run_with_addresses(cluster: ClusterUnderTest) -> bool:
    cluster.run_pods()
    for name in cluster.pods():
        cluster.set_pod(name, podIP=_address(1 + int(name.rpartition("-")[2])))
    return _is_calm(cluster)


def _is_calm(cluster: ClusterUnderTest) -> bool:
    status = cluster.job().get("status") or {}
    return status.get("readyWorkers") == 2 and cluster.condition("Scaling")["status"] == "False"


def _events(cluster: ClusterUnderTest) -> list[str]:
    return [
        one.get("note", one.get("message"))
        for one in cluster.server.find("v1", "Event")
        if one["reason"] == "WorkerReplaced"
    ]


def test_the_status_tells_of_workers_that_agents_have_replaced_each_of_them_once(cluster):
    options = OperatorOptions(agents_s=0.05)
    with served(_address(1)) as first, served(_address(2)) as second:
        with RunningOperator(cluster.url, options):
            cluster.server.create(job(replicas=2))
            cluster.wait(lambda: _run_with_addresses(cluster))
            cluster.wait(lambda: cluster.job()["status"].get("worldGeneration") == 1)
            assert "workerRestarts" not in cluster.job()["status"]
            second.answer = {"generation": 2, "restarts": 1, "recovering": False, "faults": [_fault(1)]}
            first.answer = {"generation": 2, "restarts": 1, "recovering": False, "faults": []}
            cluster.wait(lambda: cluster.job()["status"]["worldGeneration"] == 2)
            told = cluster.wait(lambda: _events(cluster))
        status = cluster.job()["status"]
        fault = status["lastFault"]
        assert (fault["pod"], fault["node"], fault["rank"], fault["cause"]) == ("digits-1", "n0", 1, "SIGKILL")
        assert (status["workerRestarts"], status["lostSeconds"]) == (1, {"SIGKILL": 0.25})
        assert "restarts" not in status, "no pod has failed"
        assert told == [f"pod digits-1: {fault['message']}"]
        more = [*second.answer["faults"], _fault(2, cause="ValueError", lost_s=1)]
        with RunningOperator(cluster.url, options):  # another process, which knows nothing
            first.answer = {"generation": 3, "restarts": 2, "recovering": False, "faults": []}
            second.answer = {"generation": 3, "restarts": 2, "recovering": False, "faults": more}
            cluster.wait(lambda: cluster.job()["status"]["lostSeconds"] == {"SIGKILL": 0.25, "ValueError": 1})
        assert cluster.job()["status"]["worldGeneration"] == 3


def test_agents_that_differ_or_say_nonsense_change_nothing(cluster):
    options = OperatorOptions(agents_s=0.05)
    with (
        served(_address(1)) as first, served(_address(2)) as second, RunningOperator(cluster.url, options) as operator,
    ):  # fmt: skip
        cluster.server.create(job(replicas=2))
        cluster.wait(lambda: _run_with_addresses(cluster))
        cluster.wait(lambda: cluster.job()["status"].get("worldGeneration") == 1)
        cluster.wait(lambda: operator.call(lambda: operator.controller.queue.idle) and _is_calm(cluster))
        version = cluster.job()["metadata"]["resourceVersion"]
        first.answer = {**first.answer, "generation": 2}  # the other one is not there yet
        time.sleep(0.3)
        first.answer = {"generation": "three"}
        time.sleep(0.3)
        assert cluster.job()["metadata"]["resourceVersion"] == version
        first.answer = second.answer = {"generation": 4, "restarts": 0, "faults": []}
        cluster.wait(lambda: cluster.job()["status"]["worldGeneration"] == 4)


@pytest.mark.parametrize(
    "answer",
    [
        [], {}, {"generation": 1, "restarts": 0}, {"generation": -1, "restarts": 0, "faults": []},
        {"generation": True, "restarts": 0, "faults": []}, {"generation": 1 << 31, "restarts": 0, "faults": []},
        {"generation": 1, "restarts": 0.5, "faults": []}, {"generation": 1, "restarts": 0, "faults": [3]},
        {"generation": 1, "restarts": 0, "faults": [{**_fault(1), "message": 3}]},
        {"generation": 1, "restarts": 0, "faults": [{**_fault(1), "lost_s": -1}]},
        {"generation": 1, "restarts": 0, "faults": [{**_fault(1), "time": 1e300}]},
        {"generation": 1, "restarts": 0, "faults": [{**_fault(1), "rank": None}]},
    ],
)  # fmt: skip
def test_an_odd_answer_is_refused(answer: Any):
    pod = observed.pod({"metadata": {"name": "digits-0", "uid": "u"}})
    with pytest.raises(ValueError, match="expected"):
        agents.read(json.dumps(answer).encode(), pod, time.time())


def test_a_cause_that_is_no_word_and_a_time_to_come_are_put_right():
    pod = observed.pod({"metadata": {"name": "digits-0", "uid": "u"}})
    odd = _fault(1, cause="a b\n", time=9e9)
    world = agents.read(json.dumps({"generation": 2, "restarts": 1, "faults": [odd]}).encode(), pod, 5.0)
    assert (world.faults[0].cause, world.faults[0].time, world.faults[0].pod) == ("WorkerFailed", 5.0, "digits-0")
