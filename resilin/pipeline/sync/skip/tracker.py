"""Hold stashed skip tensors until they are popped."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from resilin.core.tensor import Tensor
from resilin.pipeline.sync.skip.namespace import SkipName


class SkipTracker:
    """Hold what was stashed: one for each partition and micro-batch of a pipeline, outside one for each thread."""

    def __init__(self, stashed: Mapping[SkipName, Tensor | None] | None = None) -> None:
        self._stashed: dict[SkipName, Tensor | None] = dict(stashed or {})

    def __len__(self) -> int:
        return len(self._stashed)

    def save(self, name: SkipName, tensor: Tensor | None) -> None:
        """Keep `tensor`."""
        self._stashed[name] = tensor

    def load(self, name: SkipName) -> Tensor | None:
        """Return what was saved, and let go of it. KeyError where there is nothing."""
        return self._stashed.pop(name)


class _Current(threading.local):
    def __init__(self) -> None:
        self.tracker = SkipTracker()


_current = _Current()


def current_skip_tracker() -> SkipTracker:
    """Return the tracker that skippable layers of this thread use now."""
    return _current.tracker


@contextmanager
def use_skip_tracker(tracker: SkipTracker) -> Iterator[SkipTracker]:
    """Have layers of this thread use `tracker` inside."""
    before, _current.tracker = _current.tracker, tracker
    try:
        yield tracker
    finally:
        _current.tracker = before
