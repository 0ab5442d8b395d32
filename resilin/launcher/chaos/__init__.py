"""`resilin chaos`: runs a job again and again, injects faults, and says whether it came to the same end."""

from __future__ import annotations

import argparse
import contextlib
import re
import shlex
import shutil
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from resilin._base import host_port
from resilin._base.owned_folder import PREFIX, OwnedFolder
from resilin.elastic.chaos import judge, schedule
from resilin.elastic.chaos.judge import Judgement
from resilin.elastic.chaos.records import Result
from resilin.elastic.chaos.schedule import KINDS, MOMENTS, Schedule, Setup
from resilin.errors import UsageError
from resilin.launcher import addresses, arguments, exit_codes, output
from resilin.launcher.chaos import attach, report
from resilin.launcher.chaos.infrastructure import CommandLink, ProcessStore
from resilin.launcher.chaos.run import ChaosJob, run_job
from resilin.store.connect import EMBEDDED_PORT

_LIMIT_S = 120.0
STEPS = 100  # where they are not known: schedules that are shown and not run
_EXAMPLE = """\
examples:
  resilin chaos --seeds 0:20 --steps 500 -- --nproc-per-node 4 --max-restarts 5 train.py --epochs 2
  resilin chaos --schedule fault.toml -- --nproc-per-node 4 --max-restarts 5 train.py
  resilin chaos --attach JOB --schedule fault.toml

Every run has a folder: it stands for {folder} in the command, for a checkpoint that must not outlive it.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `resilin chaos`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = (
        _EXAMPLE + f"\nkinds of faults: {', '.join(KINDS)}\nmoments: {', '.join(MOMENTS)}\n\n"
        "Faults are drawn for moments that the program has, as one run that nobody disturbs tells; --show, which runs\n"
        "nothing, draws from all moments and 100 steps.\n\n"
        "Returns 0 when every run recovered to the same result with a whole ledger, 1 when one did not or none of its\n"
        "faults came about, 2 on a mistake."
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--seeds", metavar="FIRST:END", help="one run for each seed from FIRST up to END, or one seed")
    which.add_argument("--schedule", type=Path, metavar="FILE", help="faults from a TOML or JSON file: a replay")
    parser.add_argument("--show", action="store_true", help="print the schedules and run nothing")
    parser.add_argument(
        "--steps",
        type=int,
        default=0,
        help="disturb so many of its steps at most (default: those of an undisturbed run)",
    )
    parser.add_argument("--only", default="", metavar="KIND[:TARGET],...", help="draw from these kinds, such as kill")
    parser.add_argument("--nodes", type=int, default=1, help="start so many elastic-run here, as nodes (default 1)")
    parser.add_argument("--store", metavar="COMMAND", help="start this store first; it can be killed and stopped")
    parser.add_argument("--cut", metavar="COMMAND", help="what cuts the link between nodes; needs --restore")
    parser.add_argument("--restore", metavar="COMMAND", help="what restores it")
    parser.add_argument(
        "--expect", metavar="HASH", help="fingerprint of the undisturbed run (default: it is made first)"
    )
    parser.add_argument("--limit", type=float, default=_LIMIT_S, metavar="S", help="longest run (default %(default)g)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the folders of runs that went wrong here")
    parser.add_argument("--json", action="store_true", help="print one JSON object per run")
    parser.add_argument("--attach", metavar="JOB", help="disturb a running job of this machine instead")
    parser.add_argument("job_command", nargs="*", metavar="...", help="after --: what stands behind elastic-run")


def run(args: argparse.Namespace) -> int:
    """Run the schedules one after the other. UsageError (exit code 2) when there is nothing to run, or to do."""
    if args.attach is not None:
        return attach.run(args.attach, _only_schedule(args))
    given = _command(args.job_command, args.nodes)
    setup = Setup(
        workers=given.workers * args.nodes, nodes=args.nodes, steps=args.steps or STEPS,
        store=args.store is not None, link=args.cut is not None, hosted=given.endpoint is not None,
    )  # fmt: skip
    schedules = _schedules(args, setup)  # what is wrong with the command line is said before anything runs
    if args.show:
        print("".join(one.to_json() for one in schedules), end="")
        return exit_codes.OK
    if (args.cut is None) != (args.restore is None):
        raise UsageError("--cut and --restore belong together")
    known = _expected(args.expect)
    with _ended_by_sigterm(), contextlib.ExitStack() as stack:
        store = stack.enter_context(ProcessStore(shlex.split(args.store))) if args.store else None
        link = CommandLink(shlex.split(args.cut), shlex.split(args.restore)) if args.cut else None
        if not known:
            known = undisturbed(given.flags, given.program, args.limit).fingerprint
        if args.schedule is None:
            met = undisturbed(given.flags, given.program, args.limit, setup.workers)
            steps = min(args.steps or met.step, met.step)
            schedules = _schedules(args, replace(setup, steps=steps, moments=met.moments))
        judged = []
        for one in schedules:
            command = (*given.flags, *given.program)
            job = ChaosJob(command=command, nodes=args.nodes, store=store, link=link, endpoint=given.endpoint)
            judged.append(_one(job, one, known, args))
    return exit_codes.OK if all(one.ok and one.disturbed for one in judged) else exit_codes.FAILED


@contextlib.contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """SIGTERM is Ctrl-C within the block: jobs that run are ended first."""
    former = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)


class _Command:
    """What stands behind `elastic-run`: its flags, and the program."""

    def __init__(self, words: Sequence[str], workers: int) -> None:
        program = arguments.parse(words)
        count = 1 + len(program.training_script_args)
        self.flags, self.program = tuple(words[:-count]), tuple(words[-count:])
        self.workers = workers
        self.endpoint = _hosted(program)


def _hosted(parsed: argparse.Namespace) -> tuple[str, int] | None:
    """Where the first of several nodes serves the store of all; None: it is elsewhere."""
    if not parsed.rdzv_endpoint or (parsed.rdzv_backend or "embedded") not in ("embedded", "c10d"):
        return None
    try:
        place = host_port.parse(parsed.rdzv_endpoint, "--rdzv-endpoint", default_port=EMBEDDED_PORT)
    except UsageError:  # elastic-run says what is wrong with it
        return None
    return place if addresses.is_own(place.host) else None


def _command(words: Sequence[str], nodes: int) -> _Command:
    if not words:
        raise UsageError("which job? give its command after --, as behind elastic-run, or --attach JOB")
    parsed = arguments.parse(words)
    workers = parsed.nproc_per_node
    if nodes > 1 and not parsed.rdzv_endpoint:
        raise UsageError(
            f"--nodes {nodes}: expected how many nodes the job has and where they meet, too, such as "
            f"--nnodes 1:{nodes} --rdzv-backend file --rdzv-endpoint {{folder}}/meeting"
        )
    if not workers.isdigit():
        raise UsageError(f"--nproc-per-node {workers}: faults are given to ranks: expected a number")
    return _Command(words, int(workers))


def _schedules(args: argparse.Namespace, setup: Setup) -> list[Schedule]:
    if args.schedule is not None:
        return [schedule.load(args.schedule)]
    only = [_way(text, setup) for text in args.only.split(",") if text]
    return [schedule.draw(seed, setup, only) for seed in _seeds(args.seeds)]


def _only_schedule(args: argparse.Namespace) -> Schedule:
    if args.schedule is None or args.job_command:
        raise UsageError("--attach JOB: expected --schedule FILE and no command")
    return schedule.load(args.schedule)


def _expected(text: str | None) -> str:
    if text is not None and not re.fullmatch("[0-9a-f]{64}", text):
        raise UsageError(f"--expect: expected 64 hexadecimal digits, as State.fingerprint() gives them, got {text!r}")
    return text or ""


def _seeds(text: str) -> range:
    first, colon, end = text.partition(":")
    try:
        seeds = range(int(first), int(end) if colon else int(first) + 1)
    except ValueError:
        seeds = range(0)
    if not seeds or seeds[0] < 0:
        raise UsageError(f"--seeds: expected FIRST:END with 0 <= FIRST < END, or a number, got {text!r}")
    return seeds


def _way(text: str, setup: Setup) -> tuple[str, str]:
    do, _, to = text.partition(":")
    if (do, to or "worker") not in setup.ways():
        known = ", ".join(f"{one}:{other}" for one, other in setup.ways())
        raise UsageError(f"--only: {text!r} cannot happen to this job; it can be {known}")
    return do, to or "worker"


def undisturbed(flags: Sequence[str], program: Sequence[str], limit_s: float, workers: int = 1) -> Result:
    """What rank 0 of so many workers ends with that nobody disturbs, and the moments to which all of them came.

    Of `saving`, to which rank 0 alone comes in many programs, those of rank 0. UsageError when there is no end.
    """
    alone = ("--standalone", "--nnodes", "1", "--nproc-per-node", str(workers))
    kept = _without_meeting(flags)
    with OwnedFolder(f"{PREFIX}-chaos-") as folder:
        job = ChaosJob(command=(*kept, *alone, *program))
        found = run_job(job, Schedule(faults=()), folder, limit_s)
    if found.codes != (0,) or not found.results:
        tail = "\n".join(found.said[0].splitlines()[-10:])
        who = "1 worker" if workers == 1 else f"{workers} workers"
        raise UsageError(
            f"the undisturbed run with {who} ended with {found.codes[0]} and {len(found.results)} results; "
            f"expected a program with @elastic.run and a State that ends with 0:\n{tail}"
        )
    first = found.results[0]
    return replace(first, moments=_common([one.moments for one in found.results]))


def _common(moments: Sequence[Mapping[str, Sequence[int]]]) -> dict[str, list[int]]:
    """The moments that are in all of `moments`, with the earliest of their last steps."""
    found = {name: list(steps) for name, steps in moments[0].items()}
    for name in set(found) - {"saving"}:
        others = [one.get(name, ()) for one in moments]
        least = min(map(len, others))
        found[name] = [min(steps) for steps in zip(*(other[len(other) - least :] for other in others), strict=True)]
    return {name: steps for name, steps in found.items() if steps}


def _without_meeting(flags: Sequence[str]) -> list[str]:
    """`flags` without those that say where several nodes meet."""
    kept: list[str] = []
    skip = False
    for word in flags:
        meets = word.lstrip("-").replace("_", "-").startswith("rdzv-") and word.startswith("--")
        if not meets and not skip:
            kept.append(word)
        skip = meets and "=" not in word
    return kept


def _one(job: ChaosJob, faults: Schedule, expected: str, args: argparse.Namespace) -> Judgement:
    with OwnedFolder(f"{PREFIX}-chaos-") as folder:
        found = judge.judge(run_job(job, faults, folder, args.limit), expected)
        if args.json:
            output.show_json(judge.as_json(found))
        else:
            output.show(*report.lines(found))
        if args.keep is not None and not (found.ok and found.disturbed and found.attributed):
            args.keep.mkdir(parents=True, exist_ok=True)
            shutil.copytree(folder, args.keep / f"seed-{faults.seed}", dirs_exist_ok=True)
        return found
