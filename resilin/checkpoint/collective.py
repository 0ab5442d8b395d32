"""The ranks that save or load together: what one of them finds wrong, all raise."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import resilin.distributed as dist
from resilin.distributed.agreement.exchange import gather_objects, on_all_ranks
from resilin.distributed.group import default_group
from resilin.distributed.group.process_group import ProcessGroup
from resilin.errors import CollectiveMismatch, UsageError

T = TypeVar("T")


class Ranks:
    """The members of a group, or this process alone. Every method but the properties is called by all of them."""

    def __init__(self, group: ProcessGroup | None) -> None:
        self.group = group
        self.rank = 0 if group is None else group.rank()
        self.size = 1 if group is None else group.size()

    @staticmethod
    def of(group: Any) -> Ranks:
        """Those of `group`; None: of the default group where there is one. UsageError for a rank outside the group."""
        if group is None and not dist.is_initialized():
            return Ranks(None)
        found = default_group.resolve(group, "checkpoint")
        if found is None:
            raise UsageError("checkpoint: this rank is no member of the group; only its members call this")
        return Ranks(found)

    def exchange(self, what: str, value: Any) -> list[Any]:
        """Every rank's `value`, by rank: plain values and containers. Raises what collectives raise.

        what: the function that was called, which is compared.
        """
        return [value] if self.group is None else gather_objects(what, value, self.group)

    def together(
        self, what: str, work: Callable[[], T], give: Callable[[T], Any] = lambda result: None
    ) -> tuple[T, list[Any]]:
        """Do `work` on every rank, then exchange `give(result)`: this rank's result, and what each rank gives.

        A rank whose work raises, raises that; the others an error of the same class that names it. When a rank is to
        end, by sys.exit or Ctrl-C, the group is aborted: it waits for nobody any more.
        """
        return on_all_ranks(self.group, what, work, give)

    def of_first(self, what: str, work: Callable[[], Any]) -> Any:
        """What `work` gives on rank 0, which alone does it; plain values and containers. Errors as of `together`."""
        return self.together(what, lambda: work() if self.rank == 0 else None, lambda given: given)[1][0]

    def agree(self, what: str, facts: Mapping[str, Any]) -> None:
        """CollectiveMismatch, which shows both sides, on all ranks unless all give equal `facts` (JSON each)."""
        texts = {name: json.dumps(fact, sort_keys=True) for name, fact in facts.items()}
        if self.size == 1:
            return
        said = self.exchange(what, {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()})
        for name in texts:
            other = next((rank for rank, one in enumerate(said) if one.get(name) != said[0].get(name)), None)
            if other is not None:
                sides = self.exchange(what, texts[name] if self.rank in (0, other) else None)
                raise CollectiveMismatch(
                    f"{what}, rank {self.rank} of {self.size}: all ranks must give the same {name}; "
                    f"{_difference(json.loads(sides[0]), json.loads(sides[other]), other)}"
                )


def _difference(first: Any, other: Any, rank: int, where: str = "") -> str:
    """Where two JSON values differ first, in words."""
    if isinstance(first, dict) and isinstance(other, dict) and first.keys() == other.keys():
        for key in first:
            if first[key] != other[key]:
                return _difference(first[key], other[key], rank, f"{where}[{key!r}]")
    if isinstance(first, list) and isinstance(other, list) and len(first) == len(other):
        for index, (one, two) in enumerate(zip(first, other, strict=True)):
            if one != two:
                return _difference(one, two, rank, f"{where}[{index}]")
    if isinstance(first, dict) and isinstance(other, dict):
        only = [sorted(a.keys() - b.keys())[:5] for a, b in ((first, other), (other, first))]
        return f"{where or 'it'} has {only[0]} on rank 0 only, {only[1]} on rank {rank} only"
    return f"{where or 'it'} is {_short(first)} on rank 0 and {_short(other)} on rank {rank}"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 200 else f"{text[:200]}..."
