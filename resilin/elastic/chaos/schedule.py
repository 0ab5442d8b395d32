"""Describe schedules of faults: data that a seed gives, a file holds, and a replay follows. Pure, but for `load`.

    [[faults]]                      # TOML; the same as JSON: {"faults": [{...}]}
    do = "kill"                     # see KINDS
    rank = 1                        # of the worker that suffers it
    at = "collective"               # a moment of that worker's step, see MOMENTS
    step = 12                       # from this step on (the first is 1)
    nth = 3                         # the how-manieth time that it comes to this moment (from 0)

    [[faults]]
    do = "kill"
    to = "agent"                    # worker, agent, host (that of the embedded store), store or link
    node = 0                        # of the agent
    after_s = 1.5                   # seconds after the job was started, instead of a moment

A fault with a moment that hits an agent, the store or the link happens when worker `rank` comes to that moment.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from resilin._base import fault_points, json_text, toml_text
from resilin._base.text import shown
from resilin.errors import UsageError

MOMENTS = (*fault_points.NAMES, "collective", "rendezvous")
"""Where a fault can strike. collective: each phase of each collective; rendezvous: the same of making a group."""
_DIVIDED = ("buddy", "gather")  # these come only to programs that divide state among their ranks
_PIPELINED = ("pipeline",)  # and this one to programs with a pipeline
DRAWN = tuple(name for name in MOMENTS if name not in _DIVIDED + _PIPELINED)
"""Where faults of drawn schedules strike: moments that come in any program."""
WRITING = ("ledger", "saving")
_CHANGING = ("state", "rendezvous")  # these come again only when the world changes
_CUTS_S = (5.0, 5.0, 30.0)  # a cut lasts at most so long; long ones are noticed before they end
_TIMES = 4  # that a worker comes to one moment in a step, or more
FIRST_STEP = 2  # that drawn faults strike at: the first one makes what later ones have
TARGETS = ("worker", "agent", "host", "store", "link")
MAX_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A way to fail."""

    targets: tuple[str, ...]
    outside: bool
    """Whether it can be done to a worker from outside, at any time."""
    group: str
    """crash, hang, leave (no failure at all) or outage (nobody's failure)."""
    report: str
    """A regular expression for what the report of a worker's failure says about its cause."""


NAMED = r"did not answer and was killed"
"""What is said of a worker that the watchdog has ended."""
TIMED_OUT = r"did not answer within its group's timeout and was killed"
"""And of one that it has not noticed: others waited for it in vain until their group's timeout."""

