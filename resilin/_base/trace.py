"""The hook that profilers listen to: code marks spans, `set_sink` says where they go. Free when nobody listens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from resilin._base.clock import SYSTEM

Sink = Callable[[str, float, float], None]  # name, start and end in monotonic seconds

_sink: Sink | None = None


def set_sink(sink: Sink | None) -> None:
    """Send every finished span to `sink(name, start_s, end_s)`; None stops."""
    global _sink
    _sink = sink


@contextmanager
def span(name: str) -> Iterator[None]:
    """Mark the enclosed block as a span called `name`."""
    if _sink is None:
        yield
        return
    start = SYSTEM.monotonic()
    try:
        yield
    finally:
        if _sink is not None:
            _sink(name, start, SYSTEM.monotonic())
