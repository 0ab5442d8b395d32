"""Let ranks that know only their own number meet in a key-value store: everybody's endpoint, or who is missing.

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
from typing import Any

from resilin._base import json_text
from resilin._base.clock import Deadline, spell
from resilin.distributed.connections.connect import answers
from resilin.distributed.connections.listener import Endpoint, check_addresses
from resilin.distributed.stores.base import PrefixStore, Store
from resilin.errors import CollectiveMismatch, CollectiveTimeout, DistError, DistStoreError, UsageError

_PARTING_S = 1.0  # how long a rank that gives up waits for the others to have read why
_LOOK_S = 2.0  # how long it looks for those that came and died
_FIRST = "first"  # who came first, and the world size that it was given
_VERDICT = "verdict"
_MOST_RANKS = 1 << 24  # that a group can have
_ABSENT = b"{}"  # the card that a verdict puts for a missing rank


def place_of(store: Store, name: str) -> PrefixStore:
    """The part of `store` where a group called `name` meets: the first where no meeting has failed."""
    attempt = 0
    while (place := PrefixStore(f"{name}/{attempt}", store)).check([_VERDICT]):
        attempt += 1
    return place


def exchange(place: Store, mine: str, rank: int, world_size: int, deadline: Deadline) -> list[str]:
    """Everybody's endpoint, in rank order; `mine` is this rank's own.

    Raises: CollectiveTimeout naming the ranks that never came, the same on all ranks that did; CollectiveMismatch, on
    all of them, when two were given different world sizes; UsageError when another living process has this rank, and on
    all ranks when one gave others an address that they cannot reach; DistStoreError when the store fails.
    """
    cards = [f"card/{peer}" for peer in range(world_size)]
    _compare_sizes(place, rank, world_size)
    _take(place, cards[rank], mine, rank, world_size)
    try:
        place.wait(cards, deadline.left())
    except DistStoreError:
        if not deadline.passed():
            raise
        _judge(place, cards, Endpoint.parse(mine), deadline.seconds or 0.0)
    if place.check([_VERDICT]):
        verdict = _verdict(place)
        missing, why = verdict["missing"], f"init_process_group, rank {rank} of {world_size}: {verdict['why']}"
        _part(place, rank, [peer for peer in range(world_size) if peer not in missing])
        if verdict["kind"] == CollectiveMismatch.__name__:
            raise CollectiveMismatch(why)
        raise CollectiveTimeout(why, missing)
    endpoints = [
        _told(card, text, endpoint=str)["endpoint"] for card, text in zip(cards, place.multi_get(cards), strict=True)
    ]
    try:
        check_addresses(endpoints)
    except UsageError as error:
        _part(place, rank, range(world_size))
        raise UsageError(f"init_process_group, rank {rank} of {world_size}: {error}") from None
    return endpoints


def _compare_sizes(place: Store, rank: int, world_size: int) -> None:
    """CollectiveMismatch, here and for those who wait, unless whoever came first was given this world size."""
    mine = json.dumps({"rank": rank, "size": world_size}).encode()
    first = _told(_FIRST, place.compare_set(_FIRST, "", mine), rank=int, size=int)
    if not 0 < first["size"] < _MOST_RANKS:
        raise _garbage(_FIRST, first)
    if first["size"] == world_size:
        return
    why = (
        f"ranks disagree on the world size: rank {first['rank']} was given {first['size']}, rank {rank} "
        f"{world_size}; start every rank with the same"
    )
    everybody = range(max(first["size"], world_size))
    missing = [peer for peer in everybody if not place.check([f"card/{peer}"])]
    _tell(place, CollectiveMismatch, why, missing)
    _part(place, rank, [peer for peer in everybody if peer not in missing])
    raise CollectiveMismatch(f"init_process_group, rank {rank} of {world_size}: {why}")


def _take(place: Store, card: str, mine: str, rank: int, world_size: int) -> None:
    """Put this rank's card. One whose process does not answer any more is replaced."""
    who = f"host {socket.gethostname()}, pid {os.getpid()}"
    body = json.dumps({"who": who, "endpoint": mine}).encode()
    there = place.compare_set(card, "", body)
    if there in (body, _ABSENT):
        return
    other = _told(card, there, who=str, endpoint=str)
    if answers(Endpoint.parse(other["endpoint"]), Endpoint.parse(mine)):
        twice = f"rank {rank} is taken twice: by {other['who']} and by {who}"
        place.set(f"twice/{rank}", twice)
        raise UsageError(
            f"init_process_group, rank {rank} of {world_size}: {twice}; give every process a rank of its own"
        )
    place.set(card, body)


