"""Use a coordination store (`resilin.store`) as the key-value store of a group."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from resilin._base.clock import spell
from resilin.distributed.stores.base import DEFAULT_TIMEOUT_S, Store, Value, added, encode, shifted, text
from resilin.errors import DistStoreError, StoreError
from resilin.store.base import Compare, Op

if TYPE_CHECKING:
    from resilin.store.base import Store as Coordination


class CoordinationStore(Store):
    """Keys live under `prefix` of `store`. The coordination store stays its owner's: `close` does not close it."""

    def __init__(
        self, store: Coordination, prefix: str = "/resilin/distributed/", timeout: timedelta | float = DEFAULT_TIMEOUT_S
    ) -> None:
        super().__init__(timeout)
        self._store = store
        self._prefix = prefix

    def set(self, key: str, value: Value) -> None:
        """See Store."""
        self._store.put(self._prefix + text(key), encode(value))

    def get(self, key: str) -> bytes:
        """See Store."""
        self.wait([key])
        found = self._store.get(self._prefix + text(key))
        if found is None:
            raise DistStoreError(f"{key!r} was deleted while it was read")
        return bytes(found.value)

    def add(self, key: str, amount: int) -> int:
        """See Store."""
        while True:
            found = self._store.get(self._prefix + text(key))
            total = added(key, None if found is None else bytes(found.value), amount)
            if self._replace(key, 0 if found is None else found.mod_revision, str(total).encode()):
                return total

    def compare_set(self, key: str, expected: Value, desired: Value) -> bytes:
        """See Store."""
        while True:
            found = self._store.get(self._prefix + text(key))
            present = None if found is None else bytes(found.value)
            if not ((present is None and not encode(expected)) or present == encode(expected)):
                return encode(expected) if present is None else present
            if self._replace(key, 0 if found is None else found.mod_revision, encode(desired)):
                return encode(desired)

    def check(self, keys: Sequence[str]) -> bool:
        """See Store."""
        return all(self._store.get(self._prefix + text(key)) is not None for key in keys)

    def wait(self, keys: Sequence[str], timeout: timedelta | float | None = None) -> None:
        """See Store. Woken by a watch."""
        deadline = self._deadline(timeout)
        changed = threading.Event()
        broken: list[BaseException] = []

        def fail(error: BaseException) -> None:
            broken.append(error)
            changed.set()

        try:
            _, revision = self._store.range(self._prefix)
            watch = self._store.watch(self._prefix, lambda _: changed.set(), revision + 1, fail)
            try:
                while missing := [key for key in keys if not self.check([key])]:
                    if broken or not changed.wait(deadline.left()):
                        cause = f": {broken[0]}" if broken else f" within {spell(deadline.seconds)}"
                        raise DistStoreError(f"no value for {', '.join(map(repr, missing))}{cause}")
                    changed.clear()
            finally:
                watch.close()
        except StoreError as error:
            raise DistStoreError(f"coordination store: {error}") from error

    def append(self, key: str, value: Value) -> None:
        """See Store."""
        while True:
            found = self._store.get(self._prefix + text(key))
            before = b"" if found is None else bytes(found.value)
            if self._replace(key, 0 if found is None else found.mod_revision, before + encode(value)):
                return

    def delete_key(self, key: str) -> bool:
        """See Store."""
        return bool(self._store.delete(self._prefix + text(key)))

    def clone(self) -> CoordinationStore:
        """See Store: the coordination store itself stays its owner's."""
        return CoordinationStore(self._store, self._prefix, self.timeout)

    def _shift(self, key: str) -> bytes | None:
        while True:
            found = self._store.get(self._prefix + text(key))
            if found is None:
                return None
            first, rest = shifted(key, bytes(found.value))
            unchanged = (Compare(found.key, "mod", "=", found.mod_revision),)
            after = Op.put(found.key, rest) if rest else Op.delete(found.key)
            if self._store.txn(unchanged, (after,)).succeeded:
                return first

    def _peek(self, key: str) -> bytes:
        found = self._store.get(self._prefix + text(key))
        return b"" if found is None else bytes(found.value)

    def num_keys(self) -> int:
        """See Store."""
        return len(self.list_keys())

    def list_keys(self) -> list[str]:
        """See Store."""
        return [kv.key[len(self._prefix) :] for kv in self._store.range(self._prefix)[0]]

    def _replace(self, key: str, revision: int, value: bytes) -> bool:
        done, _ = self._store.compare_and_put(self._prefix + text(key), revision, value)
        return bool(done)
