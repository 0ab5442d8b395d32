"""Runs a launch: opens what the agent of this node needs, runs it, and reports how the job ended."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import secrets
import socket
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from resilin._base import descriptors, env, log
from resilin.elastic.agent.agent import Agent
from resilin.elastic.agent.config import AgentConfig, Outcome
from resilin.elastic.agent.console import Console
from resilin.elastic.agent.reports import Reporter
from resilin.elastic.agent.streams import Plan
from resilin.elastic.agent.supervise import Supervisor
from resilin.elastic.spawn.program import Program
from resilin.elastic.spawn.spawning import SpawnerProcess
from resilin.launcher import arguments, exit_codes, hosting, plan
from resilin.launcher.hosting import OpenStore
from resilin.launcher.local import Desk
from resilin.launcher.plan import LaunchPlan


def launch(args: argparse.Namespace, program: Program, process: SpawnerProcess) -> int:
    """Carry out a command line; returns the exit code of `elastic-run`. process: starts its workers, the caller's."""
    level = arguments.log_level(args.verbose)
    log.configure(level)
    descriptors.raise_limit()  # after the process that starts workers has been started: theirs is as it was
    what = plan.make(args, program)
    base = _folder(what)
    if not what.log_dir:
        process.own(str(base))
    return run(what, base, process, quiet=args.quiet, level=level)


def _folder(what: LaunchPlan) -> Path:
    """The folder of this run: `<log_dir>/<job>_<random>`, or a temporary one."""
    name = "".join(c if c.isalnum() or c in "-_." else "_" for c in what.job.name[:40])
    if what.log_dir is None:
        return Path(tempfile.mkdtemp(prefix=f"resilin_{name}_"))
    what.log_dir.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix=f"{name}_", dir=what.log_dir))


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
        port = stack.enter_context(hosting.held_port(what.master_port))
        opened = hosting.open_store(what.meeting, what.job.secret)
        stack.callback(opened.close)
        outcome = asyncio.run(_run(what, base, port, opened, process, reporter, terminal))
        _report(what, base, outcome, reporter)
        opened.linger(what.job.name, what.meeting.lease_ttl_s + hosting.LINGER_S)
        return outcome.code


async def _run(
    what: LaunchPlan,
    base: Path,
    port: int,
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
        stack.enter_context(agent.heeding_signals())  # first: else one that comes now leaves the desk's socket behind
        try:
            await stack.enter_async_context(desk.opened())
        except OSError as error:
            reporter.line(f"`resilin status` and the like cannot ask this node: {error}")
        return await agent.run()


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
        scratch.write_text(json.dumps(body, indent=2) + "\n", encoding="utf-8")
        scratch.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            scratch.unlink()
        return f"this report is not kept: {path}: {error.strerror or error}"
    return f"report: {path}"
