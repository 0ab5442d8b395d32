"""What reading a pickle may cost: no more than a multiple of its bytes, whatever its opcodes copy, and cheap keys."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NoReturn

_MOST_KEY_BITS = 4096  # of an integer: its hash is made anew each time
_MOST_KEY_PARTS, _MOST_KEY_DEPTH = 1 << 16, 100
_OWN_HASH_BITS = 60  # integers of so many have a hash of their own
_MOST_ALIKE = 64  # by chance, it is one
_FREE_PARTS = 16  # of a key: as cheap as the opcodes that name it
_FREE_COSTS, _COSTS_PER_BYTE = 1 << 20, 8  # bytes and items that calls may copy: to begin with, and per byte read
_PLAIN_KEYS = frozenset({str, float, bool, type(None), bytes})
_KEYS_OF_PARTS = (tuple, frozenset)
_SIZED = (str, bytes, bytearray, list, tuple, dict, set, frozenset, deque)


class Costs:
    """What calls, states and keys may cost, by the bytes that were read of the pickle."""

    def __init__(self, keys: frozenset[type], refuse: Callable[[str], NoReturn]) -> None:
        self._keys, self._refuse = _PLAIN_KEYS | {complex} | keys, refuse
        self._left = _FREE_COSTS
        self._by_hash: dict[int, list[Any]] = {}  # keys whose hashes a sender can choose

    def earn(self, count: int) -> None:
        """`count` bytes were read."""
        self._left += count * _COSTS_PER_BYTE

    def spend(self, count: int) -> None:
        """Pay for `count` bytes or items that are about to be copied. ValueError where there are too many."""
        self._left -= count
        if self._left < 0:
            raise ValueError("it makes far more of its bytes than they are: the same ones are copied again and again")

    def spend_for(self, arguments: tuple[Any, ...]) -> None:
        """Pay for a copy of what `arguments` hold."""
        self.spend(len(arguments) + sum([len(one) for one in arguments if isinstance(one, _SIZED)]))

    def key(self, key: Any) -> Any:
        """`key`, if its hash costs little: plain values, and tuples and frozen sets of such."""
        if type(key) is str:
            return key
        level, parts, depth = [key], 0, 0
        while level:
            parts, depth = parts + len(level), depth + 1
            if parts > _MOST_KEY_PARTS or depth > _MOST_KEY_DEPTH:
                self._refuse(f"a key of more than {_MOST_KEY_PARTS} parts or {_MOST_KEY_DEPTH} levels")
            level = [inner for part in level if self._has_parts(part) for inner in part]
        self.spend(max(0, parts - _FREE_PARTS))
        if type(key) not in _PLAIN_KEYS and (type(key) is not int or key.bit_length() > _OWN_HASH_BITS):
            self._check_collisions(key)
        return key

    def _check_collisions(self, key: Any) -> None:
        """Refuse many keys of one hash: a dict compares each with all others. Text has hashes that nobody knows."""
        alike = self._by_hash.setdefault(hash(key), [])
        if not any(one is key or one == key for one in alike):
            alike.append(key)
        if len(alike) > _MOST_ALIKE:
            self._refuse(f"more than {_MOST_ALIKE} keys of one hash")

    def _has_parts(self, part: Any) -> bool:
        if isinstance(part, _KEYS_OF_PARTS):
            return True
        if type(part) is int:
            if part.bit_length() > _MOST_KEY_BITS:
                self._refuse(f"a key that is an integer of more than {_MOST_KEY_BITS} bits")
        elif type(part) not in self._keys:
            self._refuse(f"a key that is a {type(part).__name__}")
        return False
