"""Parameters of which this rank has a piece, and other ranks the rest, as zero.shard makes them.

A piece is a tensor whose class has `is_piece = True`, and `drop_accumulated()`: forget the gradient that the whole
parameter has on this rank. What needs whole gradients refuses pieces.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from resilin.errors import UsageError


def is_piece(tensor: Any) -> bool:
    """Whether other ranks have the rest of it."""
    return getattr(tensor, "is_piece", False)


def refuse(where: str, named: Iterable[tuple[Any, Any]], why: str) -> None:
    """UsageError, with `why` and what to do, when one of the tensors is a piece. named: with their names or numbers."""
    for name, tensor in named:
        if is_piece(tensor):
            what = (
                f"parameter {name} is a piece of one" if isinstance(name, int) else f"{name} is a piece of a parameter"
            )
            raise UsageError(f"{where}: {what} that zero.shard has divided among the ranks, {why}")


def refuse_divided(where: str, named: Iterable[tuple[Any, Any]], why: str) -> None:
    """UsageError, with `why` and what to do, when one of the tensors has a gradient on some ranks only.

    Such are those of an ElasticPipeline's stages: their attribute `divided` is set.
    """
    for name, tensor in named:
        if hasattr(tensor, "divided"):
            raise UsageError(f"{where}: parameter {name} is of an ElasticPipeline, whose ranks have some stages, {why}")
