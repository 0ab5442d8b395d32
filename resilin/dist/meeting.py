"""How ranks that know only their own number meet in a key-value store: everybody's endpoint, or who is missing.

Each rank puts a card under its number, once: who finds another's living card there says that the number is taken twice.
All wait for all cards. The first whose time is up writes the verdict, which wakes the others, so every rank names the
same missing ones. A rank leaves after all present ones have read the verdict: one of them may serve the store.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterable, Sequence

from resilin._base.clock import Deadline, spell
from resilin.dist.dial import answers
from resilin.dist.endpoint import Endpoint, check_addresses
from resilin.dist.kv.base import PrefixStore, Store
from resilin.errors import CollectiveTimeout, DistStoreError, UsageError

_PARTING_S = 1.0  # how long a rank that gives up waits for the others to have read why
_VERDICT = "verdict"
_ABSENT = b"{}"  # the card that a verdict puts for a missing rank


def place_of(store: Store, name: str) -> PrefixStore:
    """The part of `store` where a group called `name` meets: the first where no meeting has failed."""
    attempt = 0
    while (place := PrefixStore(f"{name}/{attempt}", store)).check([_VERDICT]):
        attempt += 1
    return place


def exchange(place: Store, mine: str, rank: int, world_size: int, deadline: Deadline) -> list[str]:
    """Everybody's endpoint, in rank order; `mine` is this rank's own.

    Raises: CollectiveTimeout naming the ranks that never came, the same on all ranks that did; UsageError when another
    living process has this rank, and on all ranks when one gave others an address that they cannot reach;
    DistStoreError when the store fails.
    """
    cards = [f"card/{peer}" for peer in range(world_size)]
    _take(place, cards[rank], mine, rank, world_size)
    try:
        place.wait(cards, deadline.left())
    except DistStoreError:
        if not deadline.passed():
            raise
        _judge(place, cards, deadline.seconds or 0.0)
    if place.check([_VERDICT]):
        verdict = json.loads(place.get(_VERDICT))
        missing = verdict["missing"]
        _part(place, rank, [peer for peer in range(world_size) if peer not in missing])
        raise CollectiveTimeout(f"init_process_group, rank {rank} of {world_size}: {verdict['why']}", missing)
    endpoints = [json.loads(value)["endpoint"] for value in place.multi_get(cards)]
    try:
        check_addresses(endpoints)
    except UsageError as error:
        _part(place, rank, range(world_size))
        raise UsageError(f"init_process_group, rank {rank} of {world_size}: {error}") from None
    return endpoints


def _take(place: Store, card: str, mine: str, rank: int, world_size: int) -> None:
    """Put this rank's card. One whose process does not answer any more is replaced."""
    who = f"host {socket.gethostname()}, pid {os.getpid()}"
    body = json.dumps({"who": who, "endpoint": mine}).encode()
    there = place.compare_set(card, "", body)
    if there in (body, _ABSENT):
        return
    other = json.loads(there)
    if answers(Endpoint.parse(other["endpoint"]), Endpoint.parse(mine)):
        twice = f"rank {rank} is taken twice: by {other['who']} and by {who}"
        place.set(f"twice/{rank}", twice)
        raise UsageError(
            f"init_process_group, rank {rank} of {world_size}: {twice}; give every process a rank of its own"
        )
    place.set(card, body)


def _judge(place: Store, cards: Sequence[str], waited_s: float) -> None:
    """Settle who is missing, unless somebody has, and wake those who wait for them."""
    missing = [peer for peer, card in enumerate(cards) if not place.check([card])]
    if not missing:
        return
    notes = [place.get(key).decode() for peer in range(len(cards)) if place.check([key := f"twice/{peer}"])]
    notes += filter(None, [place.refusals()])
    names = ", ".join(f"rank {peer}" for peer in missing)
    advice = "was every rank started, with the same world size and address?"
    why = "; ".join([f"{names} missing after {spell(waited_s)}", *notes, advice])
    place.compare_set(_VERDICT, "", json.dumps({"missing": missing, "why": why}))
    for peer in json.loads(place.get(_VERDICT))["missing"]:
        place.compare_set(cards[peer], "", _ABSENT)  # ends the others' wait


def _part(place: Store, rank: int, present: Iterable[int]) -> None:
    with contextlib.suppress(DistStoreError):  # a store that is gone was served by one that has seen all leave
        place.set(f"left/{rank}", "")
        place.wait([f"left/{peer}" for peer in present], _PARTING_S)
