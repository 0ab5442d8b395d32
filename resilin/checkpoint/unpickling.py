"""A machine for pickles that runs nothing: what a pickle names is looked up in a table, and nothing else is there.

Pickle is a program for a small stack machine. Python's own `pickle` lets it import any name and call anything; here
GLOBAL finds the names of a table given by the caller, REDUCE calls what that table marks as callable, BUILD sets
nothing but a module's version numbers, and every other name, call or opcode ends the reading with what was refused.
Opcodes are those of protocols 2 to 5 that pickles of plain data consist of
(https://docs.python.org/3/library/pickletools.html describes them).
Costs are bounded, too: bytes are there before memory for them is taken, keys are such that hashing them is cheap, and
the number of steps has a limit. An object that is named a million times is one object.
"""

from __future__ import annotations

import io
import struct
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, Final, NoReturn

from resilin.errors import CorruptFile, UnsafePickle

MAX_STEPS: Final = 20_000_000  # opcodes; a state dict needs about 60 for each of its tensors
MAX_PICKLE_BYTES: Final = 256 << 20
_MAX_INTEGER_BYTES = 512
_NOT_THERE: Final = object()
_PLAIN_KEYS = (str, float, bool, type(None), bytes)


@dataclass(frozen=True)
class Allowed:
    """A name that pickles may call. `call` makes the object from the pickled arguments, and checks them."""

    name: str
    call: Callable[..., Any]


@dataclass(frozen=True)
class Lacking:
    """A name that pickles of tensors use, for what is not here. what: that; instead: what to save where it was made."""

    what: str = "neither a tensor nor a plain container"
    instead: str = "state dicts of tensors, numbers and text"