def _judge(place: Store, cards: Sequence[str], me: Endpoint, waited_s: float) -> None:
    """Settle who is missing, unless somebody has, and wake those who wait for them. Who came and died is missing, too;
    sooner it was not, because another process might have taken its place."""
    missing = [peer for peer, card in enumerate(cards) if not place.check([card])]
    if not missing:
        return
    gone = _gone(place, [card for peer, card in enumerate(cards) if peer not in missing], me)
    notes = [f"{card.replace('card/', 'rank ')} came and is gone" for card in gone]
    notes += [place.get(key).decode() for peer in range(len(cards)) if place.check([key := f"twice/{peer}"])]
    notes += filter(None, [place.refusals()])
    names = ", ".join(f"rank {peer}" for peer in missing)
    advice = "was every rank started, with the same world size and address?"
    why = "; ".join([f"{names} missing after {spell(waited_s)}", *notes, advice])
    _tell(place, CollectiveTimeout, why, [peer for peer, card in enumerate(cards) if peer in missing or card in gone])


def _gone(place: Store, cards: Sequence[str], me: Endpoint) -> list[str]:
    """Of cards that are there, those whose process does not answer any more, as far as can be seen in a while."""
    gone, deadline = [], Deadline(_LOOK_S)
    for card in cards:
        endpoint = _told(card, place.get(card)).get("endpoint")
        if deadline.passed():
            break
        if isinstance(endpoint, str) and not answers(Endpoint.parse(endpoint), me):
            gone.append(card)
    return gone


def _tell(place: Store, kind: type[DistError], why: str, missing: Sequence[int]) -> None:
    """Settle what all raise, unless somebody has, and end the others' wait for those who are missing."""
    place.compare_set(_VERDICT, "", json.dumps({"kind": kind.__name__, "why": why, "missing": missing}))
    for peer in _verdict(place)["missing"]:
        place.compare_set(f"card/{peer}", "", _ABSENT)


def _verdict(place: Store) -> dict[str, Any]:
    found = _told(_VERDICT, place.get(_VERDICT), kind=str, why=str, missing=list)
    if not all(type(peer) is int and 0 <= peer < _MOST_RANKS for peer in found["missing"]):
        raise _garbage(_VERDICT, found)
    return found


def _told(key: str, value: bytes, **fields: type) -> dict[str, Any]:
    """What a rank has put under `key`: an object with `fields` of these types. DistStoreError for anything else."""
    try:
        found = json_text.parse(value, finite=True)
    except ValueError:
        raise _garbage(key, value) from None
    if not isinstance(found, dict) or not all(type(found.get(name)) is kind for name, kind in fields.items()):
        raise _garbage(key, value)
    return found


def _garbage(key: str, value: object) -> DistStoreError:
    return DistStoreError(
        f"init_process_group: {key!r} in the store holds {str(value)[:80]}, expected what this version of resilin "
        "writes there: do all ranks run it, and does nothing else use this store?"
    )


def _part(place: Store, rank: int, present: Iterable[int]) -> None:
    with contextlib.suppress(DistStoreError):  # a store that is gone was served by one that has seen all leave
        place.set(f"left/{rank}", "")
        place.wait([f"left/{peer}" for peer in present], _PARTING_S)
