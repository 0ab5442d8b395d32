"""Publish weights, and subscribe to those of others: `rpc.publish` and `rpc.subscribe`."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from resilin.distributed.work.future import Future
from resilin.errors import PeerLost, RpcError, UsageError, UsageTypeError
from resilin.rpc import current
from resilin.rpc.agent.agent import Agent
from resilin.rpc.constants import UNSET_RPC_TIMEOUT
from resilin.rpc.published import announcement, stripes
from resilin.rpc.published.announcement import Announcement
from resilin.rpc.published.publication import Publication
from resilin.rpc.published.replica import HandedOver, Replica
from resilin.rpc.published.versions import Version, tensors_of
from resilin.rpc.references.rref import RRef
from resilin.rpc.serialization.messages import PUBLISHED
from resilin.rpc.timeouts import seconds
from resilin.rpc.worker_info import WorkerInfo

_registries: list[PublicationRegistry] = []  # of the one agent that there is


class PublicationRegistry:
    """What one worker publishes, and what it has of others."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self._lock = threading.Lock()
        self._publications: dict[str, Publication] = {}  # guarded by _lock
        self._replicas: dict[tuple[str, str], Replica] = {}  # guarded by _lock: by publisher and name
        self._subscriptions: dict[tuple[str, str], int] = {}  # guarded by _lock: how many are open

    def publication(self, name: str) -> Publication:
        """Return what is published here under `name`, also before anything is."""
        with self._lock:
            found = self._publications.get(name)
            if found is None:
                found = self._publications[name] = Publication(self.agent, name)
            return found

    def replica(self, source: WorkerInfo, name: str) -> Replica:
        """Return where the versions of another worker lie."""
        with self._lock:
            found = self._replicas.get((source.name, name))
            if found is None:
                ask = partial(self._ask, source)
                found = self._replicas[source.name, name] = Replica(self.agent, source, name, ask)
            return found

    def _ask(self, source: WorkerInfo, name: str, epoch: str, number: int) -> Future[HandedOver | None]:
        arguments = (name, self.agent.me.id, epoch, number)
        future: Future[HandedOver | None] = self.agent.call_async(
            source, _hand_over, arguments, None, UNSET_RPC_TIMEOUT
        )
        return future

    def announced(self, source: int, data: bytes) -> bytes:
        """Take that a worker has a new version of something."""
        said = announcement.decoded(data)
        self.replica(WorkerInfo(self.agent.peers.name_of(source), source), said.name).announced(said)
        return b""

    def opened(self, replica: Replica) -> None:
        """Count a subscription."""
        with self._lock:
            key = replica.source.name, replica.name
            self._subscriptions[key] = self._subscriptions.get(key, 0) + 1

    def ended(self, replica: Replica) -> bool:
        """Count the end of a subscription; return whether it was the last, with which the replica goes."""
        with self._lock:
            key = replica.source.name, replica.name
            self._subscriptions[key] = left = self._subscriptions.get(key, 1) - 1
            if not left:
                del self._subscriptions[key]
                self._replicas.pop(key, None)
            return not left

    def lost(self, peer: int, error: PeerLost) -> None:
        """Take that a worker is gone."""
        with self._lock:
            publications, replicas = list(self._publications.values()), list(self._replicas.values())
        for publication in publications:
            publication.dismiss(peer)
        for replica in replicas:
            if replica.source.id == peer:
                replica.lost(error)

    def close(self) -> None:
        """Let go of all versions, and wake who waits. Idempotent."""
        if self in _registries:  # it would keep the agent, and with it the memory of its queues
            _registries.remove(self)
        with self._lock:
            publications, replicas = list(self._publications.values()), list(self._replicas.values())
            self._publications.clear()
            self._replicas.clear()
        for publication in publications:
            publication.close()
        for replica in replicas:
            replica.close()


def install(agent: Agent) -> None:
    """Let a worker that has not started publish and subscribe."""
    made = PublicationRegistry(agent)
    _registries[:] = [made]
    agent.answer(PUBLISHED, made.announced)
    agent.when_lost.append(made.lost)
    agent.when_closed.append(made.close)


