"""Define the key-value store's interface, and the store that puts a prefix before every key."""

from __future__ import annotations

import abc
import struct
from collections.abc import Sequence
from datetime import timedelta
from numbers import Integral

from resilin._base.clock import Deadline
from resilin.distributed.wire.timeouts import seconds
from resilin.errors import DistStoreError, QueueEmptyError, UsageError, UsageTypeError

DEFAULT_TIMEOUT_S = 300.0
_LENGTH = struct.Struct(">I")
Value = bytes | str


def encode(value: Value) -> bytes:
    """A value as bytes; text as UTF-8. UsageError for anything else."""
    if isinstance(value, str):
        return value.encode()
    if not isinstance(value, bytes | bytearray | memoryview):
        raise UsageTypeError(f"value: expected bytes or str, got {value!r}; write str(value)")
    return bytes(value)


def text(key: str) -> str:
    """`key`. UsageError unless it is text."""
    if not isinstance(key, str):
        raise UsageTypeError(f"key: expected str, got {key!r}")
    return key


def whole(amount: int) -> int:
    """`amount` of an `add`. UsageError unless it is an integer."""
    if not isinstance(amount, Integral):
        raise UsageTypeError(f"add: expected an integer amount, got {amount!r}")
    return int(amount)


def added(key: str, present: bytes | None, amount: int) -> int:
    """The counter `key` after an `add`; `present` is its text. DistStoreError when that is not a number."""
    more = whole(amount)
    try:
        return int(present or b"0") + more
    except ValueError:
        raise DistStoreError(f"add({key!r}): expected a counter, found the value {present!r:.80}") from None


def paired(keys: Sequence[str], values: Sequence[Value]) -> list[tuple[str, bytes]]:
    """The keys and values of a `multi_set`. UsageError unless there are as many of each."""
    if len(keys) != len(values):
        raise UsageError(f"multi_set: expected a value for each key, got {len(keys)} keys and {len(values)} values")
    return [(text(key), encode(value)) for key, value in zip(keys, values, strict=True)]


def queued(value: Value) -> bytes:
    """Return what `append` adds to a queue's value: the length and the bytes."""
    data = encode(value)
    return _LENGTH.pack(len(data)) + data


def split_queue(key: str, packed: bytes) -> list[bytes]:
    """The entries of a queue's value, oldest first. DistStoreError when the key holds something else."""
    entries, at = [], 0
    while at + _LENGTH.size <= len(packed):
        (length,) = _LENGTH.unpack_from(packed, at)
        at += _LENGTH.size + length
        entries.append(packed[at - length : at])
    if at != len(packed):
        raise DistStoreError(f"queue {key!r}: expected what queue_push wrote, found the value {packed!r:.80}")
    return entries


def shifted(key: str, packed: bytes) -> tuple[bytes, bytes]:
    """The oldest entry of a queue's value, which is not empty, and the value without it."""
    first = split_queue(key, packed)[0]
    return first, packed[_LENGTH.size + len(first) :]


def take_first(key: str, values: dict[str, bytes]) -> bytes | None:
    """Take the oldest entry of the queue `key` out of `values`; the caller holds their lock. None: there is none."""
    packed = values.pop(text(key), None)
    if packed is None:
        return None
    try:
        first, rest = shifted(key, packed)
    except DistStoreError:
        values[key] = packed
        raise
    if rest:
        values[key] = rest
    return first


