"""How far the steps of a module have come on this rank: who leaves one half-way is told so, and the other ranks too.

for shard in plan.shards:
    with model.shard(shard):     numbers 4, 5, 6: 4 was the first one and comes from train.py:31
        ...
    break                        5 and 6 are missing in everybody's sums; what comes next is refused with that
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import resilin.distributed as dist
from resilin.errors import UsageError
from resilin.shards.block import Shard

_NOT_OF_USERS = (str(Path(__file__).resolve().parents[1]), contextlib.__file__)
_KNOWS_NO_WORLD = (
    "the sampler deals as for a world of one: register it in elastic.State, or call sampler.bind(rank, world_size) or "
    "steps(rank, world_size)"
)

_courses: weakref.WeakKeyDictionary[dist.ProcessGroup, weakref.WeakSet[Progress]] = weakref.WeakKeyDictionary()


class Progress:
    """The shards of this rank in a step, in order. what: how messages call the module's `shard`; hint: what to do."""

    def __init__(self, what: str, total: int, hint: str) -> None:
        self.numbers: Sequence[int] = ()
        self._what, self._total, self._hint = what, total, hint
        self._group: dist.ProcessGroup | None = None
        self.done = 0  # how many of them were computed
        self._step = 0
        self._where = ""
        self._left = ""  # the story of a step that was left half-way, and is given up

    @property
    def begins(self) -> bool:
        """Whether the next shard is the step's first."""
        return self.done == 0

    @property
    def ends(self) -> bool:
        """Whether the next shard is the step's last."""
        return self.done == len(self.numbers) - 1

    def enter(self, shard: Shard, numbers: Sequence[int], group: dist.ProcessGroup) -> None:
        """`shard` is about to be computed; numbers: those of this rank.

        UsageError, on all ranks, when another one comes next: then the step is given up, and a new one may begin.
        """
        if self.begins:
            self.numbers, self._group = numbers, group
        expected = self.numbers[self.done]
        if shard.total == self._total and shard.number == expected and (self.begins or shard.step == self._step):
            if self.begins:
                self._step, self._where = shard.step, _line_of_user()
                _courses.setdefault(group, weakref.WeakSet()).add(self)
                self._left = ""
            return
        words = (
            f"{self._what}: expected shard {expected} of {self._total} (this rank has {list(self.numbers)}), got shard "
            f"{shard.number} of {shard.total}"
        )
        if not self.begins:
            words = f"{words} of step {shard.step}; {self._story()}"
        elif shard.total == self._total and shard.number == 0:
            words = f"{words}; {_KNOWS_NO_WORLD}"
        self.restart()
        self._refuse(f"{words}; {self._hint}")

    def advance(self) -> None:
        """The shard was computed."""
        self.done = (self.done + 1) % len(self.numbers)

    def restart(self, left: bool = False) -> None:
        """The step is given up: a first shard comes next. left: and nothing else may, until then."""
        self._left = self._story() if left else ""
        self.done = 0

    def check_complete(self, what: str, inside: bool = False) -> None:
        """UsageError, on all ranks, when `what` comes before the step's last shard. inside: a shard's block is open."""
        if self._left and not inside:
            self._refuse(f"{what} in the middle of a step: {self._left}; compute all of a step's shards first")
        if self.begins and not inside:
            return
        at = self.numbers[self.done]
        where = f"inside the block of shard {at}" if inside else f"shard {at} is still to come"
        story = "" if self.begins else f"; {self._story()}"
        self._refuse(
            f"{what} in the middle of a step: {where}; enter all of `plan.shards` first, this rank has "
            f"{list(self.numbers)}{story}"
        )

    def _story(self) -> str:
        return (
            f"step {self._step}, which began at {self._where}, has had shards {list(self.numbers[: self.done])} only, "
            "as after a `break` out of the loop over its shards"
        )

    def _refuse(self, words: str) -> NoReturn:
        error = UsageError(words)
        if self._group is not None and self._group.size() > 1:
            self._group.abort(error)  # the others would wait for this rank's part of the sums
        raise error


def check_complete(group: dist.ProcessGroup, what: str) -> None:
    """UsageError, on all ranks, when `what` comes while a module of `group` is in the middle of a step."""
    for course in list(_courses.get(group, ())):
        course.check_complete(what)


def _line_of_user() -> str:
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_NOT_OF_USERS):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