KINDS: dict[str, Kind] = {
    "raise": Kind(targets=("worker",), outside=False, group="crash", report=r"raised RuntimeError: .*chaos fault \d+"),
    "exit": Kind(targets=("worker",), outside=False, group="crash", report=r"exited with code 23"),
    "kill": Kind(
        targets=("worker", "agent", "host", "store"), outside=True, group="crash", report=r"killed by SIGKILL"
    ),
    "segfault": Kind(targets=("worker",), outside=True, group="crash", report=r"killed by SIGSEGV"),
    "abort": Kind(targets=("worker",), outside=True, group="crash", report=r"killed by SIGABRT"),
    "disk-full": Kind(targets=("worker",), outside=False, group="crash", report=r"raised \w+: .*No space left"),
    "stop": Kind(targets=("worker", "agent", "store"), outside=True, group="hang", report=NAMED),
    "hold-gil": Kind(targets=("worker",), outside=False, group="hang", report=NAMED),
    "hang": Kind(targets=("worker",), outside=False, group="hang", report=NAMED),
    "term": Kind(targets=("worker", "agent"), outside=True, group="leave", report=r"left \(SIGTERM\)"),
    "cut": Kind(targets=("link",), outside=True, group="outage", report=r"did not answer|lost|closed"),
}
"""By name: an exception, an exit with a status, SIGKILL, a write to address 0, abort(), ENOSPC from every file that is
being written, SIGSTOP, a thread that keeps the interpreter's lock, one that waits for ever, SIGTERM, a dead link."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault. UsageError from `checked` when it makes no sense."""

    do: str
    to: str = "worker"
    rank: int = 0
    node: int = 0
    at: str = ""
    """A moment; empty: `after_s` counts."""
    step: int = 1
    nth: int = 0
    after_s: float = 0.0
    for_s: float = 1.0
    """For faults that end: how long the link is cut or the store is away; until a killed agent is started again."""

    def __str__(self) -> str:
        who = {"worker": f"rank {self.rank}", "agent": f"the agent of node {self.node}"}.get(self.to, f"the {self.to}")
        whose = "" if self.to == "worker" else f" of rank {self.rank}"
        when = f"in {self.at}{whose} (nth {self.nth}), step {self.step}" if self.at else f"after {self.after_s:g} s"
        return f"{self.do} {who} {when}"

    def checked(self, where: str) -> Fault:
        """The fault itself. UsageError that begins with `where` names what is wrong."""
        kind = KINDS.get(self.do)
        wrong = (
            (kind is None, f"do = {self.do!r:.80}: expected one of {', '.join(KINDS)}"),
            (self.to not in TARGETS, f"to = {self.to!r:.80}: expected one of {', '.join(TARGETS)}"),
            (
                kind and self.to not in kind.targets,
                f"{self.do!r:.80} can be done to {kind and ' and '.join(kind.targets)}",
            ),
            (self.at and self.at not in MOMENTS, f"at = {self.at!r:.80}: expected one of {', '.join(MOMENTS)}"),
            (
                kind and not self.at and not kind.outside,
                f"{self.do!r:.80} happens inside a worker: give `at`, one of {', '.join(MOMENTS)}",
            ),
            (self.do == "disk-full" and self.at not in WRITING, f"'disk-full': expected at = {' or '.join(WRITING)}"),
            (
                min(self.rank, self.node, self.nth, self.after_s) < 0 or self.step < 1 or self.for_s <= 0,
                "expected rank, node, nth and after_s of at least 0, step of at least 1, for_s above 0",
            ),
        )
        for is_wrong, text in wrong:
            if is_wrong:
                raise UsageError(f"{where}: {text}")
        return self


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The faults of one run of a job."""

    faults: tuple[Fault, ...]
    seed: int | None = None
    """What they were drawn from."""

    def to_json(self) -> str:
        """The text of a file that `load` reads."""
        return json.dumps({"seed": self.seed, "faults": [asdict(fault) for fault in self.faults]}, indent=1) + "\n"

    @classmethod
    def from_body(cls, body: Any, where: str) -> Schedule:
        """From what a file holds. UsageError names the fault that is wrong."""
        if not isinstance(body, Mapping) or not isinstance(body.get("faults"), list):
            raise UsageError(f"{where}: expected a list of faults called `faults`")
        seed = body.get("seed")
        faults = [_fault(one, f"{where}: fault {number}") for number, one in enumerate(body["faults"])]
        return cls(faults=tuple(faults), seed=seed if isinstance(seed, int) else None)


def load(path: Path) -> Schedule:
    """Read a schedule: TOML, or JSON when the name ends in .json. UsageError when it is none."""
    try:
        with path.open("rb") as file:
            text = json_text.read(file, MAX_BYTES)
        body = json_text.parse(text) if path.suffix == ".json" else toml_text.parse(text)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"{path}: expected a schedule in TOML, or in JSON if it is called .json: {error}") from None
    return Schedule.from_body(body, str(path))


def _fault(body: Any, where: str) -> Fault:
    known = {field.name: type(field.default) for field in fields(Fault)} | {"do": str}
    if not isinstance(body, Mapping) or "do" not in body:
        raise UsageError(f"{where}: expected a table with `do`, got {shown(body)}")
    for name, value in body.items():
        expected = known.get(name)
        if expected is None:
            raise UsageError(f"{where}: no such key {name!r:.80}: expected {', '.join(known)}")
        if not isinstance(value, (int, float) if expected is float else expected) or isinstance(value, bool):
            raise UsageError(f"{where}: {name} = {shown(value)}: expected {expected.__name__}")
    return Fault(**body).checked(where)


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Describe what there is to be disturbed."""

    workers: int
    """In all."""
    steps: int
    """That the program makes, or at least as many as it surely makes."""
    nodes: int = 1
    store: bool = False
    """Whether the store is a process of its own."""
    link: bool = False
    """Whether the link between two nodes can be cut."""
    hosted: bool = False
    """Whether one of the nodes serves the store, which is lost with it."""
    moments: Mapping[str, Sequence[int]] | None = None
    """By moment: the steps at which one worker that nobody disturbed came to it the last times; None: not known."""

    def ways(self) -> list[tuple[str, str]]:
        """(do, to): everything that can happen here. To an agent only where others go on, or it is started again."""
        found = [(name, "worker") for name, kind in KINDS.items() if "worker" in kind.targets]
        if not self.among(WRITING):
            found.remove(("disk-full", "worker"))
        found += [("kill", "agent"), ("term", "agent")] + ([("stop", "agent")] if self.nodes > 1 else [])
        found += [("kill", "host")] if self.hosted and self.nodes > 1 else []
        found += [("kill", "store"), ("stop", "store")] if self.store else []
        return found + ([("cut", "link")] if self.link else [])

    def among(self, moments: Sequence[str]) -> tuple[str, ...]:
        """Those of `moments` that the program has. The world of all changes when it is disturbed, if it does so."""
        known = self.moments
        if known is None:
            return tuple(moments)
        return tuple(at for at in moments if at in _CHANGING or max(known.get(at, ()), default=0) >= FIRST_STEP)

    def last_step(self, at: str) -> int:
        """The last step from which on a worker surely comes to `at`."""
        steps = max(FIRST_STEP, self.steps * 2 // 3)  # what comes later might find no step to recover in
        came = (self.moments or {}).get(at)
        return steps if at in _CHANGING or not came else max(FIRST_STEP, min(steps, came[-1]))

    def times(self, at: str, step: int) -> int:
        """How often a worker surely comes to `at` from `step` on, as far as that matters."""
        came = (self.moments or {}).get(at)
        return _TIMES if at in _CHANGING or not came else max(1, sum(one >= step for one in came))


def draw(seed: int, setup: Setup, only: Sequence[tuple[str, str]] = ()) -> Schedule:
    """The schedule of `seed`: its first fault goes through all ways in turn; a quarter have another one to a worker.

    Half of those in which somebody is asked to leave kill another worker at the same moment.

    only: ways to choose from; default: all of the setup.
    """
    chance = random.Random(seed)
    ways = list(only) or setup.ways()
    do, to = ways[seed % len(ways)]
    first = _drawn(chance, do, to, setup)
    faults = [first]
    if first.to == "worker" and first.at in _CHANGING:
        other = (first.rank + 1) % setup.workers
        at = (*setup.among(("backward", "collective", "commit")), "commit")[0]
        faults.insert(0, Fault(do="kill", rank=other, at=at, step=max(1, first.step - 2)))
    elif chance.random() < 0.25:
        more = chance.choice(("raise", "kill", "exit", "segfault"))
        often = tuple(at for at in setup.among(DRAWN) if at not in _CHANGING)
        if often:
            faults.append(_drawn(chance, more, "worker", setup, often))
    if do == "term" and len(faults) == 1 and setup.workers > 1 and first.at != "saving" and chance.random() < 0.5:
        other = (first.rank + 1) % setup.workers  # as another one dies: who leaves may alone have the state
        faults.append(replace(first, do="kill", to="worker", rank=other))
    return Schedule(faults=tuple(fault.checked(f"seed {seed}") for fault in faults), seed=seed)


def _drawn(chance: random.Random, do: str, to: str, setup: Setup, among: tuple[str, ...] = DRAWN) -> Fault:
    at = chance.choice(setup.among(WRITING if do == "disk-full" else among))
    if to != "worker" and at in _CHANGING:
        at = (*setup.among(("collective", "backward", "commit")), "commit")[0]
    rank = 0 if at == "saving" else chance.randrange(setup.workers)  # rank 0 writes checkpoints
    node, step = chance.randrange(setup.nodes), chance.randint(FIRST_STEP, setup.last_step(at))
    return Fault(
        do=do,
        to=to,
        rank=rank,
        node=node,
        at=at,
        step=step,
        nth=0 if at in ("commit", "ledger") else chance.randrange(setup.times(at, step)),
        for_s=round(chance.uniform(0.2, chance.choice(_CUTS_S) if do == "cut" else 2.0), 2),
    )
