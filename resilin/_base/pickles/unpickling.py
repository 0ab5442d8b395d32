"""A machine for pickles that runs nothing: what a pickle names is looked up in a table, and nothing else is there.

Pickle is a program for a small stack machine. Python's own `pickle` lets it import any name and call anything; here
GLOBAL finds the names of a table given by the caller, REDUCE calls what that table marks as callable, BUILD hands the
state to the setter that the caller gives for that type of instance, and every other name, call or opcode ends the
reading with what was refused. Opcodes are those of protocols 2 to 5 that pickles of plain data consist of
(https://docs.python.org/3/library/pickletools.html describes them).
Costs are bounded, too: bytes are there before memory for them is taken, what calls copy of their arguments is no more
than a multiple of the bytes that were read (an object that is named a million times is one object, and is paid for a
million times where it is copied), keys are such that hashing them is cheap, the number of steps has a limit, and what
was made can be freed without recursion: see `_check_links`.
"""

from __future__ import annotations

import struct
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, Final, NoReturn

from resilin._base import gradual
from resilin._base.pickles.costs import Costs
from resilin.errors import CheckpointError, CorruptFile, UnsafePickle

MAX_STEPS: Final = 20_000_000  # opcodes; a state dict needs about 60 for each of its tensors
MAX_PICKLE_BYTES: Final = 256 << 20
_MAX_INTEGER_BYTES = 1 << 16
_MOST_LINKS = 1000
_MOST_NAME, _MOST_TOLD = 200, 500  # letters of a name, and of an error, in a message
_NOT_THERE: Final = object()
_U1, _U2, _U4, _U8, _I4, _F8 = (struct.Struct(form) for form in ("<B", "<H", "<I", "<Q", "<i", ">d"))
_LEAVES: Final = frozenset({int, float, str, bytes, bool, type(None), complex})
_PLAIN_BOXES: Final = frozenset({dict, list, tuple})  # nothing else is at them than what is in them
_DICTS, _LISTS = (dict, OrderedDict, Counter, defaultdict), (list, deque)
_DAMAGE = (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RuntimeError, struct.error, EOFError)


@dataclass(frozen=True)
class Allowed:
    """A name that pickles may call. `call` makes the object from the pickled arguments, and checks them.

    counts: `call` gets the machine's `Costs` before the arguments.
    kind:   the class of that name, for calls that take classes as arguments.
    """

    name: str
    call: Callable[..., Any]
    counts: bool = False
    kind: type | None = None


@dataclass(frozen=True)
class Lacking:
    """A name that pickles of tensors use, for what is not here. what: that; instead: what to save where it was made."""

    what: str = "neither a tensor nor a plain container"
    instead: str = "state dicts of tensors, numbers and text"


class Unbuilt:
    """What a call makes of which only a state that follows makes an object. Nothing but BUILD takes it."""

    def __init__(self) -> None:
        self.places: list[int] = []  # where the memo has it


