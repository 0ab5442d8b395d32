"""A running job as people ask for it: found by its store's address or through an agent of this machine."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import unquote

from resilin._base import secret as job_secret
from resilin.elastic import records
from resilin.elastic.agent import stragglers
from resilin.elastic.agent.stragglers import Slow
from resilin.elastic.records import Closed, Generation, Live, Node, Wanted
from resilin.errors import RendezvousError, StoreRefused, UsageError
from resilin.launcher import local
from resilin.store.base import KeyValue, Lease, Store
from resilin.store.connect import connect, url_of, without_password
from resilin.store.journal import holds_store

TIMEOUT_S = 5.0


class Access(Protocol):
    """What both ways to a job's store can do."""

    name: str
    alone: bool
    """Whether no other node can ever come to the job."""

    def range(self, prefix: str) -> list[KeyValue]:
        """The entries whose keys begin with `prefix`."""
        ...

    def compare_and_put(self, key: str, revision: int, value: bytes) -> bool:
        """Write `value` if the entry is still that of `revision` (0: none); whether it was."""
        ...

    def hold(self, key: str) -> None:
        """Have `key` there until `close`."""

    def close(self) -> None:
        """Use it no more."""


class _Remote:
    """A store that this process is a client of."""

    def __init__(self, url: str, secret: str | None) -> None:
        self.name, self.alone = without_password(url), False
        self._store: Store = connect(url, secret, TIMEOUT_S, administers=True)
        self._leases: list[Lease] = []

    def range(self, prefix: str) -> list[KeyValue]:
        return self._store.range(prefix)[0]

    def compare_and_put(self, key: str, revision: int, value: bytes) -> bool:
        return self._store.compare_and_put(key, revision, value)[0]

    def hold(self, key: str) -> None:
        self._leases.append(local.hold(self._store, key))

    def close(self) -> None:
        for lease in self._leases:
            lease.revoke()
        self._store.close()


@dataclass(frozen=True, kw_only=True)
class Job:
    """What stands in the store of a job."""

    name: str
    nodes: tuple[Node, ...]
    """Oldest first."""
    leader: str
    """The id of the node that leads; empty: none does just now."""
    generation: Generation | None
    closed: Closed | None
    wanted: Wanted
    wanted_revision: int
    live: dict[str, Live] = field(default_factory=dict)
    """By node id: of those that were watched a moment ago."""
    slow: tuple[Slow, ...] = ()
    """Ranks that the others wait for, as the leader found when it last looked."""

    @property
    def size(self) -> tuple[int, int]:
        """The least and the most nodes: as people asked for, else as the flags of the oldest node say."""
        low, high = self.wanted.min_nodes, self.wanted.max_nodes
        return (low or self.nodes[0].min_nodes, high or self.nodes[0].max_nodes)


def add_arguments(parser: argparse.ArgumentParser, *, optional: bool = True) -> None:
    """Declare the options that say which job is meant. `optional`: its name may be left out."""
    if optional:
        what = "the job's name (--rdzv-id); may be left out when one job runs here"
        parser.add_argument("job", nargs="?", default="", help=what)
    else:
        parser.add_argument("job", help="the job's name (--rdzv-id)")
    parser.add_argument(
        "--endpoint",
        metavar="URL",
        help="its store: embedded://host:port (or just host:port, an IPv6 address in brackets), etcd://host:port or "
        "file:///folder; default: ask an elastic-run of this machine and this user",
    )
    parser.add_argument("--secret-file", metavar="FILE", help="holds the job's secret (default: RESILIN_SECRET)")


@contextmanager
def opened(args: argparse.Namespace) -> Iterator[tuple[Access, str]]:
    """The way to the job that `args` name, and its name. RendezvousError: no such job here."""
    if args.endpoint and not args.job:
        raise UsageError("--endpoint: expected the job's name, too")
    access: Access
    if args.endpoint:
        url = url_of(args.endpoint)
        secret = job_secret.given(args.secret_file or None) or None
        _refuse_empty_folder(url)
        access, name = _Remote(url, secret), args.job
    else:
        found = _here(args.job)
        access, name = found, found.job
    try:
        yield access, name
    finally:
        access.close()


def _refuse_empty_folder(url: str) -> None:
    """To ask is not to make a store: a client of a folder would."""
    scheme, _, folder = url.partition("://")
    if scheme == "file" and not holds_store(unquote(folder)):
        raise RendezvousError(f"no store lies in {folder}: expected the folder that the job's nodes share")


def _here(name: str) -> local.AgentClient:
    """An agent of this machine that takes part in the job; of the only job when it has no name."""
    found: dict[str, local.AgentClient] = {}
    for agent in local.agents():
        if agent.job in found or (name and agent.job != name):
            agent.close()
        else:
            found[agent.job] = agent
    if len(found) == 1:
        return found.popitem()[1]
    names = sorted(found)
    for agent in found.values():
        agent.close()
    if names:
        raise UsageError(f"several jobs run here, say which one: {', '.join(names)}")
    what = f"job {name!r}" if name else "job"
    raise RendezvousError(
        f"no {what} of this user has a node on this machine; ask on one of its nodes, or name its store: --endpoint URL"
    )


def read(access: Access, name: str) -> Job:
    """The job as it is now. RendezvousError when no node of it is there."""
    keys = records.Keys(name)
    entries = access.range(keys.job)
    found = sorted((kv for kv in entries if kv.key.startswith(keys.nodes)), key=lambda kv: kv.create_revision)
    if not found:
        raise RendezvousError(f"no node of a job {name!r} is registered at {access.name}")
    named = {kv.key: kv for kv in entries}
    current, closed, wanted, leader = map(named.get, (keys.generation, keys.closed, keys.wanted, keys.leader))
    generation = records.generation(current.key, current.value) if current else None
    number = generation.number if generation is not None else 0
    slow = [stragglers.from_json(kv.key, kv.value, number) for kv in _beside(access, stragglers.slow_prefix(name))]
    return Job(
        name=name,
        nodes=tuple(records.node(kv.key, kv.value) for kv in found),
        leader=leader.value.decode("utf-8", "replace") if leader else "",
        generation=generation,
        closed=records.closed(closed.key, closed.value) if closed else None,
        wanted=records.wanted(wanted.key, wanted.value) if wanted else Wanted(),
        wanted_revision=wanted.mod_revision if wanted else 0,
        live={
            kv.key.rpartition("/")[2]: records.live(kv.key, kv.value)
            for kv in _beside(access, records.live_prefix(name))
        },
        slow=tuple(each for found in slow for each in found),
    )


def _beside(access: Access, prefix: str) -> list[KeyValue]:
    """Entries that are no part of the job's records; none where an etcd's user is confined to those."""
    try:
        return access.range(prefix)
    except StoreRefused:
        return []


def watch(access: Access, name: str) -> None:
    """Have the nodes say where their workers are, until `access` is closed."""
    access.hold(records.Keys(name).watched)


def write_wanted(access: Access, job: Job, wanted: Wanted) -> bool:
    """Ask for `wanted` instead of what `job` says; False when somebody else asked for something meanwhile."""
    return access.compare_and_put(records.Keys(job.name).wanted, job.wanted_revision, records.to_bytes(wanted))


def many(count: int, thing: str) -> str:
    """ "1 node", "2 nodes"."""
    return f"{count} {thing}{'' if count == 1 else 's'}"


def size_of(wanted: Wanted) -> str:
    """ "2 nodes", "1 to 4 nodes": as people asked for it."""
    low, high = wanted.min_nodes, wanted.max_nodes
    return many(high, "node") if low == high else f"{low} to {many(high, 'node')}"
