"""The schema of an operator, "(Tensor x, float a=1.0) -> Tensor": read, and made of a function's annotations. Pure."""

from __future__ import annotations

import ast
import inspect
import re
import types
import typing
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from resilin.core import dtype as dtypes
from resilin.core.device import device
from resilin.core.tensor import Tensor
from resilin.errors import UsageError
from resilin.library import arguments

_WORDS: dict[Any, str] = {
    Tensor: "Tensor",
    int: "SymInt",
    float: "float",
    bool: "bool",
    str: "str",
    complex: "Scalar",
    int | float | bool: "Scalar",
    dtypes.dtype: "ScalarType",
    device: "Device",
}
_LISTED = ("Tensor", "SymInt", "float", "bool", "str", "Scalar")


@dataclass(frozen=True)
class Schema:
    """What an operator takes and gives. `returns` are types as they are written."""

    signature: inspect.Signature
    mutated: frozenset[str]
    returns: tuple[str, ...]
    text: str
    takers: tuple[tuple[str, Callable[[Any], Any]], ...] = ()
    """By name, what makes the arguments what their types say."""

    def take(self, bound: inspect.BoundArguments, qualname: str) -> None:
        """Make the given arguments what their types say. RuntimeError for what is not of its type."""
        for name, take in self.takers:
            if name not in bound.arguments:
                continue
            value = bound.arguments[name]
            try:
                bound.arguments[name] = take(value)
            except arguments.Mismatch:
                parameters = self.signature.parameters
                raise RuntimeError(
                    f"{qualname}() Expected a value of type '{arguments.shown(str(parameters[name].annotation))}' for "
                    f"argument '{name}' but instead found type '{type(value).__name__}'.\n"
                    f"Position: {list(parameters).index(name)}\nValue: {value!r:.200}\n"
                    f"Declaration: {qualname}{self.text}"
                ) from None

    def may_alias(self, name: str) -> bool:
        """Whether a result may share memory with argument `name`: "Tensor(a) x", or "Tensor(a!) x"."""
        marked = re.match(r"\w+\(([^)!]+)!?\)", str(self.signature.parameters[name].annotation))
        return marked is not None and any(f"({marked[1]})" in one or f"({marked[1]}!)" in one for one in self.returns)


def parsed(text: str) -> Schema:
    """Read a schema without its name. UsageError for what is none."""
    head, arrow, tail = text.strip().rpartition("->")
    if not arrow or not head.strip().startswith("(") or not head.strip().endswith(")"):
        raise UsageError(f"schema: expected '(TYPE NAME, ...) -> TYPE', got {text!r}")
    parameters, mutated = [], set()
    kind: Any = inspect.Parameter.POSITIONAL_OR_KEYWORD
    for part in _parts(head.strip()[1:-1]):
        if part == "*":
            kind = inspect.Parameter.KEYWORD_ONLY
            continue
        found = re.fullmatch(r"(?P<type>.*[\s\]?)])\s*(?P<name>\w+)\s*(?:=\s*(?P<default>.+))?", part)
        if found is None:
            raise UsageError(f"schema: expected 'TYPE NAME' or 'TYPE NAME=DEFAULT', got {part!r} in {text!r}")
        default = inspect.Parameter.empty if found["default"] is None else _value(found["default"])
        written = found["type"].strip()
        if written == "float" and type(default) is int:
            default = float(default)
        parameters.append(inspect.Parameter(found["name"], kind, default=default, annotation=written))
        if "!" in found["type"]:
            mutated.add(found["name"])
    tail = tail.strip()
    inner = tail[1:-1] if tail.startswith("(") and tail.endswith(")") else tail
    made = {one.name: arguments.taker(one.annotation) for one in parameters}
    takers = tuple((name, take) for name, take in made.items() if take is not None)
    return Schema(inspect.Signature(parameters), frozenset(mutated), tuple(_parts(inner)), text.strip(), takers)


def _parts(text: str) -> Iterator[str]:
    """The parts between commas that are in no brackets and no quotes."""
    depth, quote, start = 0, "", 0
    for at, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter in "([":
            depth += 1
        elif letter in ")]":
            depth -= 1
        elif letter == "," and not depth:
            yield text[start:at].strip()
            start = at + 1
    if text[start:].strip():
        yield text[start:].strip()


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        if re.fullmatch(r"\w+", text):  # a word of PyTorch's, such as Mean or contiguous_format
            return text
        raise UsageError(f"schema: expected a default value, got {text!r}") from None


def infer_schema(
    prototype_function: Callable[..., Any], /, *, mutates_args: Collection[str] | str, op_name: str | None = None
) -> str:
    """Return the schema that a function's annotations say. ValueError for a parameter without one, or with another."""
    signature = inspect.signature(prototype_function)
    hints = typing.get_type_hints(prototype_function)
    written, keyword_only = [], False
    mutated = set(signature.parameters) if mutates_args == "unknown" else set(mutates_args)
    unknown = mutated - set(signature.parameters)
    if unknown:
        raise ValueError(f"infer_schema(func): {sorted(unknown)} in mutates_args are no parameters of the function")
    for place, (name, parameter) in enumerate(signature.parameters.items()):
        if name not in hints:
            raise ValueError(f"infer_schema(func): Parameter {name} must have a type annotation. Got {signature}")
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword_only:
            keyword_only = True
            written.append("*")
        word = _word(hints[name], f"Parameter {name}")
        if name in mutated and word.startswith("Tensor"):
            word = f"Tensor(a{place}!)" + word.removeprefix("Tensor")
        default = "" if parameter.default is parameter.empty else f"={_text(parameter.default)}"
        written.append(f"{word} {name}{default}")
    return f"{op_name or ''}({', '.join(written)}) -> {_returned(hints.get('return', Any))}"


def _text(value: Any) -> str:
    if isinstance(value, str):
        return f'"{value}"'
    return str(value).rpartition(".")[2] if isinstance(value, dtypes.dtype) else repr(value)


def _returned(kind: Any) -> str:
    if kind in (None, type(None)):
        return "()"
    if typing.get_origin(kind) is tuple:
        return f"({', '.join(_word(one, 'the return value') for one in typing.get_args(kind))})"
    return _word(kind, "the return value")


def _word(kind: Any, what: str) -> str:
    origin, wanted = typing.get_origin(kind), typing.get_args(kind)
    if kind in _WORDS:
        return _WORDS[kind]
    if origin in (typing.Union, types.UnionType):
        rest = [one for one in wanted if one is not type(None)]
        if len(rest) < len(wanted):
            inner = rest[0] if len(rest) == 1 else typing.Union[tuple(rest)]  # noqa: UP007 - of a number of types
            return f"{_word(inner, what)}?"
        if set(rest) == {int, float, bool}:
            return "Scalar"
    if origin in (list, Sequence) and wanted:
        word = _word(wanted[0], what)
        if word.rstrip("?") in _LISTED:
            return f"{word}[]"
    raise ValueError(
        f"infer_schema(func): {what} has unsupported type {kind}; expected Tensor, int, float, bool, str, dtype, "
        "device, a list or Sequence of them, or an Optional"
    )
