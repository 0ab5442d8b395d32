"""What reading a pickle may cost: no more than a multiple of its bytes, whatever its opcodes copy, and cheap keys."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from fractions import Fraction
from typing import Any, NoReturn

_MOST_KEY_BITS = 4096  # of an integer: its hash is made anew each time
_MOST_KEY_PARTS, _MOST_KEY_DEPTH = 1 << 16, 100
_OWN_HASH_BITS = 60  # integers of so many have a hash of their own
_MOST_ALIKE = 64  # by chance, it is one
_FREE_PARTS = 16  # of a key: as cheap as the opcodes that name it
_FREE_COSTS, _COSTS_PER_BYTE = 1 << 20, 8  # bytes and items that calls may copy: to begin with, and per byte read
_PLAIN_KEYS = frozenset({str, float, bool, type(None), bytes})
_KEYS_OF_PARTS = (tuple, frozenset)
_BYTES = (bytes, bytearray)
_BUILT = (list, tuple, dict)  # item by item: the bytes that were read for these pay for a first copy
_COLLECTIONS = (*_BUILT, set, frozenset, deque)
_FEW_ITEMS, _ITEM_BYTES = 4, 100  # what an item takes in a dict or set, about
_LETTER_BYTES = 4  # of text that is not ASCII, at most
_WORD_BITS = 64


class Costs:
    """What calls, states and keys may cost, by the bytes that were read of the pickle."""

    def __init__(
        self, keys: frozenset[type], refuse: Callable[[str], NoReturn], consumed: Callable[[], int] = lambda: 0
    ) -> None:
        """consumed: how many bytes were read so far."""
        self._keys, self._refuse = _PLAIN_KEYS | {complex} | keys, refuse
        self._consumed, self._paid_for = consumed, 0
        self._left = _FREE_COSTS
        self._by_hash: dict[int, list[Any]] = {}  # keys whose hashes a sender can choose
        self._copied: dict[int, Any] = {}  # by identity, which holds as long as they are held here

    def earn(self, count: int) -> None:
        """`count` bytes were read elsewhere."""
        self._left += count * _COSTS_PER_BYTE

    def spend(self, count: int) -> None:
        """Pay for `count` bytes or items that are about to be copied. ValueError where there are too many."""
        self._left -= count
        if self._left < 0:  # counted when it is needed, and not for every byte that is read
            consumed = self._consumed()
            self.earn(consumed - self._paid_for)
            self._paid_for = consumed
        if self._left < 0:
            raise ValueError("it makes far more of its bytes than they are: the same ones are copied again and again")

    def spend_for(self, arguments: tuple[Any, ...]) -> None:
        """Pay for a copy of what `arguments` hold."""
        self.spend(len(arguments) + sum(map(self._size, arguments)))

    def spend_to_divide(self, *integers: int) -> None:
        """Pay for a division or a greatest common divisor of `integers`: their words, squared."""
        words = sum([one.bit_length() for one in integers]) // (2 * _WORD_BITS)
        self.spend(words * words)

    def _size(self, argument: Any) -> int:
        """What a copy of `argument` takes: bytes, and for each item of a collection that was copied before many."""
        if isinstance(argument, str):
            return len(argument) if argument.isascii() else len(argument) * _LETTER_BYTES
        if isinstance(argument, _BYTES):
            return len(argument)
        if isinstance(argument, int):
            return argument.bit_length() // 8
        if not isinstance(argument, _COLLECTIONS):
            return 0
        if len(argument) <= _FEW_ITEMS:
            return len(argument)
        if isinstance(argument, _BUILT) and id(argument) not in self._copied:
            self._copied[id(argument)] = argument
            return len(argument)
        return len(argument) * _ITEM_BYTES

    def key(self, key: Any) -> Any:
        """`key`, if its hash costs little: plain values, and tuples and frozen sets of such."""
        if type(key) is str:
            return key
        level, parts, depth, size = [key], 1, 1, 0
        while level:
            inside = [self._parts(part) for part in level]
            size += sum([part.__sizeof__() for part in level if type(part) not in _PLAIN_KEYS]) // 16
            parts, depth = parts + sum(map(len, inside)), depth + 1
            if parts > _MOST_KEY_PARTS or depth > _MOST_KEY_DEPTH:  # before they are laid out
                self._refuse(f"a key of more than {_MOST_KEY_PARTS} parts or {_MOST_KEY_DEPTH} levels")
            level = [inner for held in inside for inner in held]
        self.spend(max(0, parts + size - _FREE_PARTS))
        if type(key) not in _PLAIN_KEYS and (type(key) is not int or key.bit_length() > _OWN_HASH_BITS):
            self._check_collisions(key, parts)
        return key

    def _check_collisions(self, key: Any, parts: int) -> None:
        """Refuse many keys of one hash: a dict compares each with all others. Text has hashes that nobody knows."""
        alike = self._by_hash.setdefault(hash(key), [])
        self.spend(parts * max(0, len(alike) - 1))
        if not any(one is key or one == key for one in alike):
            alike.append(key)
        if len(alike) > _MOST_ALIKE:
            self._refuse(f"more than {_MOST_ALIKE} keys of one hash")

    def _parts(self, part: Any) -> Collection[Any]:
        """What the hash of `part` is made of."""
        if isinstance(part, _KEYS_OF_PARTS):
            return part
        if type(part) is int:
            if part.bit_length() > _MOST_KEY_BITS:
                self._refuse(f"a key that is an integer of more than {_MOST_KEY_BITS} bits")
        elif type(part) not in self._keys:
            self._refuse(f"a key that is a {type(part).__name__}")
        elif type(part) is Fraction:
            return part.numerator, part.denominator
        elif type(part) is range:
            return part.start, part.stop, part.step
        return ()
