"""The interface of every store, with etcd v3's model: ordered keys, revisions, transactions, leases, watches.

A store has one *revision*, a counter that grows by one with every transaction that changes something. An entry knows
the revision that made it (`create_revision`), the one that wrote it last (`mod_revision`) and how often it was
written since it was made (`version`). Nothing here compares wall clocks: liveness is a lease, and only the store
judges it.

Keys are text, values are bytes. Keys are ordered by their UTF-8 bytes. Bytes that are no UTF-8 (only foreign clients
write such keys) appear as surrogate escapes, so every key survives a round trip.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Self

from resilin.errors import UsageError

Target = Literal["value", "version", "create", "mod", "lease"]
Relation = Literal["=", "!=", "<", ">"]
_TARGETS = ("value", "version", "create", "mod", "lease")
_RELATIONS = ("=", "!=", "<", ">")


def to_bytes(key: str) -> bytes:
    """A key as it travels and is ordered."""
    return key.encode("utf-8", "surrogateescape")


def to_text(key: bytes) -> str:
    """The inverse of `to_bytes`, for any bytes."""
    return key.decode("utf-8", "surrogateescape")


def prefix_range(prefix: str) -> tuple[str, str]:
    """The half-open key range [start, end) that holds exactly the keys with `prefix`, in etcd's notation.

    Raises UsageError for a prefix that is no str.
    """
    if not isinstance(prefix, str):
        raise UsageError(f"store: expected a prefix of type str, got {prefix!r} of type {type(prefix).__name__}")
    if not prefix:
        return "\0", "\0"
    raw = to_bytes(prefix).rstrip(b"\xff")
    return prefix, to_text(raw[:-1] + bytes([raw[-1] + 1])) if raw else "\0"


@dataclass(frozen=True, slots=True)
class KeyValue:
    """One entry as of one revision."""

    key: str
    value: bytes
    create_revision: int
    mod_revision: int
    version: int
    lease: int = 0
    """Id of the lease it is attached to; 0: none."""


@dataclass(frozen=True, slots=True)
class Event:
    """One change. For a delete, `kv` has the key and the deleting revision as `mod_revision`, and an empty value."""

    kind: Literal["put", "delete"]
    kv: KeyValue
    previous: KeyValue | None
    """The entry before the change; None when there was none (or a foreign server compacted it away)."""


def _check_key(what: str, key: object) -> None:
    if not isinstance(key, str):
        raise UsageError(f"{what}: expected a key of type str, got {key!r} of type {type(key).__name__}")
    if not key:
        raise UsageError(f"{what}: expected a key of at least one character, got ''")


@dataclass(frozen=True, slots=True)
class Compare:
    """A condition of a transaction: `target` of `key` stands in `relation` to `operand`.

    A key that does not exist has version, create, mod and lease 0; a comparison of its value is never true.
    """

    key: str
    target: Target
    relation: Relation
    operand: int | bytes

    def __post_init__(self) -> None:
        _check_key("Compare", self.key)
        if self.target not in _TARGETS or self.relation not in _RELATIONS:
            raise UsageError(
                f"Compare({self.key!r}): expected a target of {_TARGETS} and a relation of {_RELATIONS}, "
                f"got {self.target!r} and {self.relation!r}"
            )
        wanted = bytes if self.target == "value" else int
        if not isinstance(self.operand, wanted):
            raise UsageError(
                f"Compare({self.key!r}, {self.target!r}): expected an operand of type {wanted.__name__}, "
                f"got {type(self.operand).__name__}"
            )


@dataclass(frozen=True, slots=True)
class Op:
    """One operation of a transaction. Made by the class methods; ranges are half-open in etcd's notation:
    end "": only `key`; end "\\0": everything from `key` on."""

    kind: Literal["range", "put", "delete"]
    key: str
    end: str = ""
    value: bytes = b""
    lease: int = 0
    revision: int = 0
    """Read as of this revision; 0: now."""
    limit: int = 0
    """At most this many entries; 0: all."""

    def __post_init__(self) -> None:
        _check_key(self.kind, self.key)
        if type(self.value) is not bytes:
            raise UsageError(
                f"{self.kind} {self.key!r}: expected a value of type bytes, got {type(self.value).__name__}; "
                "encode text, or copy a buffer with bytes()"
            )

    @classmethod
    def get(cls, key: str) -> Op:
        """Read one key."""
        return cls("range", key)

    @classmethod
    def range(cls, prefix: str) -> Op:
        """Read every key with `prefix`."""
        return cls("range", *prefix_range(prefix))

    @classmethod
    def put(cls, key: str, value: bytes, lease: Lease | None = None) -> Op:
        """Write one key."""
        return cls("put", key, value=value, lease=0 if lease is None else lease.id)

    @classmethod
    def delete(cls, key: str) -> Op:
        """Delete one key."""
        return cls("delete", key)

    @classmethod
    def delete_prefix(cls, prefix: str) -> Op:
        """Delete every key with `prefix`."""
        return cls("delete", *prefix_range(prefix))


@dataclass(frozen=True, slots=True)
class OpResult:
    """What one `Op` gave: for a range the entries found, for put and delete the entries replaced or removed."""

    kvs: tuple[KeyValue, ...]
    count: int
    """Entries that matched (a range with a limit returns fewer)."""


@dataclass(frozen=True, slots=True)
class TxnResult:
    """The outcome of a transaction: which branch ran, the store's revision after it, one result per operation."""

    succeeded: bool
    revision: int
    results: tuple[OpResult, ...]
    store: int = field(default=0, compare=False)
    """Which store answered: one that has taken the place of another has another number. 0: it does not say."""


