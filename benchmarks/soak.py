"""Jobs under random faults: do all end with the same bits and a whole ledger, and is the right rank blamed?"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.harness import Options, Report, Row
from resilin.elastic.chaos import judge, schedule
from resilin.elastic.chaos.schedule import KINDS, Setup
from resilin.launcher import chaos
from resilin.launcher.chaos.infrastructure import Breakable, ProcessStore
from resilin.launcher.chaos.run import ChaosJob, run_job
from resilin.testing import ports
from resilin.testing.etcd import EtcdCluster
from resilin.testing.hosts import Host, NotPermitted, two_hosts

SCHEDULES = 500
STEPS = 60
SECRET = "the secret of a soak test"
LIMIT_S = 90.0
LOG = harness.ROOT / "build" / "soak.jsonl"
PROGRAM = ("-m", "resilin.testing.chaos_job", "{folder}", "--steps", str(STEPS))

METHOD = f"""`resilin.testing.chaos_job`, {STEPS} steps with dropout, batch norm, AdamW, a learning-rate schedule and a
checkpoint every ten, under schedules of one or two faults, drawn from seeds. A run counts for a kind of fault when that
came about in it. *Recovered*: training was brought to its end. *Same bits*: the sha256 of parameters, buffers,
optimizer, scheduler and sampler is that of one undisturbed worker, on every worker. *Ledger*: every sample counted
once. *Rank* and *cause*: the first line about a death after the fault names that rank and process, and that cause, and
nobody who was not hit is ever called dead (but that a worker beyond a cut link did not answer may be said, because
one side has to end). Of faults of the store, the link and a single node nobody is to be named."""


@dataclass(frozen=True, kw_only=True)
class Scene:
    """Jobs of one form, and how many of fourteen runs are of it."""

    name: str
    share: int
    setup: Setup
    flags: tuple[str, ...]
    only: tuple[tuple[str, str], ...] = ()
    """The faults that are drawn first; empty: all that can happen in this setup."""


EMBEDDED = "two nodes, their embedded store"
_MEETING = ("--nnodes", "1:2", "--max-restarts", "9", "--rdzv-conf", "lease_ttl=1,join_timeout=30")
_STORE = ("--rdzv-backend", "{backend}", "--rdzv-endpoint", "{endpoint}")
_OUTAGES = (("kill", "store"), ("stop", "store"))
_NODES = (("kill", "agent"), ("stop", "agent"), ("term", "agent"))
SCENES = (
    Scene(
        name="one node, 2 workers", share=3, setup=Setup(workers=2, steps=STEPS),
        flags=("--standalone", "--nproc-per-node", "2", "--max-restarts", "9"),
    ),
    Scene(
        name="one node, 3 workers", share=2, setup=Setup(workers=3, steps=STEPS),
        flags=("--standalone", "--nproc-per-node", "3", "--max-restarts", "9"),
    ),
    Scene(
        name="two nodes, etcd", share=1, setup=Setup(workers=2, nodes=2, steps=STEPS, store=True),
        flags=(*_MEETING, "--nproc-per-node", "1", *_STORE),
    ),
    Scene(
        name="two nodes, their agents", share=2, setup=Setup(workers=2, nodes=2, steps=STEPS, store=True),
        flags=(*_MEETING, "--nproc-per-node", "1", *_STORE), only=_NODES,
    ),
    Scene(
        name="two nodes, their etcd", share=2, setup=Setup(workers=2, nodes=2, steps=STEPS, store=True),
        flags=(*_MEETING, "--nproc-per-node", "1", *_STORE), only=_OUTAGES,
    ),
    Scene(
        name=EMBEDDED, share=1, setup=Setup(workers=2, nodes=2, steps=STEPS, store=True),
        flags=(*_MEETING, "--nproc-per-node", "1", *_STORE), only=_OUTAGES[1:],
    ),
    Scene(
        name="two hosts, their link", share=2, setup=Setup(workers=2, nodes=2, steps=STEPS, link=True),
        flags=(*_MEETING, "--nproc-per-node", "1", "--rdzv-backend", "file", "--rdzv-endpoint", "{folder}/meeting"),
        only=(("cut", "link"),),
    ),
    Scene(
        name="two hosts", share=1, setup=Setup(workers=2, nodes=2, steps=STEPS, link=True),
        flags=(*_MEETING, "--nproc-per-node", "1", "--rdzv-backend", "file", "--rdzv-endpoint", "{folder}/meeting"),
    ),
)  # fmt: skip


class Etcd(Breakable):
    """One etcd member that is killed and started again, or frozen for a while."""

    def __init__(self, cluster: EtcdCluster) -> None:
        self._cluster = cluster
        self._did = ""

    def fail(self, do: str) -> None:
        """See `Breakable`."""
        self._did = do
        (self._cluster.kill if do == "kill" else self._cluster.freeze)(0)

    def restore(self) -> None:
        """See `Breakable`."""
        if self._did == "kill":
            self._cluster.restart(0)
        else:
            self._cluster.thaw(0)


class Link(Breakable):
    """The link between two namespaces."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def fail(self, do: str) -> None:
        """See `Breakable`."""
        self._host.cut()

    def restore(self) -> None:
        """See `Breakable`."""
        self._host.restore()


