"""`python -m examples.demo`: kill a worker in the middle of training; the final weights stay the same bits.

Trains `01-digits` with two workers, kills one with SIGKILL part-way, watches the survivor go on and the replacement
join, then trains once more with a single worker that nobody disturbs, and compares the sha256 of the weights.
Exit code 0: equal, and at least 97% of the held-out digits are recognised.
"""

from __future__ import annotations

import argparse
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import IO

from resilin.elastic import ledger

EXAMPLES = Path(__file__).resolve().parent
TRAIN = EXAMPLES / "01-digits" / "train.py"
SAMPLES = 1437
ACCURACY = 97.0  # percent
PATIENCE_S = 60.0  # longest silence of a training run before the demo gives up

JOINED = re.compile(r"generation (\d+): rank (\d+) of (\d+), pid (\d+)")
STEP = re.compile(r"epoch (\d+) step (\d+) loss (\S+) workers (\d+)")
RECOVERED = re.compile(r"elastic-run: recovered in (\S+) ms")
RESULT = re.compile(r"(test accuracy|weights sha256) (\S+)")


def plural(workers: int) -> str:
    """The number with its noun."""
    return f"{workers} worker{'s' * (workers != 1)}"


class Screen:
    """Lines that stay; on a terminal, one line below them that is rewritten, elsewhere a line per tenth of the run."""

    def __init__(self, stream: IO[str], live: bool) -> None:
        self.stream, self.is_live = stream, live
        self._begin = time.monotonic()

    def say(self, text: str) -> None:
        """A line that stays, with the seconds since the start in front."""
        clear = "\r\x1b[K" if self.is_live else ""
        self.stream.write(f"{clear}{time.monotonic() - self._begin:5.1f} s  {text}\n")
        self.stream.flush()

    def progress(self, done: int, total: int, text: str) -> None:
        """Show `text`, the progress after `done` of `total` steps."""
        if self.is_live:
            room = shutil.get_terminal_size().columns - 1  # a line that wraps cannot be rewritten
            self.stream.write(f"\r\x1b[K{f'         {text}'[:room]}")
            self.stream.flush()
        elif done * 10 // total > (done - 1) * 10 // total:
            self.say(text)


@dataclass
class Run:
    """One training run, as far as it can be told from what the workers print."""

    epochs: int
    steps_per_epoch: int
    generation: int = 0
    pids: dict[int, int] = field(default_factory=dict)
    """Process of each rank in the newest generation it reported."""
    workers: int = 0
    epoch: int = 0
    step: int = -1
    results: dict[str, str] = field(default_factory=dict)

    def bar(self, loss: str) -> str:
        """The live progress line."""
        total = self.epochs * self.steps_per_epoch
        filled = 20 * (self.step + 1) // total
        where = f"epoch {self.epoch + 1}/{self.epochs} step {self.step + 1}/{total}"
        return f"[{'#' * filled:20}] {where} loss {loss} {plural(self.workers)}"


@dataclass(frozen=True)
class Scratch:
    """A folder, and the descriptor that whoever uses it holds open: it is removed when nobody does any more."""

    folder: Path
    descriptor: int


@contextmanager
def scratch() -> Iterator[Scratch]:
    """A temporary folder. A process of its own removes it, so that it goes even if this one is killed."""
    folder = tempfile.mkdtemp(prefix="resilin-demo-")
    code = "import shutil, sys; sys.stdin.read(); shutil.rmtree(sys.argv[1])"  # reads until all have closed it
    command = [sys.executable, "-c", code, folder]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as remover:
        assert remover.stdin is not None
        yield Scratch(Path(folder), remover.stdin.fileno())


