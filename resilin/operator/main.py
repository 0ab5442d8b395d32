"""`python -m resilin.operator`: run the operator until SIGTERM."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import socket
from collections.abc import Sequence

from resilin._base import env, log
from resilin._base.secret import new_secret
from resilin.operator import client
from resilin.operator.client import Client
from resilin.operator.controller import Controller, OperatorOptions, lead_and_run
from resilin.operator.health import HealthServer
from resilin.operator.leader import Election
from resilin.operator.metrics import Metrics

_log = log.logger("operator")


def parser() -> argparse.ArgumentParser:
    """The parser of its command line."""
    result = argparse.ArgumentParser(prog="python -m resilin.operator", description="Run the operator of ElasticJobs.")
    add = result.add_argument
    add("--namespace", metavar="NAME", help="care for the jobs of one namespace (default: of all)")
    add("--no-nodes", action="store_true", help="without the right to see nodes: a Role in one namespace suffices")
    add("--pod-groups", action="store_true", help="the cluster has the Workload API, and jobs may ask for it")
    add("--leader-elect", action="store_true", help="several processes: one leads, by a Lease")
    add("--lease-namespace", metavar="NAME", help="where the Lease is (default: RESILIN_POD_NAMESPACE, else default)")
    add("--health-host", default="", metavar="HOST", help="where /healthz, /readyz and /metrics are (default: all)")
    add("--health-port", type=int, default=8080, metavar="PORT", help="their port, 0: any (default: %(default)s)")
    add("--workers", type=int, default=8, metavar="N", help="jobs looked at at once (default: %(default)s)")
    add("--resync", type=float, default=600.0, metavar="S", help="all jobs are looked at so often (default: 600)")
    add("--agents", type=float, default=5.0, metavar="S", help="agents are asked for their world so often, 0: never")
    add("--server", default="", metavar="URL", help="an API server without TLS, for `kubectl proxy` and tests")
    add("--watch", type=float, default=120.0, metavar="S", help="how long one watch lasts (default: 120)")
    add("-v", "--verbose", action="store_true", help="log each turn")
    return result


def main(argv: Sequence[str] | None = None) -> int:
    """Run the operator; 0 after SIGTERM or SIGINT, 1 when it does not lead any more: its Deployment starts it again."""
    args = parser().parse_args(argv)
    log.configure("DEBUG" if args.verbose else "INFO")
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    return asyncio.run(_run(args))


async def _run(args: argparse.Namespace) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    metrics = Metrics()
    options = OperatorOptions(
        namespace=args.namespace,
        nodes=not args.no_nodes,
        pod_groups=args.pod_groups,
        workers=args.workers,
        resync_s=args.resync,
        agents_s=args.agents,
        own_namespace=env.get("RESILIN_POD_NAMESPACE") or "",
    )
    async with Client(client.find_server(args.server), args.watch) as api:
        controller = Controller(api, options, metrics)
        election = _election(args, api) if args.leader_elect else None

        def text() -> tuple[int, str]:
            controller.update_gauges()
            metrics.gauges["leader"] = float(election is None or election.leads)
            return 200, metrics.text()

        def healthy() -> tuple[int, str]:
            waits = election is not None and not election.leads
            return (200, "ok\n") if waits or controller.is_healthy else (503, "a watch is silent\n")

        def ready() -> tuple[int, str]:
            waits = election is not None and not election.leads
            return (200, "ok\n") if waits or controller.is_ready else (503, "not everything is listed\n")

        pages = {"/healthz": healthy, "/readyz": ready, "/metrics": text}
        async with HealthServer(args.health_host, args.health_port, pages) as health:
            log.event(_log, logging.INFO, "the operator runs", health_port=health.port)
            working = asyncio.create_task(lead_and_run(election, controller.run))
            stopping = asyncio.create_task(stop.wait())
            await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
            ended_by_itself = working.done()
            stopping.cancel()
            working.cancel()
            outcome = (await asyncio.gather(working, return_exceptions=True))[0]
    if isinstance(outcome, Exception):
        raise outcome
    return 1 if ended_by_itself else 0


def _election(args: argparse.Namespace, api: Client) -> Election:
    namespace = args.lease_namespace or env.get("RESILIN_POD_NAMESPACE") or "default"
    return Election(api, namespace, f"{socket.gethostname()}-{new_secret()[:8]}")
