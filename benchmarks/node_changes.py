"""A node is lost, leaves or joins: how long do the workers of the other one stand still?"""

from __future__ import annotations

import itertools
import signal
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import harness
from benchmarks.harness import BenchmarkError, Options, Report, Row
from benchmarks.parts.disturbed import Event, Node
from resilin.testing import ports

LEASE_S = 1.0
PATIENCE_S = {"resilin": 30.0, "torch": 90.0}  # a torchrun that is left alone first waits for its rendezvous
AFTER = 20  # commits in the new world that the longest pause is looked for in

METHOD = """Two launchers on one machine that meet at a port of loopback, `--nnodes 1:2 --nproc-per-node 1`, and train
the model of `recovery`; {rounds} rounds. *Loss*: launcher, worker and all they started on the second node are killed
with SIGKILL; from there to the first step that the first node, which serves the store, commits without it. The lease of
`elastic-run` is {lease} s here, and is taken off: what is shown is the time on top of it. (torchrun counts in its own
way: nothing is taken off.) *Leave*: SIGTERM to the second launcher; *join*: a second launcher is started. Pause: the
longest time without a commit of the first node's workers from that moment to {after} steps in the new world, less the
median step in the old one. PyTorch: workers are stopped and started again; {peer_rounds} rounds."""


@dataclass
class Found:
    """Of one side, in milliseconds."""

    loss: list[float] = field(default_factory=list)
    leave: list[float] = field(default_factory=list)
    join: list[float] = field(default_factory=list)
    step: list[float] = field(default_factory=list)


class Pair:
    """Two nodes; the second one comes and goes."""

    def __init__(self, side: str, options: Options, folder: Path) -> None:
        self._side, self._options, self._folder = side, options, folder
        self._port = ports.held()
        self._endpoint = f"127.0.0.1:{self._port.__enter__()[0]}"
        self._started = 0
        self.first = self._start()
        self.second: Node | None = None
        self.step_ms = 0.0  # before the last change

    def _start(self) -> Node:
        self._started += 1
        folder = self._folder / str(self._started)
        folder.mkdir()
        conf = f"lease_ttl={LEASE_S:g}" if self._side == "resilin" else ""
        flags = ["--nnodes", "1:2", "--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-id", "pair"]
        flags += ["--rdzv-endpoint", self._endpoint, "--max-restarts", "100", "--local-addr", "127.0.0.1"]
        flags += ["--rdzv-conf", conf] if conf else []
        case = harness.case_command(self._side, self._options, "recovery", [])[2:]
        return Node(self._side, self._options, folder, [*flags, "-m"], case)

    def wait(self, what: str, world: int) -> int:
        """Wait until the first node trains in a world of that size; the generation."""
        return self.first.wait(what, lambda: self.first.settled(world), PATIENCE_S[self._side])[0].generation

    def join(self) -> float:
        """Start the second node; the pause in ms."""
        self.wait("a world of one", 1)
        since = time.monotonic()
        self.second = self._start()
        return self._pause(since, 2)

    def leave(self) -> float:
        """Ask the second node to go; the pause in ms."""
        self.wait("a world of two", 2)
        assert self.second is not None
        since = time.monotonic()
        self.second.launcher.send_signal(signal.SIGTERM)
        pause = self._pause(since, 1)
        self._drop()
        return pause

    def lose(self) -> float:
        """Kill everything on the second node; ms until the first one has committed alone."""
        generation = self.wait("a world of two", 2)
        assert self.second is not None
        killed_at = time.monotonic()
        self.second.kill_everything()
        alone = self.first.wait(
            "a step without the lost node",
            lambda: self.first.first("commit", generation, lambda event: event.world == 1),
            PATIENCE_S[self._side],
        )
        self._drop()
        return (alone.at - killed_at - (LEASE_S if self._side == "resilin" else 0.0)) * 1e3

    def _pause(self, since: float, world: int) -> float:
        """The longest gap between commits from `since` to some steps in the next world, less a median step, in ms."""
        kept = {event.at for event in self.first.commits()}
        generation = max(event.generation for event in self.first.commits())

        def enough() -> list[Event] | None:
            kept.update(event.at for event in self.first.commits())
            after = [event for event in self.first.commits(generation) if event.world == world]
            return after if len(after) >= AFTER else None

        last = self.first.wait(f"{AFTER} steps in a world of {world}", enough, PATIENCE_S[self._side])[AFTER - 1]
        times = sorted(at for at in kept if at <= last.at)
        gaps = list(itertools.pairwise(times))
        steps = [(b - a) for a, b in gaps if b < since]
        self.step_ms = harness.percentile(steps, 50) * 1e3
        return max(b - a for a, b in gaps if b >= since) * 1e3 - self.step_ms

    def _drop(self) -> None:
        if self.second is not None:
            self.second.close()
            self.second = None

    def close(self) -> None:
        """End both."""
        self._drop()
        self.first.close()
        self._port.__exit__(None, None, None)


def benchmark(options: Options) -> Report:
    """Rounds of join, leave, join, loss."""
    rounds, peer_rounds = (2, 1) if options.quick else (6, 1)
    found = {side: Found() for side in harness.sides(options)}
    notes = []
    for side, some in found.items():
        for number in range(rounds if side == "resilin" else peer_rounds):
            with harness.progress(f"round {number + 1}: {side}"):
                notes += _round(side, options, some)
    if not found["resilin"].loss:
        raise BenchmarkError(f"no node's loss was measured: {notes[0]}")
    method = METHOD.format(rounds=rounds, lease=f"{LEASE_S:g}", after=AFTER, peer_rounds=peer_rounds)
    return Report(
        name="node_changes",
        question="A node is lost, leaves or joins: how long do the workers of the other one stand still?",
        method=method,
        rows=_rows(found),
        notes=notes,
        data={side: vars(some) for side, some in found.items()},
    )


def _round(side: str, options: Options, found: Found) -> list[str]:
    """A new pair of nodes; what went wrong, if something did."""
    with tempfile.TemporaryDirectory(prefix="resilin-nodes-") as folder:
        pair = Pair(side, options, Path(folder))
        try:
            found.join.append(pair.join())
            found.leave.append(pair.leave())
            found.step.append(pair.step_ms)
            found.join.append(pair.join())
            found.loss.append(pair.lose())
        except BenchmarkError as error:
            return [f"{side}: {str(error).splitlines()[0]}"]
        finally:
            pair.close()
    return []


def _rows(found: dict[str, Found]) -> list[Row]:
    rows = []
    for name, what in {
        "loss": "a node is lost: to the next commit, beyond the lease",
        "leave": "a node leaves: pause of the other, beyond a step",
        "join": "a node joins: pause of the other, beyond a step",
        "step": "a step with two nodes",
    }.items():
        values = {side: getattr(some, name) for side, some in found.items()}
        for percent in (50, 95) if name != "step" else (50,):
            rows.append(
                Row(
                    what=f"{what}, {'median' if percent == 50 else 'p95'}",
                    unit="ms",
                    ours=harness.percentile(values["resilin"], percent),
                    peer=harness.percentile(values["torch"], percent) if values.get("torch") else None,
                    spread=harness.spread(values["resilin"]),
                )
            )
    return rows


if __name__ == "__main__":
    sys.exit(harness.main(benchmark))
