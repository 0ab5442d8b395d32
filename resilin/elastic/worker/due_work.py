"""Work that is due at commits (`State.on_commit`): done once for each of them, also when the world changes with it.

    commit N: state is kept ─► first work ─► barrier ─► second work ─► barrier ─► a new world may take over
                  done 0                     done 1                    done 2

A barrier tells that the work is done on all ranks. When a rank is lost before it, the others have an unfinished commit
N: the next world compares how far each rank has come (with their states, in `sync`), and does what nobody knows to be
done on all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Generic, TypeVar

import resilin.distributed as dist
from resilin.errors import UsageError

S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Work(Generic[S]):
    """What `on_commit` registered."""

    every: int
    do: Callable[[S], object]
    lasting: bool
    """Whether it was registered outside of `@elastic.run`'s function, which registers again when it is called again."""

    def due(self, step: int) -> bool:
        """Whether commit number `step` is one of its commits."""
        return step > 0 and step % self.every == 0


class DueWork(Generic[S]):
    """The works of one State, and how far those of its last commit have come. Main thread only."""

    def __init__(self) -> None:
        self._works: list[Work[S]] = []
        self._inside = False  # whether elastic.run's function runs
        self._busy = ""  # which work is being done
        self._step = 0  # the commit that `_due` and `_done` are about
        self._due = 0  # works of that commit
        self._done = 0  # of these, in their order, done on all ranks

    def register(self, state: S, step: int, every: int, do: Callable[[S], object]) -> None:
        """See `State.on_commit`; step: the last commit."""
        if not isinstance(every, Integral) or isinstance(every, bool) or every < 1 or not callable(do):
            raise UsageError(
                f"State.on_commit: expected every=N commits, at least 1, and do=a function of the state, got "
                f"every={every!r} and do={do!r}"
            )
        self.refuse_nested("State.on_commit")
        self._works.append(Work(int(every), do, not self._inside))
        if self._inside:
            self._catch_up(state, step)

    def refuse_nested(self, what: str) -> None:
        """UsageError for `what` inside of a work."""
        if self._busy:
            raise UsageError(f"{what} inside of {self._busy}: it runs within a commit, and may not change the state")

    def committed(self, state: S, step: int) -> None:
        """Do what is due at commit `step`. Collective, where something is."""
        self._step, self._done = step, 0
        self._due = sum(work.due(step) for work in self._works)
        self._catch_up(state, step)

    @property
    def stand(self) -> tuple[int, int, int]:
        """The last commit, how many works were due at it, and how many of these were done on all ranks."""
        return self._step, self._due, self._done

    def hear(self, step: int, stands: Sequence[tuple[int, int, int]]) -> None:
        """Take over what the ranks of a new world, which begins at commit `step`, know of that one."""
        self._step = step
        self._due = max((due for at, due, _ in stands if at == step), default=0)
        self._done = max((done for at, _, done in stands if at == step), default=0)

    def enter(self, state: S, step: int) -> None:
        """A world begins, at commit `step`: do what is left of it. Collective, where something is.

        What the function of the world before registered is gone: it registers again, and what is left follows there.
        """
        self._works = [work for work in self._works if work.lasting]
        self._inside, self._busy = True, ""
        self._catch_up(state, step)

    def leave(self) -> None:
        """The program has left `elastic.run`."""
        self._works = [work for work in self._works if work.lasting]
        self._inside = False

    def _catch_up(self, state: S, step: int) -> None:
        if self._step != step:
            return
        due = [work for work in self._works if work.due(step)]
        while self._done < min(self._due, len(due)):
            self._do(due[self._done], state, step)
            self._done += 1

    def _do(self, work: Work[S], state: S, step: int) -> None:
        name = getattr(work.do, "__qualname__", None) or repr(work.do)
        self._busy = f"State.on_commit(every={work.every}, do={name}) at commit {step}"
        try:
            work.do(state)
        except Exception as error:
            error.add_note(f"raised by {self._busy}; the step itself is committed")
            raise
        finally:
            self._busy = ""
        group = _group()
        if group is not None:
            dist.barrier(group=group)


def _group() -> Any:
    """The ranks, where there are several."""
    group = dist.default_group() if dist.is_initialized() else None
    return group if group is not None and group.size() > 1 else None
