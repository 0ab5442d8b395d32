"""What Python's own plain values and containers are pickled with, and what each makes. Types and values are checked."""

from __future__ import annotations

import re
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final

from resilin._base.pickles.costs import Costs
from resilin._base.pickles.unpickling import Allowed

_FRACTION = re.compile(r"[-+]?\d+(/\d+)?", re.ASCII)
_MOST_DIGITS = 1 << 16  # of a decimal number: making one costs more than its digits
_NAMES_OF_PYTHON_2 = {"int": "long", "str": "unicode", "range": "xrange"}
_SCALARS = (int, float, str, bool, type(None))


def _ordered(costs: Costs, pairs: Any = ()) -> OrderedDict[Any, Any]:
    """As Python 2 pickles one: of a list of pairs."""
    made: OrderedDict[Any, Any] = OrderedDict()
    for pair in listed(pairs):
        key, value = listed(pair)
        made[costs.key(key)] = value
    return made


def _counter(counts: Any = None) -> Counter[Any]:
    if counts is not None and type(counts) is not dict:
        raise TypeError("a Counter is made of a dict")
    return Counter(counts)


def _set(costs: Costs, items: Any = ()) -> set[Any]:
    return {costs.key(item) for item in listed(items)}


def _frozenset(costs: Costs, items: Any = ()) -> frozenset[Any]:
    return frozenset(_set(costs, items))


def listed(items: Any) -> Any:
    """`items`, a list or tuple. TypeError for anything else."""
    if type(items) not in (list, tuple):
        raise TypeError("a set or dictionary is made of a list")
    return items


def _encoded(text: Any, encoding: Any = "latin1") -> bytes:
    if type(text) is not str or type(encoding) is not str or encoding not in ("latin1", "latin-1", "utf-8"):
        raise TypeError("bytes are encoded in latin1")
    return text.encode(encoding)


def _bytearray(data: Any = b"", encoding: Any = "latin-1") -> bytearray:
    return bytearray(data if type(data) is bytes else _encoded(data, encoding))


def _complex(real: Any, imag: Any) -> complex:
    if type(real) is not float or type(imag) is not float:
        raise TypeError("a complex number has two parts")
    return complex(real, imag)


_CONTAINERS: dict[str, tuple[Callable[..., Any], bool]] = {  # and whether it counts
    "builtins.set": (_set, True),
    "builtins.frozenset": (_frozenset, True),
    "builtins.bytearray": (_bytearray, False),
    "builtins.complex": (_complex, False),
    "collections.OrderedDict": (_ordered, True),
    "collections.Counter": (_counter, False),
    "_codecs.encode": (_encoded, False),
}


# -- what PyTorch does not read without being told, and objects between ranks may hold


def _slice(*bounds: Any) -> slice:
    if len(bounds) != 3 or not all(type(bound) in _SCALARS for bound in bounds):
        raise TypeError("a slice has three bounds, plain ones")
    return slice(*bounds)


def _range(costs: Costs, *bounds: Any) -> range:
    if not all(type(bound) is int for bound in bounds):
        raise TypeError("a range has bounds that are integers")
    costs.spend_to_divide(*bounds)  # for its length
    return range(*bounds)


def _deque(items: Any = (), most: Any = None) -> deque[Any]:
    if most is not None and type(most) is not int:
        raise TypeError("a deque's length is an integer")
    return deque(listed(items), most)


def _defaultdict(factory: Any = None) -> defaultdict[Any, Any]:
    if factory is None:
        return defaultdict(None)
    if not isinstance(factory, Allowed) or factory.kind is None:
        raise TypeError("a default dictionary is made with a class")
    return defaultdict(factory.kind)


def _fraction(costs: Costs, *parts: Any) -> Fraction:
    if len(parts) == 2 and all(type(part) is int for part in parts):
        costs.spend_to_divide(*parts)
        return Fraction(*parts)
    if len(parts) != 1 or type(parts[0]) is not str or not _FRACTION.fullmatch(parts[0]):  # no exponents, which cost
        raise TypeError("a fraction has a numerator and a denominator")
    return Fraction(parts[0])


def _decimal(text: Any) -> Decimal:
    if type(text) is not str or len(text) > _MOST_DIGITS:
        raise TypeError(f"a decimal number is text of at most {_MOST_DIGITS} digits")
    return Decimal(text)


def _timedelta(*parts: Any) -> timedelta:
    if len(parts) > 3 or not all(type(part) is int for part in parts):
        raise TypeError("a time's difference has three integers: days, seconds, microseconds")
    return timedelta(*parts)


