"""Writes the termination message: the file that a kubelet reads when a container has ended, at most 4096 bytes."""

from __future__ import annotations

import os
from pathlib import Path

from resilin._base.text import indented, visible
from resilin.elastic.agent.config import Outcome

MOST_BYTES = 4096
"""What kubelets take of one container."""


def text(outcome: Outcome) -> str:
    """Return how the node ended: what the closing report says first, then as many of its details as fit."""
    if outcome.failure is None:
        lines = [f"elastic-run: {visible(outcome.reason)}"]
    else:
        lines = [f"elastic-run: {outcome.title}: {visible(outcome.failure.sentence)}"]
        lines += [f"  {indented(line)}" for line in outcome.failure.details()]
    data = "\n".join(lines).encode()
    return data[:MOST_BYTES].decode("utf-8", "ignore") + ("\n" if len(data) < MOST_BYTES else "")


def write(path: Path, outcome: Outcome) -> str | None:
    """Write it over what is there, without making another file: it is a mount. A line about it if that failed."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOCTTY, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text(outcome))
    except OSError as error:
        return f"the termination message is not written: {path}: {error.strerror or error}"
    return None