EventsCallback = Callable[[Sequence[Event]], None]
ErrorCallback = Callable[[Exception], None]


class Lease(ABC):
    """A promise to be alive. Keys attached to it vanish when it ends.

    Owned by the store that granted it, which keeps it alive until `revoke()` or the store's `close()`. After
    `close()` it runs out by itself: at least `ttl_s` after it was last renewed, judged by the store alone.
    """

    id: int
    ttl_s: float
    """Granted time to live in seconds; at least what was asked for (etcd rounds up to whole seconds)."""

    @property
    @abstractmethod
    def alive(self) -> bool:
        """False as soon as this process knows that the lease ended."""

    @abstractmethod
    def revoke(self) -> None:
        """End the lease now; its keys are deleted in one transaction. A second call does nothing.

        `on_lost` is not called. Raises StoreTimeout when the store cannot be reached; the lease is then no longer
        renewed.
        """


class Watch(ABC):
    """A running watch; ends with `close()`, with its store, or after its `on_error` was called."""

    @abstractmethod
    def close(self) -> None:
        """Stop. No callback starts afterwards (one that is running finishes). A second call does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class Store(ABC):
    """A coordination store. Thread-safe; every call returns or raises within the deadline given at construction.

    Errors, for every method: StoreTimeout when no endpoint answered in time (the message names them), UsageError for a
    malformed argument, StoreError for anything else the store reports, also after `close()`.

    A write that was sent but never answered is repeated when a repetition cannot be told from one execution (`put`,
    deletions): it may then be applied after a competing write. Transactions with comparisons are never repeated: they
    raise StoreAmbiguous, and the caller reads again.
    """

    @abstractmethod
    def txn(self, compare: Sequence[Compare], then: Sequence[Op], orelse: Sequence[Op] = ()) -> TxnResult:
        """Run `then` if every comparison holds, else `orelse`; atomically, as one revision.

        A key may be written once per transaction (UsageError otherwise). Raises LeaseLost when an operation names a
        lease that ended, StoreAmbiguous when the answer was lost.
        """

    @abstractmethod
    def lease(self, ttl_s: float, on_lost: Callable[[], None] | None = None) -> Lease:
        """Grant a lease, kept alive by the store's own thread until it is revoked or the store is closed.

        `on_lost` is called once, on the store's thread, when the lease ended otherwise: expired, or revoked by others.
        """

    @abstractmethod
    def watch(
        self,
        prefix: str,
        on_events: EventsCallback,
        start_revision: int | None = None,
        on_error: ErrorCallback | None = None,
    ) -> Watch:
        """Call `on_events` with every change of a key with `prefix`, from `start_revision` on (None: after this call).

        Events come in revision order, none lost and none repeated, over reconnects too; those of one transaction come
        in one call. Callbacks run on the store's thread, one after the other: they may use the store, but must not
        wait for another callback. `on_error` is called at most once, after which the watch is over: with Compacted
        when the revisions to resume from are gone (list again), or with the exception that `on_events` raised.
        """

    @abstractmethod
    def compact(self, revision: int) -> None:
        """Forget the history before `revision`: older watches and reads raise Compacted from now on.

        StoreError when `revision` lies in the future, Compacted when it is forgotten already.
        """

    @abstractmethod
    def close(self) -> None:
        """Stop watches and keep-alives, free threads and sockets. Leases run out later: revoke them first if their end
        should be seen at once. A second call does nothing."""

    def get(self, key: str) -> KeyValue | None:
        """The entry at `key`, or None."""
        (found,) = self.txn((), (Op.get(key),)).results
        return found.kvs[0] if found.kvs else None

    def range(self, prefix: str) -> tuple[list[KeyValue], int]:
        """Every entry whose key has `prefix`, in key order, and the revision they were read at.

        `watch(prefix, ..., start_revision=revision + 1)` then continues without a gap.
        """
        result = self.txn((), (Op.range(prefix),))
        return list(result.results[0].kvs), result.revision

    def put(self, key: str, value: bytes, lease: Lease | None = None) -> int:
        """Write `key`, attached to `lease` (None: detached from any); returns the new revision."""
        return self.txn((), (Op.put(key, value, lease),)).revision

    def delete(self, key: str) -> bool:
        """Delete `key`; whether it was there (False also when a lost answer hides that this call deleted it)."""
        return self.txn((), (Op.delete(key),)).results[0].count > 0

    def delete_prefix(self, prefix: str) -> int:
        """Delete every key with `prefix` in one transaction; returns how many there were."""
        return self.txn((), (Op.delete_prefix(prefix),)).results[0].count

    def compare_and_put(
        self, key: str, expected_mod_revision: int, value: bytes, lease: Lease | None = None
    ) -> tuple[bool, KeyValue | None]:
        """Write `key` only if its mod_revision is `expected_mod_revision` (0: it must not exist).

        Returns whether it was written and the entry that is there now. Raises StoreAmbiguous when the answer was lost.
        """
        condition = Compare(key, "mod", "=", expected_mod_revision)
        result = self.txn((condition,), (Op.put(key, value, lease), Op.get(key)), (Op.get(key),))
        kvs = result.results[-1].kvs
        return result.succeeded, kvs[0] if kvs else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
