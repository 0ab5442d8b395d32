"""Runs a launch: opens what the agent of this node needs, runs it, and reports how the job ended."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import json
import os
import secrets
import socket
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from resilin._base import descriptors, env, host_port, log, owned_folder, private_files
from resilin._base.owned_folder import OwnedFolder
from resilin.elastic.agent.agent import Agent
from resilin.elastic.agent.config import AgentConfig, Outcome
from resilin.elastic.agent.console import PATIENT_FLUSH_S, Console
from resilin.elastic.agent.master_port import MasterPort
from resilin.elastic.agent.process_supervisor import Supervisor
from resilin.elastic.agent.reports import Reporter
from resilin.elastic.agent.streams import Plan
from resilin.elastic.spawn.program import Program
from resilin.elastic.spawn.spawner_client import SpawnerProcess
from resilin.errors import UsageError
from resilin.launcher import arguments, exit_codes, leftovers, plan, store_bootstrap, termination
from resilin.launcher.local import Desk
from resilin.launcher.plan import LaunchPlan
from resilin.launcher.store_bootstrap import OpenStore


def launch(args: argparse.Namespace, program: Program, process: SpawnerProcess) -> int:
    """Carry out a command line; returns the exit code of `elastic-run`. process: starts its workers, the caller's."""
    level = arguments.log_level(args.verbose)
    log.configure(level)
    descriptors.raise_limit()  # after the process that starts workers has been started: theirs is as it was
    what = plan.make(args, program)
    with _folder(what, process) as base:
        return run(what, base, process, quiet=args.quiet, level=level)


@contextlib.contextmanager
def _folder(what: LaunchPlan, process: SpawnerProcess) -> Iterator[Path]:
    """The folder of this run: `<log_dir>/<job>_<random>`, or a temporary one, which `process` removes."""
    name = "".join(c if c.isalnum() or c in "-_." else "_" for c in what.job.name[:40])
    if what.log_dir is not None:
        private_files.make_folders(what.log_dir)
        yield Path(tempfile.mkdtemp(prefix=f"{name}_", dir=what.log_dir))
        return
    with OwnedFolder(f"{owned_folder.PREFIX}_{name}_") as folder:
        process.own(str(folder))  # also when this process is killed, and in the end once more what workers write last
        yield folder


def run(what: LaunchPlan, base: Path, process: SpawnerProcess, *, quiet: bool, level: str) -> int:
    """Run the agent until the job ends; returns the exit code of `elastic-run`.

    base: the folder of this run. process: what starts its workers; it stays the caller's. level: of the log.
    """
    with contextlib.ExitStack() as stack:
        terminal = Console(on_trouble=lambda name, why: reporter.terminal_lost(name, why))
        reporter = Reporter(terminal.text, what.event_log, quiet=quiet)
        stack.callback(reporter.close)
        stack.callback(terminal.close)
        log.configure(level, stream=terminal.text)
        if what.notice:
            reporter.line(what.notice)
        port = stack.enter_context(MasterPort(what.master_port, what.address, ours=what.program.ours))
        opened = store_bootstrap.open_store(what.meeting, what.job.secret)
        stack.callback(opened.close)
        outcome = asyncio.run(_run(what, base, port, opened, process, reporter, terminal))
        _report(what, base, outcome, reporter)
        if what.termination_message is not None and outcome.code != exit_codes.OK:
            told = termination.write(what.termination_message, outcome)
            if told is not None:
                reporter.line(told)
        if outcome.code in (exit_codes.OK, exit_codes.FAILED):  # else somebody waits for this process to leave
            terminal.flush_timeout_s = PATIENT_FLUSH_S
        opened.linger(what.job.name, what.meeting.lease_ttl_s + store_bootstrap.LINGER_S)
        return outcome.code


