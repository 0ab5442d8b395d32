"""Why a group ended: copies of errors, and how one rank tells the others."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence

from resilin._base import json_text
from resilin.errors import CollectiveTimeout, GroupAborted, PeerLost

_ABORTED = re.compile(r"rank -?\d+ aborted the group: ")
_WHERE = re.compile(r"\((?:on|seen by) rank \d+\)$")


def in_world(ranks: Iterable[int], members: Sequence[int]) -> frozenset[int]:
    """`ranks` of a group as ranks in the world; what a peer made up is left out."""
    return frozenset(members[rank] for rank in ranks if 0 <= rank < len(members))


def copy_error(error: BaseException) -> BaseException:
    """A fresh exception of the same type and data, without traceback; works for any constructor's signature."""
    clone = type(error).__new__(type(error), *error.args)
    clone.args = error.args
    clone.__dict__.update(error.__dict__)
    return clone


def prefixed(error: BaseException, what: str) -> BaseException:
    """A copy of `error` whose message begins with what was under way."""
    clone = copy_error(error)
    clone.args = (f"{what}: {error}", *error.args[1:])
    return clone


def encode_reason(error: BaseException, rank: int) -> str:
    """JSON of why `rank` aborts, for an ABORT frame."""
    ranks = sorted(error.ranks) if isinstance(error, PeerLost | CollectiveTimeout) else [rank]
    return json.dumps({"kind": type(error).__name__, "ranks": ranks, "text": str(error)[:4000]})


def _seen(said: str, where: str) -> str:
    """`said` with where it was seen, unless a rank that passed it on has said that."""
    return said if _WHERE.search(said) else f"{said} ({where})"


def decode_reason(text: str, rank: int) -> BaseException:
    """The error that `rank` sent as `text`; GroupAborted for what is no reason of this library."""
    try:
        reason = json_text.parse(text, finite=True)
        kind, ranks, said = str(reason["kind"]), [int(r) for r in reason["ranks"]], str(reason["text"])
    except (ValueError, KeyError, TypeError):
        kind, ranks, said = "", [], text
    if kind == "PeerLost":
        return PeerLost(_seen(said, f"seen by rank {rank}"), ranks)
    if kind == "CollectiveTimeout" and ranks:  # else that rank gave up without knowing whom it waited for
        return CollectiveTimeout(_seen(said, f"on rank {rank}"), ranks)
    if kind == "GroupAborted" and _ABORTED.match(said):  # passed on: it names whose abort it was
        return GroupAborted(said)
    return GroupAborted(f"rank {rank} aborted the group: {kind}: {said}")
