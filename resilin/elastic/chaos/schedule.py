"""Schedules of faults: data that a seed gives, a file holds, and a replay follows. Pure, but for `load`.

    [[faults]]                      # TOML; the same as JSON: {"faults": [{...}]}
    do = "kill"                     # see KINDS
    rank = 1                        # of the worker that suffers it
    at = "collective"               # a moment of that worker's step, see MOMENTS
    step = 12                       # from this step on (the first is 1)
    nth = 3                         # the how-manieth time that it comes to this moment (from 0)

    [[faults]]
    do = "kill"
    to = "agent"                    # worker, agent, store or link
    node = 0                        # of the agent
    after_s = 1.5                   # seconds after the job was started, instead of a moment

A fault with a moment that hits an agent, the store or the link happens when worker `rank` comes to that moment.
"""

from __future__ import annotations

import json
import random
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from resilin._base import moments
from resilin.errors import UsageError

MOMENTS = (*moments.NAMES, "collective", "rendezvous")
"""Where a fault can strike. collective: each phase of each collective; rendezvous: the same of making a group."""
_DIVIDED = ("buddy", "gather")  # these come only to programs that divide state among their ranks
DRAWN = tuple(name for name in MOMENTS if name not in _DIVIDED)
"""Where faults of drawn schedules strike: moments that come in any program."""
WRITING = ("ledger", "saving")
_CHANGING = ("state", "rendezvous")  # these come again only when the world changes
TARGETS = ("worker", "agent", "store", "link")
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
    "kill": Kind(targets=("worker", "agent", "store"), outside=True, group="crash", report=r"killed by SIGKILL"),
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
            (kind is None, f"do = {self.do!r}: expected one of {', '.join(KINDS)}"),
            (self.to not in TARGETS, f"to = {self.to!r}: expected one of {', '.join(TARGETS)}"),
            (kind and self.to not in kind.targets, f"{self.do!r} can be done to {kind and ' and '.join(kind.targets)}"),
            (self.at and self.at not in MOMENTS, f"at = {self.at!r}: expected one of {', '.join(MOMENTS)}"),
            (
                kind and not self.at and not kind.outside,
                f"{self.do!r} happens inside a worker: give `at`, one of {', '.join(MOMENTS)}",
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
            text = file.read(MAX_BYTES).decode("utf-8")
        body = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"{path}: expected a schedule in TOML, or in JSON if it is called .json: {error}") from None
    return Schedule.from_body(body, str(path))


def _fault(body: Any, where: str) -> Fault:
    known = {field.name: type(field.default) for field in fields(Fault)} | {"do": str}
    if not isinstance(body, Mapping) or "do" not in body:
        raise UsageError(f"{where}: expected a table with `do`, got {body!r}")
    for name, value in body.items():
        expected = known.get(name)
        if expected is None:
            raise UsageError(f"{where}: no such key {name!r}: expected {', '.join(known)}")
        if not isinstance(value, (int, float) if expected is float else expected) or isinstance(value, bool):
            raise UsageError(f"{where}: {name} = {value!r}: expected {expected.__name__}")
    return Fault(**body).checked(where)


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What there is to be disturbed."""

    workers: int
    """In all."""
    steps: int
    """That the program makes, or at least as many as it surely makes."""
    nodes: int = 1
    store: bool = False
    """Whether the store is a process of its own."""
    link: bool = False
    """Whether the link between two nodes can be cut."""

    def ways(self) -> list[tuple[str, str]]:
        """(do, to): everything that can happen here. To an agent only where others go on, or it is started again."""
        found = [(name, "worker") for name, kind in KINDS.items() if "worker" in kind.targets]
        found += [("kill", "agent"), ("term", "agent")] + ([("stop", "agent")] if self.nodes > 1 else [])
        found += [("kill", "store"), ("stop", "store")] if self.store else []
        return found + ([("cut", "link")] if self.link else [])


def draw(seed: int, setup: Setup, only: Sequence[tuple[str, str]] = ()) -> Schedule:
    """The schedule of `seed`: its first fault goes through all ways in turn; a quarter have another one to a worker.

    only: ways to choose from; default: all of the setup.
    """
    chance = random.Random(seed)
    ways = list(only) or setup.ways()
    do, to = ways[seed % len(ways)]
    first = _drawn(chance, do, to, setup)
    faults = [first]
    if first.to == "worker" and first.at in _CHANGING:
        other = (first.rank + 1) % setup.workers
        faults.insert(0, Fault(do="kill", rank=other, at="backward", step=max(1, first.step - 2)))
    elif chance.random() < 0.25:
        more = chance.choice(("raise", "kill", "exit", "segfault"))
        faults.append(_drawn(chance, more, "worker", setup, tuple(at for at in DRAWN if at not in _CHANGING)))
    return Schedule(faults=tuple(fault.checked(f"seed {seed}") for fault in faults), seed=seed)


def _drawn(chance: random.Random, do: str, to: str, setup: Setup, among: tuple[str, ...] = DRAWN) -> Fault:
    at = chance.choice(WRITING if do == "disk-full" else among)
    if to != "worker" and at in _CHANGING:
        at = "collective"
    return Fault(
        do=do,
        to=to,
        rank=0 if at == "saving" else chance.randrange(setup.workers),  # rank 0 writes checkpoints
        node=chance.randrange(setup.nodes),
        at=at,
        step=chance.randint(2, max(2, setup.steps * 2 // 3)),
        nth=0 if at in ("commit", "ledger") else chance.randrange(4),
        for_s=round(chance.uniform(0.2, 5.0 if do == "cut" else 2.0), 2),
    )