def scene_of(number: int) -> tuple[Scene, int]:
    """The scene and the seed of run `number`: scenes take turns, seeds of each follow one another."""
    turn = [scene for scene in SCENES for _ in range(scene.share)]
    lap, place = divmod(number, len(turn))
    scene = turn[place]
    return scene, lap * scene.share + sum(one is scene for one in turn[:place])


def play(number: int, expected: str) -> dict[str, Any]:
    """Run `number`: a row of the log."""
    scene, seed = scene_of(number)
    faults = schedule.draw(seed, scene.setup, scene.only)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="resilin-soak-")))
        words = (*scene.flags, "--rdzv-id", f"soak-{os.getpid()}-{number}", *PROGRAM)
        job = ChaosJob(
            command=(*words, "--workers", str(scene.setup.workers)),
            nodes=scene.setup.nodes,
            variables=(("RESILIN_SECRET", SECRET),),
        )
        if scene.setup.store:
            store, backend, endpoint = _store(scene, stack)
            words = _filled(_filled(job.command, "{endpoint}", endpoint), "{backend}", backend)
            job = replace(job, store=store, command=words)
        if scene.setup.link:
            hosts = stack.enter_context(two_hosts())
            for host in hosts:  # a node is reached where its packets leave
                host.ip("route", "add", "default", "dev", host.name)
            job = replace(job, link=Link(hosts[0]), enter=tuple(tuple(host.enter) for host in hosts))
        run = run_job(job, faults, folder, LIMIT_S)
    row = judge.as_json(judge.judge(run, expected))
    bad = not (row["ok"] and row["attributed"])
    return {"number": number, "scene": scene.name, **row, "said": list(run.said) if bad else []}


def _store(scene: Scene, stack: ExitStack) -> tuple[Breakable, str, str]:
    """A store that can fail, its kind, and where it is."""
    if scene.name != EMBEDDED:
        cluster = EtcdCluster()
        stack.callback(cluster.close)
        return Etcd(cluster), "etcd", cluster.endpoints[0]
    (port,) = stack.enter_context(ports.held())
    serve = (
        "env",
        f"RESILIN_SECRET={SECRET}",
        sys.executable,
        "-m",
        "resilin.launcher.main",
        "store",
        "serve",
        "--port",
        str(port),
    )
    return stack.enter_context(ProcessStore((*serve, "--port", str(port)))), "embedded", f"127.0.0.1:{port}"


def _filled(words: Sequence[str], name: str, value: str) -> tuple[str, ...]:
    return tuple(word.replace(name, value) for word in words)


def read(log: Path) -> list[dict[str, Any]]:
    """The rows so far, by number."""
    rows = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    return sorted(rows, key=lambda row: row["number"])


def soak(
    count: int, log: Path, at_once: int, numbers: Sequence[int] = (), for_s: float = math.inf
) -> list[dict[str, Any]]:
    """Play what is missing of the first `count` runs, or `numbers`, and append it to `log`.

    for_s: seconds after which no run is begun any more.
    """
    deadline = time.monotonic() + for_s
    done = {row["number"] for row in read(log)}
    todo = [number for number in numbers or range(count) if number not in done]
    if not _has_namespaces():  # needs CAP_SYS_ADMIN; the report says that they are missing
        todo = [number for number in todo if not scene_of(number)[0].setup.link]
    log.parent.mkdir(parents=True, exist_ok=True)
    if todo:
        expected = chaos.undisturbed(SCENES[0].flags, PROGRAM, LIMIT_S).fingerprint
        with ThreadPoolExecutor(at_once) as pool, log.open("a", encoding="utf-8") as file:
            for row in pool.map(lambda number: play(number, expected) if time.monotonic() < deadline else None, todo):
                if row is not None:
                    file.write(json.dumps(row) + "\n")
                    file.flush()
                    _tell(row)
    return read(log)


def _has_namespaces() -> bool:
    try:
        with two_hosts():
            return True
    except NotPermitted:
        return False


def _tell(row: Mapping[str, Any]) -> None:
    verdict = ("same bits" if row["ok"] else "WRONG") + ("" if row["attributed"] else ", NOT NAMED")
    faults = "; ".join(f"{fault['do']} {fault['to']} in {fault['at']}" for fault in row["faults"])
    print(
        f"{row['number']} {row['scene']}, seed {row['seed']}: {verdict}, {row['seconds']:.1f} s: {faults}", flush=True
    )


# ---------------------------------------------------------------------------------------------- the report


