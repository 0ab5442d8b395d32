"""Loads the handwritten digits of `examples/data` with numpy alone."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

FILE = Path(__file__).resolve().parent.parent / "data" / "digits.csv.gz"
HELD_OUT = 5  # every fifth image is for testing


def load(train: bool) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Images (N, 1, 8, 8), pixels 0 to 1, and their digits (N,): 1437 for training or the 360 held out."""
    with gzip.open(FILE, "rt", encoding="ascii") as lines:
        table = np.loadtxt(lines, delimiter=",", dtype=np.float32)
    held_out = np.arange(len(table)) % HELD_OUT == 0
    part = table[~held_out if train else held_out]
    return part[:, :64].reshape(-1, 1, 8, 8) / np.float32(16), part[:, 64].astype(np.int64)
