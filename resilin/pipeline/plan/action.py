"""What a rank does next in a pipeline: one stage, one kind of work, one micro-batch. Pure.

Its text is PyTorch's: `2F0` is the forward of stage 2 on micro-batch 0, `1SEND_B3` sends the input gradients of stage 1
and micro-batch 3 away, `(0F4;7B1)OVERLAP_F_B` does both of them as one action.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import NamedTuple

from resilin.errors import UsageError


class ComputationType(StrEnum):
    """What an action does; the values stand in its text."""

    FORWARD = "F"
    BACKWARD_INPUT = "I"  # gradients of the stage's inputs alone
    BACKWARD_WEIGHT = "W"  # gradients of its weights, after I
    UNSHARD = "UNSHARD"
    RESHARD = "RESHARD"
    SEND_F = "SEND_F"
    RECV_F = "RECV_F"
    SEND_B = "SEND_B"
    RECV_B = "RECV_B"
    FULL_BACKWARD = "B"  # I and W at once
    OVERLAP_F_B = "OVERLAP_F_B"  # a forward and a backward as one action, in `sub_actions`
    REDUCE_GRAD = "REDUCE_GRAD"  # a stage's gradients are complete

    __hash__ = str.__hash__  # Enum's own is slow, and plans have tens of thousands of these

    @staticmethod
    def from_str(action: str) -> ComputationType:
        """Give the type that is written `action`. UsageError when there is none."""
        try:
            return ComputationType(action)
        except ValueError:
            raise UsageError(f"Invalid computation type {action}") from None


FORWARD = ComputationType.FORWARD
BACKWARD_INPUT = ComputationType.BACKWARD_INPUT
BACKWARD_WEIGHT = ComputationType.BACKWARD_WEIGHT
UNSHARD = ComputationType.UNSHARD
RESHARD = ComputationType.RESHARD
SEND_F = ComputationType.SEND_F
RECV_F = ComputationType.RECV_F
SEND_B = ComputationType.SEND_B
RECV_B = ComputationType.RECV_B
FULL_BACKWARD = ComputationType.FULL_BACKWARD
OVERLAP_F_B = ComputationType.OVERLAP_F_B
REDUCE_GRAD = ComputationType.REDUCE_GRAD

COMPUTATIONS = frozenset({FORWARD, FULL_BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, OVERLAP_F_B})
COMMUNICATIONS = frozenset({SEND_F, RECV_F, SEND_B, RECV_B})
BACKWARDS = frozenset({FULL_BACKWARD, BACKWARD_INPUT})  # what gives gradients to the stage before

_TEXT = re.compile(r"([0-9]{1,9})(F|I|B|W|UNSHARD|RESHARD|REDUCE_GRAD|SEND_F|RECV_F|SEND_B|RECV_B)([0-9]{0,9})")


class Action(NamedTuple):
    """One action of a plan. With `sub_actions`, these are what is done, and `stage_index` is -1."""

    stage_index: int
    computation_type: ComputationType
    microbatch_index: int | None = None
    sub_actions: tuple[Action, ...] | None = None

    def __str__(self) -> str:
        return repr(self)

    def __repr__(self) -> str:
        if self.sub_actions is not None:
            return f"({';'.join(map(repr, self.sub_actions))}){self.computation_type.value}"
        number = "" if self.microbatch_index is None else self.microbatch_index
        return f"{self.stage_index}{self.computation_type.value}{number}"

    @property
    def is_compute_op(self) -> bool:
        """Whether it computes, rather than sends, receives or prepares."""
        return self.computation_type in COMPUTATIONS

    @property
    def parts(self) -> tuple[Action, ...]:
        """What is done, in order: the action itself, or its sub-actions."""
        return (self,) if self.sub_actions is None else self.sub_actions

    @staticmethod
    def from_str(action_string: str) -> Action | None:
        """Give the action that is written so; None for an empty string. UsageError for any other text."""
        text = action_string.strip()
        if not text:
            return None
        if text.startswith("(") and ")" in text:
            inside, _, kind = text[1:].partition(")")
            parts = tuple(part for part in map(Action.from_str, inside.split(";")) if part is not None)
            return Action(-1, ComputationType.from_str(kind), None, parts or None)
        match = _TEXT.fullmatch(text)
        if match is None:
            raise UsageError(
                f"Invalid action string: {action_string}, should be formatted as "
                "[stage][action type][(microbatch)] e.g. 2F0"
            )
        stage, kind, number = match.groups()
        return Action(int(stage), ComputationType(kind), int(number) if number else None)


def computations(actions: Iterable[Action | None]) -> Iterator[Action]:
    """Give what is computed, in order: sub-actions one by one, without communication and idle slots."""
    for action in actions:
        if action is not None and action.computation_type in COMPUTATIONS:
            yield from action.parts
