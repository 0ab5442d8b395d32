"""What each action of a plan waits for, and an order in which all of them can be done, if there is one. Pure.

A SEND never waits, a RECV waits for its SEND; of two sub-actions both wait before the first one starts.
"""

from __future__ import annotations

from collections.abc import Sequence

from resilin.errors import UsageError
from resilin.pipeline.plan.action import (
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    BACKWARDS,
    FORWARD,
    RECV_B,
    RECV_F,
    SEND_B,
    SEND_F,
    ComputationType,
)
from resilin.pipeline.plan.index import NUMBERED, Index

_PARTNERS = {SEND_F: (1, RECV_F), RECV_F: (-1, SEND_F), SEND_B: (-1, RECV_B), RECV_B: (1, SEND_B)}


class Waits:
    """Two things that each action needs, and one that it gives, as keys of an index.

    A full backward gives what its first half gives; what an action gives for nobody to wait for is its own key.

    Args:
        index: of a plan with or without communication.
        synchronous: whether a SEND waits until its RECV's turn has come, as it does where nothing is buffered.
    """

    def __init__(self, index: Index, synchronous: bool = False) -> None:
        plan = index.plan
        self._index = index
        size = len(index.where)
        # Beside an action's key there are one for what it waits for before the others of its OVERLAP_F_B start, and one
        # for its rank having come as far; behind them are those that are there from the start.
        self._waited, self._posted, self._nothing = size, 2 * size, 3 * size
        self._received = plan.has_communication
        self._crosses = [a != b for a, b in zip(plan.placement, plan.placement[1:], strict=False)]
        self._first: list[int] = []
        self._second: list[int] = []
        self._gives: list[int] = []
        for stage in range(plan.stages):
            for kind in NUMBERED:
                for table, start in zip(
                    (self._first, self._second, self._gives), self._starts(stage, kind), strict=True
                ):
                    table.extend(range(start, start + plan.microbatches))
        self._rows, self._numbers = index.rows, index.numbers
        if synchronous or any(len(set(numbers)) < len(numbers) for numbers in self._numbers):
            self._expand(synchronous)

    def order(self) -> list[tuple[int, int]]:
        """Give all actions, as (rank, number), in an order that keeps every wait. UsageError names a deadlock."""
        result: list[tuple[int, int]] = []
        for rank, start, stop in self.walk():
            numbers = [*self._numbers[rank], -1]
            result += [(rank, numbers[at]) for at in range(start, stop) if numbers[at] != numbers[at + 1]]
        return result

    def walk(self) -> list[tuple[int, int, int]]:
        """Give (rank, start, stop) of runs of keys that ranks do in one go, in order. UsageError names a deadlock."""
        done = bytearray(self._nothing + self._index.plan.microbatches)
        done[self._nothing :] = b"\1" * self._index.plan.microbatches
        for stage in range(self._index.plan.stages):
            for kind, count in zip((FORWARD, BACKWARD_INPUT), self._index.plan.done_of(stage), strict=True):
                start = self._index.key(stage, kind, 0)
                done[start : start + count] = b"\1" * count
        first, second, gives = self._first, self._second, self._gives
        waiting: dict[int, int] = {}  # what is not there yet -> the rank that stands still for it
        at = [0] * len(self._rows)
        ready = list(reversed(range(len(at))))
        result = []
        while ready:
            rank = ready.pop()
            row = self._rows[rank]
            start = position = at[rank]
            for position in range(start, len(row)):
                key = row[position]
                if not done[first[key]]:
                    waiting[first[key]] = rank
                    break
                if not done[second[key]]:
                    waiting[second[key]] = rank
                    break
                given = gives[key]
                done[given] = 1
                if given in waiting:
                    ready.append(waiting.pop(given))
            else:
                position = len(row)
            at[rank] = position
            result.append((rank, start, position))
        if any(position < len(row) for position, row in zip(at, self._rows, strict=True)):
            raise UsageError(self._deadlock(at, done))
        return result

    def _starts(self, stage: int, kind: ComputationType) -> tuple[int, int, int]:
        """What a stage's action of this kind needs, and gives, for micro-batch 0: keys of the others follow these."""
        key, nothing = self._index.key, self._nothing
        own = key(stage, kind, 0)
        if kind is FORWARD:
            return self._input(stage, stage - 1, FORWARD, RECV_F), nothing, own
        if kind is BACKWARD_WEIGHT:
            return key(stage, BACKWARD_INPUT, 0), nothing, own
        if kind in BACKWARDS:
            gradient = self._input(stage, stage + 1, BACKWARD_INPUT, RECV_B)
            return key(stage, FORWARD, 0), gradient, key(stage, BACKWARD_INPUT, 0)
        if kind is SEND_F or kind is SEND_B:
            return key(stage, FORWARD if kind is SEND_F else BACKWARD_INPUT, 0), nothing, own
        step, send = _PARTNERS[kind]
        return (key(stage + step, send, 0) if self._is_stage(stage + step) else nothing), nothing, own

    def _input(self, stage: int, source: int, kind: ComputationType, receive: ComputationType) -> int:
        """What brings a stage its input: it is received, or there once the other stage has computed it."""
        if not self._is_stage(source):
            return self._nothing
        if self._received and self._crosses[min(stage, source)]:
            return self._index.key(stage, receive, 0)
        return self._index.key(source, kind, 0)

    def _is_stage(self, stage: int) -> bool:
        return 0 <= stage < self._index.plan.stages

    def _expand(self, synchronous: bool) -> None:
        """Put steps in that have no action of their own."""
        size = self._waited
        for table in (self._first, self._second):
            table += table + table
        self._gives += [*range(size, 3 * size)]
        expanded = [
            self._expanded(keys, numbers, synchronous) for keys, numbers in zip(self._rows, self._numbers, strict=True)
        ]
        self._rows = [steps for steps, _ in expanded]
        self._numbers = [numbers for _, numbers in expanded]

    def _expanded(self, keys: list[int], numbers: list[int], synchronous: bool) -> tuple[list[int], list[int]]:
        """The steps of a rank, and which action each is of: what actions wait for first, then what they do."""
        steps: list[int] = []
        of: list[int] = []
        start = 0
        while start < len(keys):
            number = numbers[start]
            stop = start + 1
            while stop < len(keys) and numbers[stop] == number:
                stop += 1
            parts = keys[start:stop]
            if len(parts) > 1:
                steps += self._waits_of_all(parts)
            elif synchronous:
                steps += self._post(parts[0])
            steps += parts
            of += [number] * (len(steps) - len(of))
            start = stop
        return steps, of

    def _waits_of_all(self, parts: Sequence[int]) -> list[int]:
        given = [self._gives[key] for key in parts]
        return [key + self._waited for key in parts if self._first[key] not in given and self._second[key] not in given]

    def _post(self, key: int) -> list[int]:
        """Before a SEND or RECV: its rank has come as far. It goes on when its partner's has, too."""
        action = self._index.action(key)
        partner = _PARTNERS.get(action.computation_type)
        if partner is None:
            return []
        step, kind = partner
        if action.computation_type in (RECV_F, RECV_B):
            self._first[key + self._posted] = self._nothing
        self._first[key] = self._index.key(action.stage_index + step, kind, action.microbatch_index or 0) + self._posted
        return [key + self._posted]

    def needs(self, key: int) -> tuple[int, int]:
        """Give the two keys that an action needs; those of `Index.where` alone are given by actions."""
        return self._first[key], self._second[key]

    def given(self, key: int) -> int:
        """Give the key that an action gives."""
        return self._gives[key]

    def _deadlock(self, at: Sequence[int], done: bytearray) -> str:
        """The ranks that wait for one another, or the one that waits for what nobody does."""
        givers = {
            self._gives[key]: (rank, number)
            for rank, (row, numbers) in enumerate(zip(self._rows, self._numbers, strict=True))
            for key, number in zip(row[at[rank] :], numbers[at[rank] :], strict=True)
        }
        actions = self._index.plan.actions
        rank = next(rank for rank, row in enumerate(self._rows) if at[rank] < len(row))
        told: dict[int, str] = {}
        seen: list[int] = []
        while rank not in seen:
            seen.append(rank)
            key, number = self._rows[rank][at[rank]], self._numbers[rank][at[rank]]
            missing = next(need for need in (self._first[key], self._second[key]) if not done[need])
            here = f"rank {rank} waits at {actions[rank][number]} (action {number})"
            if missing not in givers:
                return (
                    f"this plan cannot end: {here} for {self._index.action(missing % self._waited)}, which no rank does"
                )
            other, later = givers[missing]
            told[rank] = f"{here} for {actions[other][later]} of rank {other} (action {later})"
            rank = other
        cycle = seen[seen.index(rank) :]
        return (
            f"this plan deadlocks: {'; '.join(told[rank] for rank in cycle)}. "
            f"{'It comes later on the same rank' if len(cycle) == 1 else 'Each comes behind what its rank waits at'}: "
            "order the actions so that none waits for a later one"
        )
