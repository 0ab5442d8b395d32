"""Keep the store in this process's memory: for threads, tests, and as the state of the TCP store's server."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import timedelta

from resilin._base.clock import Deadline, spell
from resilin.distributed.stores.base import DEFAULT_TIMEOUT_S, Store, Value, added, encode, take_first, text
from resilin.errors import DistStoreError


class HashStore(Store):
    """A dict with waiting readers."""

    def __init__(self, timeout: timedelta | float = DEFAULT_TIMEOUT_S) -> None:
        super().__init__(timeout)
        self._changed = threading.Condition()
        self._values: dict[str, bytes] = {}  # guarded by _changed
        self._closed = False  # guarded by _changed

    def set(self, key: str, value: Value) -> None:
        """See Store."""
        with self._changed:
            self._values[text(key)] = encode(value)
            self._changed.notify_all()

    def get(self, key: str) -> bytes:
        """See Store."""
        with self._changed:
            self._await([key], self._deadline())
            return self._values[key]

    def add(self, key: str, amount: int) -> int:
        """See Store."""
        with self._changed:
            total = added(key, self._values.get(key), amount)
            self._values[text(key)] = str(total).encode()
            self._changed.notify_all()
            return total

    def compare_set(self, key: str, expected: Value, desired: Value) -> bytes:
        """See Store."""
        with self._changed:
            present = self._values.get(key)
            if (present is None and not encode(expected)) or present == encode(expected):
                present = self._values[text(key)] = encode(desired)
                self._changed.notify_all()
            return encode(expected) if present is None else present

    def check(self, keys: Sequence[str]) -> bool:
        """See Store."""
        with self._changed:
            return all(text(key) in self._values for key in keys)

    def wait(self, keys: Sequence[str], timeout: timedelta | float | None = None) -> None:
        """See Store."""
        with self._changed:
            self._await(keys, self._deadline(timeout))

    def append(self, key: str, value: Value) -> None:
        """See Store."""
        with self._changed:
            self._values[text(key)] = self._values.get(key, b"") + encode(value)
            self._changed.notify_all()

    def delete_key(self, key: str) -> bool:
        """See Store."""
        with self._changed:
            return self._values.pop(text(key), None) is not None

    def clone(self) -> HashStore:
        """See Store: this very store, for its keys are in this process's memory; closing either closes both."""
        return self

    def _shift(self, key: str) -> bytes | None:
        with self._changed:
            return take_first(key, self._values)

    def _peek(self, key: str) -> bytes:
        with self._changed:
            return self._values.get(text(key), b"")

    def num_keys(self) -> int:
        """See Store."""
        with self._changed:
            return len(self._values)

    def list_keys(self) -> list[str]:
        """See Store."""
        with self._changed:
            return sorted(self._values)

    def close(self) -> None:
        """Fail everybody who waits."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _await(self, keys: Sequence[str], deadline: Deadline) -> None:
        while missing := [key for key in keys if text(key) not in self._values]:
            if self._closed:
                raise DistStoreError("the store was closed")
            if deadline.passed():
                raise DistStoreError(f"no value for {', '.join(map(repr, missing))} within {spell(deadline.seconds)}")
            self._changed.wait(deadline.left())