def _timezone(*parts: Any) -> timezone:
    if not parts or type(parts[0]) is not timedelta or not all(type(part) is str for part in parts[1:]):
        raise TypeError("a timezone is an offset and a name")
    return timezone(*parts)


def _date(packed: Any) -> date:
    year, month, day = _fields(packed, 4, 0)[:3]
    return date(year, month, day)


def _time(packed: Any, zone: Any = None) -> time:
    data = _bytes(packed, 6)
    hour, minute, second = data[0] & 127, data[1], data[2]
    return time(hour, minute, second, int.from_bytes(data[3:], "big"), _zone(zone), fold=data[0] >> 7)


def _datetime(packed: Any, zone: Any = None) -> datetime:
    year, month, day, fold, data = _fields(packed, 10, 1)
    microseconds = int.from_bytes(data[7:], "big")
    return datetime(year, month, day, data[4], data[5], data[6], microseconds, _zone(zone), fold=fold)


def _fields(packed: Any, count: int, folds: int) -> tuple[int, int, int, int, bytes]:
    data = _bytes(packed, count)
    fold = data[2] >> 7 if folds else 0
    return int.from_bytes(data[:2], "big"), data[2] & 127 if folds else data[2], data[3], fold, data


def _bytes(packed: Any, count: int) -> bytes:
    """As Python packs dates and times: it takes them back unchecked."""
    if type(packed) is not bytes or len(packed) != count:
        raise TypeError(f"a date or time is {count} bytes")
    return packed


def _zone(zone: Any) -> timezone | None:
    if zone is not None and type(zone) is not timezone:
        raise TypeError("a timezone is none")
    return zone


def _empty_only(kind: type) -> Callable[..., Any]:
    def empty(*arguments: Any) -> Any:
        if arguments:
            raise TypeError(f"{kind.__name__} is called, which pickles only name")
        return kind()

    return empty


_COUNTING = (_range, _fraction)
_VALUES: dict[str, Callable[..., Any]] = {
    "builtins.slice": _slice,
    "builtins.range": _range,
    "collections.deque": _deque,
    "collections.defaultdict": _defaultdict,
    "fractions.Fraction": _fraction,
    "decimal.Decimal": _decimal,
    "datetime.timedelta": _timedelta,
    "datetime.timezone": _timezone,
    "datetime.date": _date,
    "datetime.time": _time,
    "datetime.datetime": _datetime,
}
_FACTORIES = (int, float, str, bool, bytes, list, dict, tuple)  # of default dictionaries, beside what is above
_KINDS: dict[str, type] = {
    "builtins.set": set,
    "builtins.frozenset": frozenset,
    "builtins.bytearray": bytearray,
    "builtins.complex": complex,
    "collections.OrderedDict": OrderedDict,
    "collections.Counter": Counter,
    "collections.deque": deque,
    "collections.defaultdict": defaultdict,
    "fractions.Fraction": Fraction,
    "decimal.Decimal": Decimal,
    "datetime.timedelta": timedelta,
}


def _name(text: str) -> tuple[str, str]:
    module, _, name = text.rpartition(".")
    return module, name


def _allowed(text: str, call: Callable[..., Any], counts: bool = False) -> Allowed:
    return Allowed(text, call, counts, _KINDS.get(text))


def _in_python_2(names: Mapping[tuple[str, str], Allowed]) -> dict[tuple[str, str], Allowed]:
    """The names as protocols below 3 write them, which are those that Python 2 had."""
    return {
        ("__builtin__", _NAMES_OF_PYTHON_2.get(name, name)): one
        for (module, name), one in names.items()
        if module == "builtins"
    }


_BY_NAME = {_name(text): _allowed(text, call, counts) for text, (call, counts) in _CONTAINERS.items()}
CONTAINERS: Final[Mapping[tuple[str, str], Allowed]] = {**_BY_NAME, **_in_python_2(_BY_NAME)}
_BY_VALUE = {
    **{_name(text): _allowed(text, call, call in _COUNTING) for text, call in _VALUES.items()},
    **{
        ("builtins", kind.__name__): Allowed(f"builtins.{kind.__name__}", _empty_only(kind), kind=kind)
        for kind in _FACTORIES
    },
}
VALUES: Final[Mapping[tuple[str, str], Allowed]] = {**_BY_VALUE, **_in_python_2(_BY_VALUE)}
VALUE_KEYS: Final = frozenset({Fraction, Decimal, timedelta, timezone, date, time, datetime, range})
