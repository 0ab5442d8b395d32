"""`python -m resilin.operator`: run the operator until SIGTERM."""

from __future__ import annotations

import argparse
import asyncio
import logging
import math
import re
import signal
import socket
import sys
from collections.abc import Callable, Sequence

from resilin._base import env, host_port, log
from resilin._base.host_port import MAX_PORT
from resilin._base.secret import new_secret
from resilin.errors import UsageError
from resilin.operator import client
from resilin.operator.client import Client
from resilin.operator.controller import Controller, OperatorOptions, lead_and_run
from resilin.operator.health import HealthServer
from resilin.operator.leader import Election
from resilin.operator.metrics import Metrics

_log = log.logger("operator")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_MOST_WORKERS = 1024
_MOST_S = 86_400.0
_SILENT_WATCHES, _SILENT_MORE_S = 3, 40.0
_USAGE = 2
_HTTP_PORT = 80


def parser() -> argparse.ArgumentParser:
    """The parser of its command line."""
    result = argparse.ArgumentParser(
        prog="python -m resilin.operator", description="Run the operator of ElasticJobs.", allow_abbrev=False
    )
    add = result.add_argument
    add("--namespace", type=_name, metavar="NAME", help="care for the jobs of one namespace (default: of all)")
    add("--no-nodes", action="store_true", help="without the right to see nodes: a Role in one namespace suffices")
    add("--pod-groups", action="store_true", help="the cluster has the Workload API, and jobs may ask for it")
    add("--leader-elect", action="store_true", help="several processes: one leads, by a Lease")
    lease = "where the Lease is (default: RESILIN_POD_NAMESPACE, else default)"
    add("--lease-namespace", type=_name, metavar="NAME", help=lease)
    add("--health-host", default="", metavar="HOST", help="where /healthz, /readyz and /metrics are (default: all)")
    port = "their port, 0: any (default: %(default)s)"
    add("--health-port", type=_whole(0, MAX_PORT), default=8080, metavar="PORT", help=port)
    workers = "jobs looked at at once (default: %(default)s)"
    add("--workers", type=_whole(1, _MOST_WORKERS), default=8, metavar="N", help=workers)
    resync = "all jobs are looked at so often (default: 600)"
    add("--resync", type=_seconds(1.0), default=600.0, metavar="S", help=resync)
    asked = "agents are asked for their world so often, 0: never (default: 5)"
    add("--agents", type=_seconds(0.0), default=5.0, metavar="S", help=asked)
    add("--server", type=_url, metavar="URL", help="an API server without TLS, for `kubectl proxy`, tests")
    add("--watch", type=_seconds(1.0), default=120.0, metavar="S", help="how long one watch lasts (default: 120)")
    add("-v", "--verbose", action="store_true", help="log each turn")
    return result


def _name(text: str) -> str:
    """A namespace."""
    if not _NAME.fullmatch(text):
        wanted = "expected 1 to 63 lower-case letters, digits and -, neither first nor last a -"
        raise argparse.ArgumentTypeError(f"{wanted}, got {text!r}")
    return text


def _whole(least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"expected a whole number from {least} to {most}, got {text!r}")
        return value

    return read


def _seconds(least: float) -> Callable[[str], float]:
    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not least <= value <= _MOST_S:
            raise argparse.ArgumentTypeError(f"expected {least:g} to {_MOST_S:g} seconds, got {text!r}")
        return value

    return read


def _url(text: str) -> str:
    scheme, _, rest = text.partition("://")
    try:
        host_port.parse(rest.partition("/")[0], "", default_port=_HTTP_PORT)
        good = scheme in ("http", "https") and text.isprintable() and " " not in text
    except UsageError:
        good = False
    if not good:
        raise argparse.ArgumentTypeError(f"expected a URL such as http://127.0.0.1:8001, got {text!r}")
    return text


def main(argv: Sequence[str] | None = None) -> int:
    """Run the operator; 0 after SIGTERM or SIGINT, 1 when it does not lead any more: its Deployment starts it again,
    2 when it cannot begin as it was asked to."""
    args = parser().parse_args(argv)
    log.configure("DEBUG" if args.verbose else "INFO")
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    try:
        return asyncio.run(_run(args))
    except UsageError as error:
        print(f"resilin.operator: error: {error}", file=sys.stderr)
        return _USAGE


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
        own_namespace=_own_namespace(),
        silent_s=_SILENT_WATCHES * args.watch + _SILENT_MORE_S,
    )
    async with Client(client.find_server(args.server or ""), args.watch) as api:
        election = _election(args, api) if args.leader_elect else None
        may_write = (lambda: True) if election is None else (lambda: election.may_write)
        controller = Controller(api, options, metrics, may_write=may_write)

        def text() -> tuple[int, str]:
            controller.update_gauges()
            metrics.gauges["leader"] = float(election is None or election.leads)
            return 200, metrics.text()

        def healthy() -> tuple[int, str]:
            if election is not None and election.leads and not election.may_write:
                return 503, "the lease has run out\n"
            return (200, "ok\n") if controller.is_healthy else (503, "a watch is silent\n")

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
    namespace = args.lease_namespace or _own_namespace() or "default"
    return Election(api, namespace, f"{socket.gethostname()}-{new_secret()[:8]}")


def _own_namespace() -> str:
    """Where this process runs, by the downward API; empty: outside of a cluster."""
    text = env.get("RESILIN_POD_NAMESPACE") or ""
    try:
        return text and _name(text)
    except argparse.ArgumentTypeError as error:
        raise UsageError(f"environment variable RESILIN_POD_NAMESPACE: {error}") from None
