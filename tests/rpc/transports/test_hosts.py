"""Workers of two hosts: beyond loopback messages are encrypted unless told otherwise; a silent host is lost."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys

import extent
import pytest

from resilin._base.clock import SYSTEM
from resilin.rpc.transports.base import WorkerIdentity
from resilin.rpc.transports.grpc import GrpcTransport
from resilin.rpc.transports.thread_queues import ThreadQueues
from resilin.rpc.transports.zeromq import ZeroMQTransport
from resilin.testing.job_secret import SECRET
from resilin.testing.patience import PATIENCE_S
from resilin.testing.rpc_peer import PeerProcess, spec

CALLER = """
import json, sys
from pkgutil import resolve_name
from resilin._base.clock import Deadline
from resilin.rpc.transports.base import WorkerIdentity
from resilin.testing.rpc_peer import Worker

told, address = json.loads(sys.argv[1]), sys.argv[2]
worker = Worker(
    WorkerIdentity(**told["identity"]), resolve_name(told["transport"]), resolve_name(told["queues"]), told["options"]
)
assert worker.transport.reaches(address)
worker.transport.connect(1, address, Deadline(100))
own = worker.queues.open()
for size in (4, 100_000, 5 << 20):
    worker.send(1, own.number.to_bytes(2, "little"), bytes(size))
    assert len(worker.take(1, own.number)[0].parts[0]) == size
print(json.loads(worker.transport.address)["encrypted"], flush=True)
if "wait" in sys.argv:
    print(worker.wait_for_losses(1)[0][1], flush=True)
worker.close()
"""


def _call(hosts, addresses, transport, options, *words):
    """A worker of the second host, and the command of one on the first that calls it."""
    peer, own = (
        spec(WorkerIdentity(number, f"worker{number}", "group", SECRET, host=at), transport, ThreadQueues, options)
        for number, at in ((1, addresses[1]), (0, addresses[0]))
    )
    process = PeerProcess(peer, enter=hosts[1].enter)
    return process, [*hosts[0].enter, sys.executable, "-c", CALLER, json.dumps(own), process.address, *words]


WAYS = {
    "zeromq": (ZeroMQTransport, {}, True),
    "zeromq plain": (ZeroMQTransport, {"encrypt": False}, False),
    "grpc": (GrpcTransport, {}, True),
    "grpc plain": (GrpcTransport, {"encrypt": False}, False),
}


@pytest.mark.multiproc
@pytest.mark.parametrize(
    ("way", "family"),
    extent.short(itertools.product(WAYS, (4, 6)), of=[("zeromq", 6), ("grpc", 6), ("grpc plain", 4)]),
)
def test_workers_of_two_hosts(hosts, way, family):
    transport, options, encrypted = WAYS[way]
    addresses = [host.links[0].address if family == 4 else host.links[0].address6 for host in hosts]
    process, command = _call(hosts, addresses, transport, options)
    with process:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.stdout.split() == [str(encrypted)], done.stderr


@pytest.mark.deep
@pytest.mark.multiproc
@pytest.mark.parametrize(
    ("transport", "options"), [(ZeroMQTransport, {}), (GrpcTransport, {"encrypt": False})], ids=["zeromq", "grpc"]
)
def test_a_host_that_says_nothing_any_more_is_lost(hosts, transport, options):
    process, command = _call(hosts, [host.address for host in hosts], transport, options, "wait")
    with process, subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as caller:
        caller.stdout.readline()
        hosts[1].cut()
        begun = SYSTEM.monotonic()
        assert "worker1" in caller.stdout.readline()
        assert 3 < SYSTEM.monotonic() - begun < 40
        caller.wait(PATIENCE_S)
