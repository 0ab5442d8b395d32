"""Passes of a DataLoader over images or tokens made from arrays in memory."""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np

from benchmarks.library import Library

SIDE, CROP, CLASSES = 256, 224, 10
WINDOW, VOCABULARY = 256, 50257
STRIDE = 4  # rows of an image between two reads: 4 * 224 * 3 bytes, so that each page of a batch is read


class Images:
    """Random crops, half of them mirrored, of 64 images in memory; sample i is the same in each pass."""

    batch_size = 64

    def __init__(self, batches: int) -> None:
        self.length = batches * self.batch_size
        self.source = np.random.default_rng(0).integers(0, 256, (64, SIDE, SIDE, 3), dtype=np.uint8)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[np.ndarray[Any, Any], int]:
        draws = np.random.default_rng(index)
        top, left = draws.integers(0, SIDE - CROP, 2)
        image = self.source[index % len(self.source), top : top + CROP, left : left + CROP]
        if draws.random() < 0.5:
            image = image[:, ::-1]
        return image.copy(), index % CLASSES


class Tokens:
    """Windows of a long array of 16-bit tokens, as 64-bit inputs and targets."""

    batch_size = 32

    def __init__(self, batches: int) -> None:
        self.length = batches * self.batch_size
        self.source = np.random.default_rng(0).integers(0, VOCABULARY, self.length * 16 + WINDOW + 1, dtype=np.uint16)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        window = self.source[index * 16 : index * 16 + WINDOW + 1].astype(np.int64)
        return window[:-1], window[1:]


SETS = {"images": Images, "tokens": Tokens}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to load and how."""
    parser.add_argument("--set", choices=sorted(SETS), required=True)
    parser.add_argument("--batches", type=int, required=True, help="per pass")
    parser.add_argument("--passes", type=int, default=3, help="measured ones, after one for warm-up")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--threads", action="store_true", help="workers are threads (resilin only)")


def run(library: Library, args: argparse.Namespace) -> dict[str, Any]:
    """Seconds from `iter()` to the first batch, and to the end of the pass, for each pass."""
    dataset = SETS[args.set](args.batches)
    options: dict[str, Any] = {"worker_method": "thread"} if args.threads else {}
    loader = library.data.DataLoader(
        dataset, batch_size=dataset.batch_size, shuffle=True, num_workers=args.workers, **options
    )
    expected = sum(_sum(dataset[index][0]) for index in range(len(dataset)))
    first, whole = [], []
    for number in range(args.passes + 1):
        begin = time.perf_counter()
        started, total = 0.0, 0
        for inputs, _ in loader:
            started = started or time.perf_counter() - begin
            total += _sum(inputs.numpy())
        ended = time.perf_counter() - begin
        if total != expected:
            raise SystemExit(f"a pass over {args.set} summed to {total}, expected {expected}")
        if number:
            first.append(started)
            whole.append(ended)
    return {"first_s": first, "pass_s": whole}


def _sum(array: np.ndarray[Any, Any]) -> int:
    """Of some values of each page of a batch, or of one sample: what a consumer reads at least."""
    return int(array[..., ::STRIDE, 0, 0].sum(dtype=np.int64) if array.ndim > 2 else array[..., 0].sum())