class Training:
    """`elastic-run` of the example in a child process; its output is read line by line with times of arrival."""

    def __init__(self, workers: int, epochs: int, batch_size: int, place: Scratch, book: Path) -> None:
        launcher = Path(sysconfig.get_path("scripts")) / "elastic-run"
        command = [
            str(launcher), "--standalone", "--nproc-per-node", str(workers), "--max-restarts", "3", str(TRAIN),
            "--epochs", str(epochs), "--batch-size", str(batch_size), "--log-every", "1",
        ]  # fmt: skip
        self.tail: list[str] = []
        self._lines: queue.SimpleQueue[tuple[float, str] | None] = queue.SimpleQueue()
        self._process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=EXAMPLES.parent,
            env={**os.environ, "RESILIN_LEDGER": str(book)},
            pass_fds=(place.descriptor,),
        )
        # two pipes: what the launcher says must not end up in the middle of a worker's line
        self._readers = [threading.Thread(target=self._read, args=(stream,)) for stream in self._streams()]
        for reader in self._readers:
            reader.start()

    def _streams(self) -> list[IO[str]]:
        return [stream for stream in (self._process.stdout, self._process.stderr) if stream is not None]

    def _read(self, stream: IO[str]) -> None:
        for line in stream:
            self._lines.put((time.monotonic(), line.rstrip()))
        self._lines.put(None)

    def lines(self) -> Iterator[tuple[float, str]]:
        """Every line with its time of arrival, until the run has ended."""
        open_streams = len(self._readers)
        while open_streams:
            try:
                item = self._lines.get(timeout=PATIENCE_S)
            except queue.Empty:
                raise SystemExit(self._failure(f"the training run said nothing for {PATIENCE_S:.0f} s")) from None
            if item is None:
                open_streams -= 1
                continue
            self.tail = [*self.tail[-19:], item[1]]
            yield item
        code = self._process.wait()
        if code:
            raise SystemExit(self._failure(f"elastic-run ended with exit code {code}"))

    def _failure(self, what: str) -> str:
        return "\n".join((f"demo: {what}; its last lines:", *(f"    {line}" for line in self.tail)))

    def close(self) -> None:
        """End the run if it still goes on."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        for reader in self._readers:
            reader.join()
        for stream in self._streams():
            stream.close()


@contextmanager
def training(workers: int, epochs: int, batch_size: int, place: Scratch, book: Path) -> Iterator[Training]:
    """A training run that does not outlive the block; `book`, in `place`, records the samples that it counted."""
    run = Training(workers, epochs, batch_size, place, book)
    try:
        yield run
    finally:
        run.close()


def follow(process: Training, run: Run, screen: Screen, on_change: Callable[[float, str], None]) -> Run:
    """Read the run to its end and keep `run` and the live line up to date; then `on_change` sees each line."""
    for at, line in process.lines():
        for match in JOINED.finditer(line):  # unbuffered workers write text and line end apart: two may share a line
            generation, rank, run.workers, pid = map(int, match.groups())
            if generation > run.generation:
                run.generation, run.pids = generation, {}
            run.pids[rank] = pid
        if match := STEP.search(line):
            run.epoch, run.step, run.workers = int(match[1]), int(match[2]), int(match[4])
            screen.progress(run.step + 1, run.epochs * run.steps_per_epoch, run.bar(match[3]))
        if match := RESULT.search(line):
            run.results[match[1]] = match[2]
        on_change(at, line)
    return run


class Murder:
    """Kills one worker in the middle of an epoch, and shows what the launcher and the workers say from then on.

    After a third of the epochs, so that the replacement has time to join.
    """

    def __init__(self, run: Run, screen: Screen, victim: int) -> None:
        self.run, self.screen, self.victim = run, screen, victim
        self.at_step = run.epochs // 3 * run.steps_per_epoch + run.steps_per_epoch // 2
        self.killed_at = 0.0
        self._old_pids: set[int] = set()
        self._shown = 0  # the last generation whose processes were listed: one line may tell of two ranks
        self._recovered = self._replaced = False

    def __call__(self, at: float, line: str) -> None:
        """Called with every line of the run."""
        if line.startswith("elastic-run: "):
            self.screen.say(line)
        if RECOVERED.search(line) and self.killed_at and not self._recovered:
            self._recovered = True
            self.screen.say(
                f"RECOVERED: the next step was committed {(at - self.killed_at) * 1e3:.0f} ms after the kill"
            )
        for match in JOINED.finditer(line):
            self._joined(pid=int(match[4]))
        if STEP.search(line) and not self.killed_at and self.run.step >= self.at_step and self.victim in self.run.pids:
            self._kill()

    def _joined(self, pid: int) -> None:
        if self.killed_at and pid not in self._old_pids:
            self._replaced = True
        if len(self.run.pids) == self.run.workers and self.run.generation > self._shown:
            self._shown = self.run.generation
            pids = ", ".join(f"rank {rank} is process {pid}" for rank, pid in sorted(self.run.pids.items()))
            self.screen.say(f"generation {self.run.generation}: {pids}")

    def _kill(self) -> None:
        run, pid = self.run, self.run.pids[self.victim]
        self._old_pids = set(run.pids.values())
        self.killed_at = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        where = f"epoch {run.epoch + 1}, after step {run.step % run.steps_per_epoch + 1} of {run.steps_per_epoch}"
        self.screen.say(f"KILL: SIGKILL to rank {self.victim}, process {pid}, in {where}")

    def problems(self) -> list[str]:
        """What should have happened and did not."""
        problems = {
            "no worker was killed": not self.killed_at,
            "no step was committed after the kill": not self._recovered,
            "no replacement joined before the end of training": not self._replaced,
        }
        return [what for what, is_so in problems.items() if is_so]


def main(argv: list[str] | None = None) -> int:
    """Run the demo; 0 when everything it promises was seen."""
    parser = argparse.ArgumentParser(prog="python -m examples.demo", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--victim", type=int, choices=(0, 1), default=1, help="rank of the worker to kill")
    args = parser.parse_args(argv)
    screen = Screen(sys.stdout, live=sys.stdout.isatty())
    with scratch() as place:
        return show(args, screen, place)


def show(args: argparse.Namespace, screen: Screen, place: Scratch) -> int:
    """Both runs and the verdict; files go to `place`."""
    first, second = place.folder / "disturbed", place.folder / "undisturbed"
    steps = -(-SAMPLES // args.batch_size)
    screen.say(f"training with 2 workers on {SAMPLES} handwritten digits, {args.epochs} epochs of {steps} steps")
    disturbed = Run(args.epochs, steps)
    murder = Murder(disturbed, screen, args.victim)
    with training(2, args.epochs, args.batch_size, place, first) as process:
        follow(process, disturbed, screen, murder)
    screen.say(f"test accuracy {disturbed.results.get('test accuracy')}")
    counted = ledger.verify(ledger.read(str(first)), SAMPLES)
    screen.say(f"ledger: {counted}")

    screen.say("the same training again: 1 worker, and nobody disturbs it")
    undisturbed = Run(args.epochs, steps)
    with training(1, args.epochs, args.batch_size, place, second) as process:
        follow(process, undisturbed, screen, lambda at, line: None)
    screen.say(f"test accuracy {undisturbed.results.get('test accuracy')}")
    return verdict(screen, disturbed, undisturbed, [*murder.problems(), *counted.problems])


def verdict(screen: Screen, disturbed: Run, undisturbed: Run, problems: list[str]) -> int:
    """Show both hashes; 1 and the reasons when the demo did not show what it promises."""
    first, second = (run.results.get("weights sha256", "none") for run in (disturbed, undisturbed))
    accuracy = float(disturbed.results.get("test accuracy", "0%").rstrip("%"))
    if accuracy < ACCURACY:
        problems.append(f"test accuracy {accuracy:.2f}% is below {ACCURACY:.0f}%")
    if first != second or first == "none":
        problems.append("the final weights are not equal")
    for problem in problems:
        screen.say(f"FAILED: {problem}")
    screen.say("sha256 of the final weights:")
    screen.say(f"  2 workers, one killed   {first}")
    screen.say(f"  1 worker, undisturbed   {second}   {'equal' if first == second else 'DIFFERENT'}")
    return 1 if problems else 0


def end(number: int, frame: FrameType | None) -> None:
    """Turn a signal into an exit that ends the training run and removes its files."""
    sys.exit(128 + number)


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
    sys.exit(main())