def _registry() -> PublicationRegistry:
    agent = current.require()
    if not _registries or _registries[0].agent is not agent:
        raise RpcError(f"{type(agent).__name__}, of another backend of RPC, publishes nothing: expected TENSORPIPE")
    return _registries[0]


# --- what readers call at a publisher ---


def _enrol(name: str, reader: int) -> tuple[str, int]:
    """The epoch and the number of the latest version, of which the reader will hear from now on."""
    publication = _registry().publication(name)
    return publication.epoch, publication.enrol(reader)


def _dismiss(name: str, reader: int) -> None:
    _registry().publication(name).dismiss(reader)


def _hand_over(name: str, reader: int, epoch: str, number: int) -> HandedOver | None:
    """What is newer than version `number` of `epoch`, which the reader has; None: nothing is."""
    registry = _registry()
    publication = registry.publication(name)
    if epoch == publication.epoch:
        publication.taken(reader, number)
    latest = publication.latest
    if latest is None or (epoch == latest.epoch and number >= latest.number):
        return None
    agent = registry.agent
    theirs, size = agent.peers.replies[reader].channels, sum(each.nbytes for each in tensors_of(latest.state))
    if size <= stripes.STRIPE_BYTES or agent.serializer.lends(theirs):
        return HandedOver(latest, None)
    striped = stripes.Striped(latest)
    return HandedOver(Version(latest.epoch, latest.number, striped.outline, latest.checksum), RRef(striped))


# --- for programs ---


def publish(
    state_dict: Mapping[str, Any],
    to: Iterable[str | int | WorkerInfo] = (),
    name: str = "weights",
    version: int | None = None,
    checksum: bool = False,
) -> Publication:
    """Make the tensors of `state_dict` as they are now the newest version of `name`; return its handle. Any thread.

    Returns once the version is made, and waits for no reader. Workers of `to`, and all that have subscribed, take it
    over by themselves: those on this host map it, others are sent stripes of it. A reader that is slow or stopped skips
    versions: it takes over the newest there is when it comes to it. What it has is one whole version, never a mixture.

    Cost:     memory that was published for the first time, or has not been written since, is lent, and its pages are
              copied as they are written; other memory is copied once, for all readers together.
    Writes:   to the tensors, also by `numpy()`, DLPack or pointers, do not show in the version once this has returned.
              Only what another thread writes while this runs may show in part.
    Parts:    nested dicts, lists and tuples of tensors, and whatever else a remote call takes. Tensors of devices are
              brought to the host. Tensors lose their `requires_grad`; what is no tensor is copied as by any call.
    Ends:     the newest version is kept until the next one, `close` of the handle or the end of RPC; older ones are
              freed when no reader holds their tensors any more. A reader that dies is forgotten, what it held freed.

    to: workers' names, ids or WorkerInfos. version: a number above the last one's; None: the next one. checksum: have
    readers compare the bytes that came with a CRC-32, which takes 0.1 to 1 s for each GB at both ends.
    Raises: RpcError for an unknown worker or parts that cannot be sent; UsageError for a version that is not above the
    last; UsageTypeError where `state_dict` is no mapping or `name` no text.
    """
    registry = _registry()
    if not isinstance(state_dict, Mapping):
        raise UsageTypeError(f"publish: expected a state dict, a mapping of names to tensors, got {type(state_dict)}")
    if isinstance(to, (str, int, WorkerInfo)):
        raise UsageTypeError(f"publish(to=...): expected several workers, as in to=[{to!r}], got {to!r}")
    if version is not None and (type(version) is not int or version < 1):
        raise UsageError(f"publish(version=...): expected a whole number from 1 on, got {version!r}")
    readers = [registry.agent.peers.find(each).id for each in to]
    publication = registry.publication(_checked(name, "publish"))
    publication.put(state_dict, version, readers, checksum)
    return publication