def report(rows: Sequence[Mapping[str, Any]]) -> Report:
    """The figures of `rows`."""
    table = judge.tally(rows)
    struck = [row for row in rows if row["fired"]]
    lines = [
        Row(what="schedules played", unit="runs", ours=len(rows)),
        Row(what="schedules of which a fault came about", unit="runs", ours=len(struck)),
        *(
            Row(what=f"of these: {what}", unit="%", ours=_percent([row[key] is True for row in struck]))
            for what, key in (("recovered", "recovered"), ("same bits", "same"), ("ledger whole", "counted"))
        ),
    ]
    for group, target in (("crash", 99), ("hang", 95)):
        named = [
            told["rank"] and told["cause"] for row in rows for told in row["attributions"] if _is(row, told, group)
        ]
        if named:
            what = f"{group}: right rank and cause named, of {len(named)} (target {target})"
            lines.append(Row(what=what, unit="%", ours=_percent(named)))
    return Report(
        name="soak",
        question=(__doc__ or "").strip(),
        method=METHOD,
        ours="figure",
        rows=lines,
        notes=[_table(table), _length(rows), *_scenes(rows), *_failures(rows)],
        data={"rows": list(rows)},
    )


def _is(row: Mapping[str, Any], told: Mapping[str, Any], group: str) -> bool:
    return KINDS[row["faults"][told["fault"]]["do"]].group == group


def _percent(found: Sequence[bool]) -> float:
    return 100 * sum(found) / len(found) if found else 0.0


def _table(table: Mapping[str, judge.Tally]) -> str:
    head = "| fault | runs | recovered | same bits | ledger | to be named | rank | cause | ended by a timeout |"
    lines = [head, "|---" * (head.count("|") - 1) + "|"]
    for name, one in table.items():
        counts = (one.runs, one.recovered, one.same, one.counted, one.reports, one.rank_named)
        counts = (*counts, one.cause_named, one.timed_out)
        lines.append(f"| {name} | {' | '.join(map(str, counts))} |")
    return "\n".join(lines)


def _length(rows: Sequence[Mapping[str, Any]]) -> str:
    """How much of a full soak this is."""
    seconds = sum(row["seconds"] for row in rows)
    part = "" if len(rows) >= SCHEDULES else f" A full soak is {SCHEDULES} (`make soak`); this one is shorter."
    return f"{len(rows)} schedules, {seconds / 60:.0f} minutes of running jobs.{part}"


def _scenes(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for scene in SCENES:
        mine = [row for row in rows if row["scene"] == scene.name]
        good = sum(row["ok"] for row in mine)
        said = f"{good} of {len(mine)} runs ended with the same bits and a whole ledger" if mine else "not played"
        yield f"{scene.name}: {said}."


def _failures(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    wrong = [row for row in rows if not (row["ok"] and row["attributed"])]
    if not wrong:
        yield "Nothing went wrong."
        return
    yield "What went wrong, by run (`python -m benchmarks.soak --run N` plays it again):\n\n" + "\n".join(
        f"- run {row['number']} ({row['scene']}, seed {row['seed']}): {_why(row)}" for row in wrong
    )


def _why(row: Mapping[str, Any]) -> str:
    faults = "; ".join(_text(fault) for fault in row["faults"])
    wrong = [
        text
        for text, is_so in (
            (f"not brought to its end (exit codes {row['codes']})", not row["recovered"]),
            ("other bits", row["same"] is False),
            ("ledger broken", row["counted"] is False),
        )
        if is_so
    ]
    unnamed = [told["line"] for told in row["attributions"] if not (told["rank"] and told["cause"])]
    wrong += [f"not named: `{re.sub(r'/[^ ]*resilin-soak-[^/ ]+', 'FOLDER', line)}`" for line in unnamed]
    return f"{faults}: {', '.join(wrong)}"


def _text(fault: Mapping[str, Any]) -> str:
    return str(schedule.Fault(**fault))


def main(argv: Sequence[str] | None = None) -> int:
    """Play, and write the results file unless single runs were asked for. 1: a run ended wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--count", type=int, default=SCHEDULES, help="schedules in all (default %(default)s)")
    parser.add_argument("--run", type=int, action="append", default=[], metavar="N", help="play this one alone")
    parser.add_argument("--at-once", type=int, default=1, metavar="N", help="runs side by side (default %(default)s)")
    parser.add_argument("--log", type=Path, default=LOG, help="rows so far; those are not played again (%(default)s)")
    parser.add_argument("--for", dest="for_s", type=float, default=math.inf, help="seconds to begin runs in")
    parser.add_argument("--play-only", action="store_true", help="write no results file yet")
    args = parser.parse_args(argv)
    if args.run:
        with tempfile.TemporaryDirectory() as folder:
            rows = soak(0, Path(folder) / "log", 1, args.run)
        print("\n".join(text for row in rows for text in row["said"]))
    else:
        rows = soak(args.count, args.log, args.at_once, for_s=args.for_s)
        if not args.play_only:
            harness.finish(report(rows), Options())
    return 0 if all(row["ok"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
