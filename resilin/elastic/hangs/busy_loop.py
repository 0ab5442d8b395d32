"""Tell a worker that runs in a circle from one that computes, as far as that shows from outside. Pure.

A circle without an end: whenever somebody looks, the main thread is at the same lines, all the way up to the innermost
frame, which may go to and fro between two (`while` and what it repeats); nothing is read or written, and no memory is
touched for the first time. Work that takes long calls now this, now that. One call into C that computes for minutes
looks like a circle: it has to be announced (`elastic.long_pause`). A main thread that sleeps at one line, with others
that do no more than say that they live, is no better than one that runs in a circle there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from resilin._base import stacks

LOOKS = 3  # in a row; each comes after twice the silence of the one before
SAMPLES = 5  # of the stack, at each look


class BusyLoop:
    """Record what was seen of one worker since its last progress."""

    def __init__(self) -> None:
        self._around: tuple[str, ...] = ()  # all frames but the innermost
        self._lines: set[str] = set()  # where the innermost was found
        self._looks = 0

    @property
    def closed(self) -> bool:
        """Return whether it has been seen in the same circle often enough."""
        return self._looks >= LOOKS

    def seen(self, samples: Sequence[str], *, quiet: bool) -> None:
        """Take in one look. samples: what faulthandler wrote, each time it was asked; "" for no answer.

        quiet: it used a processor for nothing that shows: see `looking.is_quiet`.
        """
        frames = [stacks.frames_of(text) for text in samples]
        around = {tuple(each[1:]) for each in frames}
        if not quiet or len(frames) < SAMPLES or not all(frames) or len(around) != 1:
            self._looks = 0
            return
        (where,) = around
        lines = {each[0] for each in frames}
        same = where == self._around and _is_small(self._lines | lines)
        self._lines = self._lines | lines if same else lines
        self._looks = self._looks + 1 if same and self._looks else int(_is_small(lines))
        self._around = where


def _is_small(lines: set[str]) -> bool:
    """Whether these are at most two lines of one function."""
    return len(lines) <= 2 and len({re.sub(r"line \d+", "", line) for line in lines}) == 1