class Unpickler:
    """Reads one pickle from `file`, which stands behind it afterwards, or from bytes, which is faster.

    names:      what GLOBAL finds, by module and name: `Allowed`, or a plain value. Errors call it the table. `Lacking`
                is refused as what is not there, with its reason.
    persistent: makes an object of a persistent id, as PyTorch uses them for the memory of tensors; None: there is none.
    where:      the file's name, for messages.
    limit:      of the bytes of the pickle.
    steps:      of the opcodes.
    states:     of instances of just these types, what BUILD calls with `Costs`, the instance and the state; what comes
                back takes the instance's place.
    keys:       types of keys and members of sets beside Python's plain values: their hash costs little.
    """

    def __init__(
        self,
        file: BinaryIO | bytes,
        names: Mapping[tuple[str, str], Any],
        persistent: Callable[[Any], Any] | None,
        where: str,
        limit: int = MAX_PICKLE_BYTES,
        *,
        steps: int | None = None,
        states: Mapping[type, Callable[[Costs, Any, Any], Any]] | None = None,
        keys: frozenset[type] = frozenset(),
    ) -> None:
        self._names, self._persistent, self._where = names, persistent, where
        self._file = None if isinstance(file, bytes) else file
        self._data = file if isinstance(file, bytes) else b""  # what is there already, from `_at` to `_end`
        self._at, self._end = 0, min(len(self._data), limit)
        self._before = 0  # bytes that were read from the file
        self._limit = limit
        self._steps = MAX_STEPS if steps is None else steps
        self._states = {OrderedDict: _set_versions, **(states or {})}
        self._costs = Costs(keys, self._refuse, lambda: self._at + self._before)
        self._stack: list[Any] = []
        self._marks: list[list[Any]] = []  # stacks below the marks
        self._memo: dict[int, Any] = {}
        self._fragile: list[Any] = []

    def load(self) -> Any:
        """The pickled object. UnsafePickle names what is refused; CorruptFile says where the pickle is damaged."""
        try:
            return self._run()
        except BaseException:
            for one in self._fragile:  # all are held here: none frees another
                _empty(one)
            raise
        finally:  # this and its costs refer to one another: what was read would stay until somebody looks for circles
            self._data, self._memo, self._stack, self._marks, self._fragile = b"", {}, [], [], []

    def _run(self) -> Any:
        steps = 0
        data, end = self._data, self._end
        try:
            while True:
                at = self._at
                if at < end:
                    self._at = at + 1
                    code = data[at]
                else:
                    code = self._take(1)[0]
                if code == _STOP:
                    return self._result()
                step = _STEPS.get(code)
                if step is None:
                    self._refuse(f"pickle opcode {code:#04x}")
                step(self)
                steps += 1
                if steps > self._steps:
                    self._refuse(f"more than {self._steps} pickle opcodes")
        except CheckpointError:
            raise
        except _DAMAGE as error:
            what = f"{type(error).__name__}: {error}"[:_MOST_TOLD]
            raise CorruptFile(
                f"{self._where}: the pickle in it is damaged near its step {steps}: {what}", self._where
            ) from None

    def _result(self) -> Any:
        (result,) = self._stack
        if self._marks:
            raise ValueError("a mark is left over")
        check_plain(result, self._refuse)
        _check_links(self._fragile, self._refuse)
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
        at = self._at
        stop = at + count
        if at <= stop <= self._end:
            self._at = stop
            return self._data[at:stop]
        left = self._limit - self._before - at
        if not 0 <= count <= left:
            raise EOFError(f"{count} more bytes are announced, at most {left} can follow")
        data = b"" if self._file is None else gradual.read(self._file, count)
        if len(data) != count:
            raise EOFError("it is cut short")
        self._before += count
        return data

    def _take_changeable(self, count: int) -> bytearray:
        """As `_take`, in memory of its own, without a copy between."""
        at = self._at
        stop = at + count
        if not at <= stop <= self._end:
            return bytearray(self._take(count))
        self._at = stop
        return bytearray(memoryview(self._data)[at:stop])

    def _line(self) -> str:
        if self._file is None:
            stop = self._data.find(b"\n", self._at, min(self._end, self._at + 1024)) + 1
            line = self._take(max(0, stop - self._at))
        else:
            line = self._file.readline(min(1024, max(0, self._limit - self._before)))
            self._before += len(line)
        if not line.endswith(b"\n"):
            raise EOFError("a name does not end")
        return line[:-1].decode("utf-8")

    def _number(self, form: struct.Struct) -> Any:
        return form.unpack(self._take(form.size))[0]

    # -- opcodes: plain values

    def _text(self, form: struct.Struct) -> None:
        self._stack.append(self._take(self._number(form)).decode("utf-8", "surrogatepass"))

    def _bytes(self, form: struct.Struct) -> None:
        self._stack.append(self._take(self._number(form)))

    def _old_text(self, form: struct.Struct) -> None:
        """Text of Python 2, in which bytes and text were one."""
        data = self._take(self._number(form))
        try:
            self._stack.append(data.decode("utf-8"))
        except UnicodeDecodeError:
            self._stack.append(data)

    def _integer(self, form: struct.Struct) -> None:
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
        if type(target) not in _LISTS:
            self._refuse(f"appending to {_named(target)}")
        target.extend(items)

    def _set_items(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if type(target) not in _DICTS:
            self._refuse(f"setting items of {_named(target)}")
        if len(items) % 2:
            raise ValueError("a key has no value")
        for key, value in zip(items[::2], items[1::2], strict=True):
            target[self._costs.key(key)] = value

    def _add_items(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if type(target) is not set:
            self._refuse(f"adding to {_named(target)}")
        target.update([self._costs.key(item) for item in items])

    def _frozen(self) -> None:
        items = self._since_mark()
        self._stack.append(frozenset([self._costs.key(item) for item in items]))

    # -- opcodes: names, calls, states

    def _global(self, module: Any, name: Any) -> None:
        if not isinstance(module, str) or not isinstance(name, str):
            raise TypeError("a name is no text")
        found = self._names.get((module, name), _NOT_THERE)
        if found is _NOT_THERE:
            self._refuse(f"{module}.{name}"[:_MOST_NAME])
        if isinstance(found, Lacking):
            self._refuse(f"{module}.{name}", found)
        self._stack.append(found)

    def _call(self) -> None:
        arguments, target = self._stack.pop(), self._stack.pop()
        if not isinstance(target, Allowed) or type(arguments) is not tuple:
            self._refuse(f"a call of {_named(target)} with {_named(arguments)}")
        self._costs.spend_for(arguments)
        made = target.call(self._costs, *arguments) if target.counts else target.call(*arguments)
        self._note(made)
        self._stack.append(made)

    def _new(self) -> None:
        """Make an object by its class: what may be called knows no difference."""
        self._call()

    def _build(self) -> None:
        """Set a state: of an instance whose type has a setter."""
        state, target = self._stack.pop(), self._stack[-1]
        setter = self._states.get(type(target))
        if setter is None:
            self._refuse(f"setting attributes of {_named(target)}")
        self._costs.spend_for(state if type(state) is tuple else (state,))
        made = setter(self._costs, target, state)
        if made is None:
            self._refuse(f"setting attributes of {_named(target)}")
        self._note(made)
        self._stack[-1] = made
        if isinstance(target, Unbuilt):
            self._memo.update(dict.fromkeys(target.places, made))

    def _note(self, made: Any) -> None:
        if _is_fragile(made):
            self._fragile.append(made)

    def _object_of(self, identity: Any) -> Any:
        if self._persistent is None:
            self._refuse("a persistent id")
        made = self._persistent(identity)
        self._costs.earn(getattr(made, "earned", 0))
        return made

    def _remember(self, place: int) -> None:
        value = self._memo[place] = self._stack[-1]
        if isinstance(value, Unbuilt):
            value.places.append(place)


def _set_versions(costs: Costs, target: Any, state: Any) -> Any:
    """The one state of an OrderedDict that is set: the versions that `Module.state_dict` keeps at its dictionary."""
    if type(state) is not dict or not state.keys() <= {"_metadata"}:
        return None
    if "_metadata" in state:
        target._metadata = state["_metadata"]
    return target


def _named(value: Any) -> str:
    return value.name if isinstance(value, Allowed) else f"a {type(value).__name__}"


def check_plain(root: Any, refuse: Callable[[str], NoReturn]) -> int:
    """Refuse functions, raw storage and what has no state yet in the result; on the stack these may be.

    Returns how many values were looked at.
    """
    waiting, seen, count = [root], set(), 0
    while waiting:
        value = waiting.pop()
        count += 1
        if type(value) in _LEAVES or isinstance(value, type) or id(value) in seen:
            continue
        if isinstance(value, Allowed):
            refuse(f"the function or class {value.name} as a value")
        if getattr(type(value), "is_raw_storage", False):
            refuse("raw storage as a value")
        if isinstance(value, Unbuilt):
            refuse("an object without its state")
        holds = [inner for inner in _held(value) if type(inner) not in _LEAVES]
        if holds:
            seen.add(id(value))
            waiting.extend(holds)
    return count


def _held(value: Any) -> Iterable[Any]:
    """What lies in `value`, but for members of sets and keys, which were checked before."""
    if type(value) in _PLAIN_BOXES:
        return value.values() if type(value) is dict else value
    attributes = list(vars(value).values()) if hasattr(value, "__dict__") else []
    if isinstance(value, dict):
        return [*value.values(), *attributes]
    if isinstance(value, list | tuple | deque):
        return [*value, *attributes]
    return [*(value.flat if _has_objects(value) else ()), *attributes]


def _has_objects(value: Any) -> bool:
    return hasattr(type(value), "dtype") and bool(getattr(value.dtype, "hasobject", False))


def _is_fragile(value: Any) -> bool:
    """Whether it can hold anything, and freeing it frees that by recursion, without the care that lists take."""
    return isinstance(value, defaultdict | deque) or _has_objects(value)


def _check_links(fragile: list[Any], refuse: Callable[[str], NoReturn]) -> None:
    """Refuse long chains of containers whose end would take the whole stack of the thread that frees the first one."""
    links = sum([any([_is_fragile(inner) for inner in _held(one)]) for one in fragile])
    if links > _MOST_LINKS:
        refuse(f"{links} deques, default dictionaries or arrays of objects that directly hold others of them")


def _empty(fragile: Any) -> None:
    if _has_objects(fragile):
        fragile.fill(None)
    else:
        fragile.clear()


_STOP = ord(".")


def _push(value: Callable[[], Any]) -> Callable[[Unpickler], None]:
    return lambda machine: machine._stack.append(value())


def _packed(form: struct.Struct) -> Callable[[Unpickler], None]:
    return lambda machine: machine._stack.append(machine._number(form))


_BY_OPCODE: dict[bytes, Callable[[Unpickler], Any]] = {
    b"\x80": lambda m: m._take(1),  # PROTO
    b"\x95": lambda m: m._take(8),  # FRAME: how many bytes may be read at once
    b"N": _push(lambda: None),
    b"\x88": _push(lambda: True),
    b"\x89": _push(lambda: False),
    b"K": _packed(_U1),
    b"M": _packed(_U2),
    b"J": _packed(_I4),
    b"G": _packed(_F8),
    b"\x8a": lambda m: m._integer(_U1),  # LONG1
    b"\x8b": lambda m: m._integer(_I4),  # LONG4
    b"X": lambda m: m._text(_U4),
    b"\x8c": lambda m: m._text(_U1),
    b"\x8d": lambda m: m._text(_U8),
    b"U": lambda m: m._old_text(_U1),
    b"T": lambda m: m._old_text(_I4),
    b"B": lambda m: m._bytes(_U4),
    b"C": lambda m: m._bytes(_U1),
    b"\x8e": lambda m: m._bytes(_U8),
    b"\x96": lambda m: m._stack.append(m._take_changeable(m._number(_U8))),
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
    b"R": lambda m: m._call(),
    b"\x81": lambda m: m._new(),
    b"b": lambda m: m._build(),
    b"Q": lambda m: m._stack.append(m._object_of(m._stack.pop())),
    b"q": lambda m: m._remember(m._take(1)[0]),
    b"r": lambda m: m._remember(m._number(_U4)),
    b"\x94": lambda m: m._remember(len(m._memo)),
    b"h": lambda m: m._stack.append(m._memo[m._take(1)[0]]),
    b"j": lambda m: m._stack.append(m._memo[m._number(_U4)]),
    b"0": lambda m: m._stack.pop(),
    b"1": lambda m: m._since_mark(),
    b"2": lambda m: m._stack.append(m._stack[-1]),
}
_STEPS = {code[0]: step for code, step in _BY_OPCODE.items()}
