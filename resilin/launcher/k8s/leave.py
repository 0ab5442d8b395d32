"""`resilin k8s leave`: asks the agents of this container to leave, and waits until they have. What a preStop hook runs.

A container whose first process is a shell does not hand SIGTERM on; its agent is found by its socket, and asked itself.
"""

from __future__ import annotations

import argparse
import os
import select
import signal

from resilin._base import env
from resilin._base.clock import Deadline
from resilin.errors import UsageError
from resilin.launcher import exit_codes, local


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `leave`."""
    job = "the job (default: RESILIN_RDZV_ID, which pods have)"
    parser.add_argument("--job", default="", metavar="NAME", help=job)
    parser.add_argument("--timeout", type=float, default=30.0, metavar="S", help="wait at most so long (default 30)")


def run(args: argparse.Namespace) -> int:
    """Ask, and wait; exit code 1 when an agent is still there at the end."""
    job = args.job or env.get("RESILIN_RDZV_ID") or ""
    if not job:
        raise UsageError("expected --job, or the variable RESILIN_RDZV_ID of the pods of a job")
    deadline = Deadline(args.timeout)
    asked = [descriptor for agent in local.agents() if (descriptor := _ask(agent, job)) is not None]
    left = True
    for descriptor in asked:
        try:
            poller = select.poll()
            poller.register(descriptor, select.POLLIN)
            left = bool(poller.poll(1000 * (deadline.left() or 0.0))) and left
        finally:
            os.close(descriptor)
    return exit_codes.OK if left else exit_codes.FAILED


def _ask(agent: local.AgentClient, job: str) -> int | None:
    """A descriptor of the process that was asked; None: it is of another job, or has ended already."""
    try:
        if agent.job != job:
            return None
        try:
            descriptor = os.pidfd_open(agent.pid)
        except ProcessLookupError:
            return None
        try:
            signal.pidfd_send_signal(descriptor, signal.SIGTERM)
        except ProcessLookupError:
            os.close(descriptor)
            return None
        return descriptor
    finally:
        agent.close()