class Store(abc.ABC):
    """Keys are text, values bytes. Thread-safe. `get` and `wait` block until the key is there or the timeout passes.

    Raises DistStoreError, naming the key, when a wait is late or the server is gone.
    """

    def __init__(self, timeout: timedelta | float = DEFAULT_TIMEOUT_S) -> None:
        self._timeout_s = seconds(timeout)

    @property
    def timeout(self) -> timedelta:
        """Return how long `get` and `wait` block."""
        return timedelta(seconds=self._timeout_s or 0.0)

    def set_timeout(self, timeout: timedelta | float) -> None:
        """Change how long `get` and `wait` block."""
        self._timeout_s = seconds(timeout)

    @abc.abstractmethod
    def set(self, key: str, value: Value) -> None:
        """Put `value` under `key`."""

    @abc.abstractmethod
    def get(self, key: str) -> bytes:
        """The value of `key`, waiting for it."""

    @abc.abstractmethod
    def add(self, key: str, amount: int) -> int:
        """Add to the counter `key` (0 when missing) and return its new value; kept as decimal text."""

    @abc.abstractmethod
    def compare_set(self, key: str, expected: Value, desired: Value) -> bytes:
        """Put `desired` if the value is `expected` (empty: if the key is missing); returns the value afterwards."""

    @abc.abstractmethod
    def check(self, keys: Sequence[str]) -> bool:
        """Return whether all `keys` are there now."""

    @abc.abstractmethod
    def wait(self, keys: Sequence[str], timeout: timedelta | float | None = None) -> None:
        """Block until all `keys` are there."""

    @abc.abstractmethod
    def append(self, key: str, value: Value) -> None:
        """Put `value` behind the present value of `key`."""

    @abc.abstractmethod
    def delete_key(self, key: str) -> bool:
        """Remove `key`; whether it was there."""

    @abc.abstractmethod
    def num_keys(self) -> int:
        """Number of keys."""

    @abc.abstractmethod
    def list_keys(self) -> list[str]:
        """All keys, sorted."""

    @abc.abstractmethod
    def clone(self) -> Store:
        """A store of the same keys for another owner, which closes it; what this one is connected to stays its own."""

    @abc.abstractmethod
    def _shift(self, key: str) -> bytes | None:
        """Take the oldest entry of the queue `key`, at once; None when there is none."""

    def queue_push(self, key: str, value: Value) -> None:
        """Put `value` at the end of the queue `key`. A queue is a key while something is in it."""
        self.append(key, queued(value))

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        """Take the oldest value of the queue `key`, waiting for one; QueueEmptyError at once without `block`."""
        deadline = self._deadline()
        while (found := self._shift(key)) is None:
            if not block:
                raise QueueEmptyError(f"queue {key!r} is empty")
            self.wait([key], deadline.left())
        return found

    def queue_len(self, key: str) -> int:
        """Count the values that are in the queue `key` now."""
        return len(split_queue(key, self._peek(key)))

    @abc.abstractmethod
    def _peek(self, key: str) -> bytes:
        """The value of `key` now; empty when it is missing."""

    def has_extended_api(self) -> bool:
        """Return whether append, multi_get, multi_set and queues work: yes, in every store."""
        return True

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """The values of `keys`, waiting for each."""
        return [self.get(key) for key in keys]

    def multi_set(self, keys: Sequence[str], values: Sequence[Value]) -> None:
        """Put each value under its key."""
        for key, value in paired(keys, values):
            self.set(key, value)

    def refusals(self) -> str:
        """Say what is known of connections that the store's server refused, for error messages; empty: nothing."""
        return ""

    def close(self) -> None:  # noqa: B027 - most stores hold nothing
        """Free what the store holds. Idempotent."""

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _deadline(self, timeout: timedelta | float | None = None) -> Deadline:
        return Deadline(self._timeout_s if timeout is None else seconds(timeout))


class PrefixStore(Store):
    """A view of `store` in which every key has `prefix/` before it."""

    def __init__(self, prefix: str, store: Store) -> None:
        super().__init__(store.timeout)
        self._prefix = prefix
        self._store = store
        self._owned: Store | None = None

    @property
    def underlying_store(self) -> Store:
        """The store that is viewed."""
        return self._store

    def _key(self, key: str) -> str:
        return f"{self._prefix}/{text(key)}"

    def set(self, key: str, value: Value) -> None:
        """See Store."""
        self._store.set(self._key(key), value)

    def get(self, key: str) -> bytes:
        """See Store."""
        self.wait([key])
        return self._store.get(self._key(key))

    def add(self, key: str, amount: int) -> int:
        """See Store."""
        return self._store.add(self._key(key), amount)

    def compare_set(self, key: str, expected: Value, desired: Value) -> bytes:
        """See Store."""
        return self._store.compare_set(self._key(key), expected, desired)

    def check(self, keys: Sequence[str]) -> bool:
        """See Store."""
        return self._store.check([self._key(key) for key in keys])

    def wait(self, keys: Sequence[str], timeout: timedelta | float | None = None) -> None:
        """See Store."""
        limit = self._timeout_s if timeout is None else timeout
        self._store.wait([self._key(key) for key in keys], limit)

    def append(self, key: str, value: Value) -> None:
        """See Store."""
        self._store.append(self._key(key), value)

    def delete_key(self, key: str) -> bool:
        """See Store."""
        return self._store.delete_key(self._key(key))

    def num_keys(self) -> int:
        """See Store: keys under the prefix."""
        return len(self.list_keys())

    def list_keys(self) -> list[str]:
        """See Store: keys under the prefix, without it."""
        start = self._key("")
        return [key[len(start) :] for key in self._store.list_keys() if key.startswith(start)]

    def clone(self) -> PrefixStore:
        """See Store: the same prefix of a clone of the store, which `close` closes."""
        made = PrefixStore(self._prefix, self._store.clone())
        made._owned = made._store
        made._timeout_s = self._timeout_s
        return made

    def close(self) -> None:
        """See Store: closes the store below only in a clone, whose own it is."""
        if self._owned is not None:
            self._owned.close()

    def _shift(self, key: str) -> bytes | None:
        return self._store._shift(self._key(key))

    def _peek(self, key: str) -> bytes:
        return self._store._peek(self._key(key))

    def refusals(self) -> str:
        """See Store."""
        return self._store.refusals()