class Unpickler:
    """Reads one pickle from `file`, which stands behind it afterwards.

    names:      what GLOBAL finds, by module and name: `Allowed`, or a plain value. Errors call it the table. `Lacking`
                is refused as what is not there, with its reason.
    persistent: makes an object of a persistent id, as PyTorch uses them for the memory of tensors.
    where:      the file's name, for messages.
    """

    def __init__(
        self,
        file: BinaryIO,
        names: Mapping[tuple[str, str], Any],
        persistent: Callable[[Any], Any],
        where: str,
        limit: int = MAX_PICKLE_BYTES,
    ) -> None:
        self._file, self._names, self._persistent, self._where = file, names, persistent, where
        self._left = limit  # bytes that this pickle may still have
        self._stack: list[Any] = []
        self._marks: list[list[Any]] = []  # stacks below the marks
        self._memo: dict[int, Any] = {}

    def load(self) -> Any:
        """The pickled object. UnsafePickle names what is refused; CorruptFile says where the pickle is damaged."""
        steps = 0
        try:
            while True:
                code = self._take(1)[0]
                if code == _STOP:
                    return self._end()
                step = _STEPS.get(code)
                if step is None:
                    self._refuse(f"pickle opcode {code:#04x}")
                step(self)
                steps += 1
                if steps > MAX_STEPS:
                    self._refuse(f"more than {MAX_STEPS} pickle opcodes")
        except (IndexError, KeyError, TypeError, ValueError, OverflowError, struct.error, EOFError) as error:
            what = f"{type(error).__name__}: {error}"
            raise CorruptFile(
                f"{self._where}: the pickle in it is damaged near its step {steps}: {what}", self._where
            ) from None

    def _end(self) -> Any:
        (result,) = self._stack
        if self._marks:
            raise ValueError("a mark is left over")
        _check_plain(result, self._refuse)
        return result

    def _refuse(self, what: str, why: Lacking = Lacking()) -> NoReturn:
        raise UnsafePickle(
            f"{self._where} asks for {what}, which is {why.what}: refused, and nothing of the file was run. Save "
            f"{why.instead} where it was made",
            self._where,
            what,
        )

    def _take(self, count: int) -> bytes:
        """The next `count` bytes, for which memory is taken only as they come."""
        if count > self._left:
            raise EOFError(f"{count} more bytes are announced, at most {self._left} can follow")
        data = self._file.read(count) if count <= io.DEFAULT_BUFFER_SIZE else _read_gradually(self._file, count)
        if len(data) != count:
            raise EOFError("it is cut short")
        self._left -= count
        return data

    def _line(self) -> str:
        line = self._file.readline(1024)
        self._left -= len(line)
        if not line.endswith(b"\n"):
            raise EOFError("a name does not end")
        return line[:-1].decode("utf-8")

    def _number(self, form: str) -> Any:
        return struct.unpack(form, self._take(struct.calcsize(form)))[0]

    # -- opcodes: plain values

    def _text(self, form: str) -> None:
        self._stack.append(self._take(self._number(form)).decode("utf-8", "surrogatepass"))

    def _bytes(self, form: str) -> None:
        self._stack.append(self._take(self._number(form)))

    def _old_text(self, form: str) -> None:
        """Text of Python 2, in which bytes and text were one."""
        data = self._take(self._number(form))
        try:
            self._stack.append(data.decode("utf-8"))
        except UnicodeDecodeError:
            self._stack.append(data)

    def _integer(self, form: str) -> None:
        count = self._number(form)
        if not 0 <= count <= _MAX_INTEGER_BYTES:
            self._refuse(f"an integer of {count} bytes")
        self._stack.append(int.from_bytes(self._take(count), "little", signed=True))

    # -- opcodes: containers

    def _mark(self) -> None:
        self._marks.append(self._stack)
        self._stack = []

    def _since_mark(self) -> list[Any]:
        items = self._stack
        self._stack = self._marks.pop()
        return items

    def _tuple(self, count: int) -> None:
        if len(self._stack) < count:
            raise IndexError("the stack is empty")
        made = tuple(self._stack[-count:])
        del self._stack[-count:]
        self._stack.append(made)

    def _tuple_since_mark(self) -> None:
        items = self._since_mark()  # changes the stack: first
        self._stack.append(tuple(items))

    def _append(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if type(target) is not list:
            self._refuse(f"appending to {_named(target)}")
        target.extend(items)

    def _set_items(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if type(target) is not dict and type(target) is not OrderedDict:
            self._refuse(f"setting items of {_named(target)}")
        if len(items) % 2:
            raise ValueError("a key has no value")
        for key, value in zip(items[::2], items[1::2], strict=True):
            target[checked_key(key, self._refuse)] = value

    def _add_items(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if type(target) is not set:
            self._refuse(f"adding to {_named(target)}")
        target.update([checked_key(item, self._refuse) for item in items])

    def _frozen(self) -> None:
        items = self._since_mark()
        self._stack.append(frozenset([checked_key(item, self._refuse) for item in items]))

    # -- opcodes: names, calls, states

    def _global(self, module: Any, name: Any) -> None:
        if not isinstance(module, str) or not isinstance(name, str):
            raise TypeError("a name is no text")
        found = self._names.get((module, name), _NOT_THERE)
        if found is _NOT_THERE:
            self._refuse(f"{module}.{name}")
        if isinstance(found, Lacking):
            self._refuse(f"{module}.{name}", found)
        self._stack.append(found)

    def _call(self) -> None:
        arguments, target = self._stack.pop(), self._stack.pop()
        if not isinstance(target, Allowed) or type(arguments) is not tuple:
            self._refuse(f"a call of {_named(target)} with {_named(arguments)}")
        self._stack.append(target.call(*arguments))

    def _build(self) -> None:
        """The one state that is set: the versions that `Module.state_dict` keeps at its dictionary."""
        state, target = self._stack.pop(), self._stack[-1]
        if type(target) is not OrderedDict or type(state) is not dict or not state.keys() <= {"_metadata"}:
            self._refuse(f"setting attributes of {_named(target)}")
        if "_metadata" in state:
            target._metadata = state["_metadata"]  # type: ignore[attr-defined]

    def _remember(self, place: int) -> None:
        self._memo[place] = self._stack[-1]


def checked_key(key: Any, refuse: Callable[[str], NoReturn]) -> Any:
    """`key`, if its hash costs little: plain values, and tuples of such."""
    for part in key if type(key) is tuple else (key,):
        if type(part) is int:
            if part.bit_length() > 64:
                refuse("a key that is an integer of more than 64 bits")
        elif type(part) not in _PLAIN_KEYS:
            refuse(f"a key that is a {type(part).__name__}")
    return key


def _named(value: Any) -> str:
    return value.name if isinstance(value, Allowed) else f"a {type(value).__name__}"


def _read_gradually(file: BinaryIO, count: int) -> bytes:
    made = bytearray()
    while len(made) < count:
        part = file.read(min(count - len(made), 1 << 20))
        if not part:
            break
        made += part
    return bytes(made)


def _check_plain(root: Any, refuse: Callable[[str], NoReturn]) -> None:
    """Refuse functions and raw storage in the result; while tensors are made these are on the stack."""
    waiting, seen = [root], set()
    while waiting:
        value = waiting.pop()
        if isinstance(value, Allowed):
            refuse(f"the function or class {value.name} as a value")
        if getattr(value, "is_raw_storage", False):
            refuse("raw storage as a value")
        if not isinstance(value, dict | list | tuple) or id(value) in seen:
            continue
        seen.add(id(value))
        waiting.extend(value.values() if isinstance(value, dict) else value)
        waiting.extend([value._metadata] if hasattr(value, "_metadata") else [])


_STOP = ord(".")


def _push(value: Callable[[], Any]) -> Callable[[Unpickler], None]:
    return lambda machine: machine._stack.append(value())


def _packed(form: str) -> Callable[[Unpickler], None]:
    return lambda machine: machine._stack.append(machine._number(form))


_BY_OPCODE: dict[bytes, Callable[[Unpickler], Any]] = {
    b"\x80": lambda m: m._take(1),  # PROTO
    b"\x95": lambda m: m._take(8),  # FRAME: how many bytes may be read at once
    b"N": _push(lambda: None),
    b"\x88": _push(lambda: True),
    b"\x89": _push(lambda: False),
    b"K": _packed("<B"),
    b"M": _packed("<H"),
    b"J": _packed("<i"),
    b"G": _packed(">d"),
    b"\x8a": lambda m: m._integer("<B"),  # LONG1
    b"\x8b": lambda m: m._integer("<i"),  # LONG4
    b"X": lambda m: m._text("<I"),
    b"\x8c": lambda m: m._text("<B"),
    b"\x8d": lambda m: m._text("<Q"),
    b"U": lambda m: m._old_text("<B"),
    b"T": lambda m: m._old_text("<i"),
    b"B": lambda m: m._bytes("<I"),
    b"C": lambda m: m._bytes("<B"),
    b"\x8e": lambda m: m._bytes("<Q"),
    b"\x96": lambda m: m._stack.append(bytearray(m._take(m._number("<Q")))),
    b")": _push(tuple),
    b"]": _push(list),
    b"}": _push(dict),
    b"\x8f": _push(set),
    b"(": Unpickler._mark,
    b"t": Unpickler._tuple_since_mark,
    b"\x85": lambda m: m._tuple(1),
    b"\x86": lambda m: m._tuple(2),
    b"\x87": lambda m: m._tuple(3),
    b"a": lambda m: m._append([m._stack.pop()]),
    b"e": lambda m: m._append(m._since_mark()),
    b"s": lambda m: m._set_items([m._stack.pop(), m._stack.pop()][::-1]),
    b"u": lambda m: m._set_items(m._since_mark()),
    b"\x90": lambda m: m._add_items(m._since_mark()),
    b"\x91": Unpickler._frozen,
    b"c": lambda m: m._global(m._line(), m._line()),
    b"\x93": lambda m: m._global(*[m._stack.pop(), m._stack.pop()][::-1]),
    b"R": Unpickler._call,
    b"\x81": Unpickler._call,  # NEWOBJ: what may be called knows no difference
    b"b": Unpickler._build,
    b"Q": lambda m: m._stack.append(m._persistent(m._stack.pop())),
    b"q": lambda m: m._remember(m._take(1)[0]),
    b"r": lambda m: m._remember(m._number("<I")),
    b"\x94": lambda m: m._remember(len(m._memo)),
    b"h": lambda m: m._stack.append(m._memo[m._take(1)[0]]),
    b"j": lambda m: m._stack.append(m._memo[m._number("<I")]),
    b"0": lambda m: m._stack.pop(),
    b"1": lambda m: m._since_mark(),
    b"2": lambda m: m._stack.append(m._stack[-1]),
}
_STEPS = {code[0]: step for code, step in _BY_OPCODE.items()}
