"""Names functions of Python as traces do: by their file as an import finds it, "training/loop.py(12): step"."""

from __future__ import annotations

import os
from collections.abc import Iterable

from resilin._base.trace import SpanKind
from resilin._base.trace_ring import Span


def shorten(spans: Iterable[Span], folders: Iterable[str]) -> None:
    """Leave out, in the names of functions among `spans`, the longest of `folders` that a file lies in."""
    beginnings = sorted({folder.rstrip(os.sep) + os.sep for folder in folders if folder}, key=len, reverse=True)
    known: dict[str, str] = {}
    for span in spans:
        if span.kind is SpanKind.PYTHON:
            short = known.get(span.name)
            if short is None:
                beginning = next((one for one in beginnings if span.name.startswith(one)), "")
                short = known[span.name] = span.name[len(beginning) :]
            span.name = short
