"""Select streams of ranks, as torchrun's flags say it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from resilin.elastic.agent.console import Name
from resilin.errors import UsageError

_BIT: dict[Name, int] = {"stdout": 1, "stderr": 2}


@dataclass(frozen=True, kw_only=True)
class StreamSelection:
    """Hold what the user asked for, as torchrun's flags have it: 0 none, 1 stdout, 2 stderr, 3 both."""

    default: int = 0
    by_rank: Mapping[int, int] = field(default_factory=dict)
    """By local or global rank (`Plan.global_ranks`); overrides `default`."""

    @classmethod
    def parse(cls, text: str, flag: str) -> StreamSelection:
        """From "3" or "0:1,1:3"; UsageError names `flag`."""
        try:
            if ":" not in text:
                choice = cls(default=int(text))
            else:
                pairs = [part.split(":") for part in text.split(",")]
                choice = cls(by_rank={int(rank): int(value) for rank, value in pairs})
        except ValueError:
            choice = cls(default=-1)
        if not all(0 <= value <= 3 for value in (choice.default, *choice.by_rank.values())):
            raise UsageError(f"{flag}: expected 0, 1, 2, 3 or a map like 0:1,1:3, got {text!r}")
        return choice

    def has(self, rank: int, name: Name) -> bool:
        """Return whether stream `name` of `rank` is chosen."""
        return bool(self.by_rank.get(rank, self.default) & _BIT[name])