async def _run(
    what: LaunchPlan,
    base: Path,
    port: MasterPort,
    opened: OpenStore,
    process: SpawnerProcess,
    reporter: Reporter,
    terminal: Console,
) -> Outcome:
    host = socket.gethostname()
    config = AgentConfig(
        job=what.job,
        membership=what.membership,
        program=what.program,
        plan=Plan(
            base=base,
            keep=what.log_dir is not None,
            redirects=what.redirects,
            tee=what.tee,
            global_ranks=what.global_ranks,
            shown_ranks=what.shown_ranks,
            shown_global_ranks=what.shown_global_ranks,
            console=terminal,
            filters=what.filters,
            prefix=what.prefix,
        ),
        node_id=f"{host}-{os.getpid()}-{secrets.token_hex(3)}",
        host=host,
        address=what.address,
        master_port=port,
        workers=what.workers,
        inherited=env.snapshot(),
        rank_hint=what.rank_hint,
        shutdown_timeout_s=what.shutdown_timeout_s,
        join_timeout_s=what.meeting.join_timeout_s,
        hang_timeout_s=what.hang_timeout_s,
        compare_ranks=True,
        lease_ttl_s=what.meeting.lease_ttl_s,
        signals=what.signals,
        store_in_process=opened.in_process,
        meeting=what.meeting.endpoint,
        hosted=what.meeting.backend == "embedded" and not opened.in_process,
    )
    agent = Agent(config, opened.store, partial(Supervisor, process, say=reporter.line), reporter)
    alone = what.meeting.backend == "standalone"
    desk = Desk(opened.store, what.job.name, config.node_id, in_process=opened.in_process, alone=alone)
    async with contextlib.AsyncExitStack() as stack:
        clearing = asyncio.create_task(_clear(reporter))
        stack.push_async_callback(asyncio.wait, (clearing,))
        stack.enter_context(agent.heeding_signals())  # first: else one that comes now leaves the desk's socket behind
        try:
            await stack.enter_async_context(desk.opened())
        except OSError as error:
            reporter.line(f"`resilin status` and the like cannot ask this node: {error}")
        if what.health_port:
            _check_free(what.address, what.health_port)
            serving = asyncio.create_task(_serve_health(agent, what, reporter))
            stack.push_async_callback(_end, serving)
        return await agent.run()


def _check_free(host: str, port: int) -> None:
    """Find out whether the port of health checks can be listened on. UsageError: it cannot."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        where = host_port.join(host, port)
        raise UsageError(f"--health-port: {where} cannot be listened on: {error.strerror or error}") from None


async def _serve_health(agent: Agent, what: LaunchPlan, reporter: Reporter) -> None:
    """Answer health checks until cancelled. Loading grpc takes longer than to meet the others, who do not wait."""
    health = await asyncio.to_thread(importlib.import_module, "resilin.launcher.health")
    try:
        with health.HealthServer(agent, what.address, what.health_port):
            await asyncio.Event().wait()
    except UsageError as error:  # somebody has taken the port since it was tried
        reporter.line(f"health checks are not answered: {error}")


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def _clear(reporter: Reporter) -> None:
    """Remove what killed processes of this user have left behind, and say what that was."""
    found = await asyncio.to_thread(leftovers.clear)
    if found:
        reporter.line(leftovers.told(found))


def _report(what: LaunchPlan, base: Path, outcome: Outcome, reporter: Reporter) -> None:
    reporter.event("end", code=outcome.code, reason=outcome.reason)
    if outcome.code == exit_codes.OK:
        return
    if outcome.failure is not None and what.log_dir is not None:
        body = {"sentence": outcome.failure.sentence, "reason": outcome.reason, **outcome.failure.to_json()}
        reporter.outcome(outcome, (_kept(base / "failure.json", body),))
    else:
        reporter.outcome(outcome)


def _kept(path: Path, body: dict[str, Any]) -> str:
    """Write the report of a failure, whole or not at all; a line about it: on a full disk the terminal has it alone."""
    scratch = path.with_suffix(".tmp")
    try:
        private_files.write_file(scratch, json.dumps(body, indent=2) + "\n")
        scratch.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            scratch.unlink()
        return f"this report is not kept: {path}: {error.strerror or error}"
    return f"report: {path}"