def _checked(name: object, what: str) -> str:
    if not isinstance(name, str):
        raise UsageTypeError(f"{what}: expected a name, got {name!r:.80}")
    return name


def subscribe(
    name: str = "weights", src: str | int | WorkerInfo = 0, timeout: float = UNSET_RPC_TIMEOUT
) -> Subscription:
    """Read what worker `src` publishes under `name`, now or later; return where its versions arrive. Any thread.

    Whoever subscribes late is given the newest version, and none of those before. timeout: as that of `rpc_sync`, for
    the one call to `src` that this makes.
    Raises: RpcError for an unknown worker; PeerLost; RpcTimeout.
    """
    registry = _registry()
    replica = registry.replica(registry.agent.peers.find(src).info, _checked(name, "subscribe"))
    made = Subscription(registry, replica)
    made.enrol(timeout)
    return made


class Subscription:
    """Where the versions of what another worker publishes arrive; `rpc.subscribe` returns it. Any thread.

    When the publisher dies, its last version stays readable, and `wait` raises PeerLost for later ones, until somebody
    has taken its place (a dynamic group): the versions of that one are counted as it says, and take over at once.
    """

    def __init__(self, registry: PublicationRegistry, replica: Replica) -> None:
        self._registry, self._replica, self._open = registry, replica, True
        registry.opened(replica)

    def __repr__(self) -> str:
        replica = self._replica
        return f"<Subscription to {replica.name!r} of {replica.source.name} version={self.version}>"

    @property
    def version(self) -> int:
        """Return the number of the newest version that is here; 0: none is."""
        found = self._replica.version
        return 0 if found is None else found.number

    def latest(self) -> tuple[int, Any]:
        """Return the number and the state dict of the newest version that is here, (0, {}) before there is one.

        Never waits, and raises nothing. Its tensors are of the host and read-only: `clone()` or `load_state_dict` copy
        them. A version stays readable for as long as anybody refers to one of its tensors, and is freed after that.
        """
        return _shown(self._replica.version)

    def wait(self, version: int = 1, timeout: float = UNSET_RPC_TIMEOUT) -> tuple[int, Any]:
        """Return what `latest` does, once `version` or a newer one is here.

        timeout: seconds; 0 is without end; without it that of the options holds. Raises: RpcTimeout; PeerLost where the
        publisher is gone; RpcError, and what the classes of the parts raise, where a version could not be taken over.
        """
        if type(version) is not int:
            raise UsageTypeError(f"wait: expected the number of a version, got {version!r:.80}")
        agent = self._registry.agent
        limit = seconds(timeout, "timeout") if timeout != UNSET_RPC_TIMEOUT else agent.timeout_s
        if self._open and self._replica.is_lost and self.version < version:
            self.enrol(timeout)
        return _shown(self._replica.wait(version, limit or None))

    def enrol(self, timeout: float = UNSET_RPC_TIMEOUT) -> None:
        """Tell the publisher, also one that has come in the place of another, to announce its versions here."""
        registry, replica = self._registry, self._replica
        arguments = (replica.name, registry.agent.me.id)
        try:
            epoch, number = registry.agent.call(replica.source, _enrol, arguments, None, timeout)
        except BaseException:
            if replica.version is None:
                self.close()
            raise
        replica.found(Announcement(replica.name, epoch, number))

    def close(self) -> None:
        """Take over no more versions, unless `publish(to=...)` names this worker; those that are held stay readable."""
        if not self._open:
            return
        self._open = False
        registry, replica = self._registry, self._replica
        if registry.ended(replica) and not registry.agent.is_closed and not replica.is_lost:
            registry.agent.call_async(
                replica.source, _dismiss, (replica.name, registry.agent.me.id), None, UNSET_RPC_TIMEOUT
            )

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _shown(version: Version | None) -> tuple[int, Any]:
    if version is None:
        return 0, {}
    state = version.state
    return version.number, state.copy() if isinstance(state, dict) else state
