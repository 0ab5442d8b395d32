"""Reads flags of `elastic-run` from a TOML file: `max-restarts = 3`, with dashes or underscores.

Every value becomes the text that the flag would have on a command line, so one place checks them all. A list is its
items between commas; a table is one of the maps that a flag takes (`--rdzv-conf`, `--redirects`, `--tee`).
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from typing import Any

from resilin._base import json_text, toml_text
from resilin._base.text import shown
from resilin.errors import UsageError

_PAIRS = {"rdzv_conf": "=", "redirects": ":", "tee": ":"}  # what joins a key of a table and its value


def read(path: str, flags: Collection[str]) -> dict[str, tuple[str, str]]:
    """By flag (with underscores): where in the file it stands, for errors, and its text.

    UsageError: the file cannot be read, is no TOML, or has a key that is none of `flags`.
    """
    result: dict[str, tuple[str, str]] = {}
    for key, value in _load(path).items():
        name = key.replace("-", "_")
        where = f"{path}: {key:.80}"
        if name not in flags:
            raise UsageError(f"{where}: {_unknown(name, flags)}")
        if name in result:
            raise UsageError(f"{where}: stands there twice, with dashes and with underscores")
        result[name] = (where, _text(where, name, value))
    return result


def _load(path: str) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            return toml_text.parse(json_text.read(file))
    except OSError as error:
        raise UsageError(f"--config {path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"--config {path}: expected TOML, such as `max-restarts = 3`: {error}") from None


def _unknown(name: str, flags: Collection[str]) -> str:
    near = difflib.get_close_matches(name, flags, n=1)
    hint = f"did you mean {near[0].replace('_', '-')}?" if near else "elastic-run --help lists them"
    return f"no flag of elastic-run; {hint}"


def _text(where: str, name: str, value: Any) -> str:
    if isinstance(value, Mapping) and name in _PAIRS:
        return ",".join(f"{key}{_PAIRS[name]}{_text(where, '', item)}" for key, item in value.items())
    if isinstance(value, list):
        return ",".join(_text(where, "", item) for item in value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    raise UsageError(f"{where}: expected a text, a number, true, false or a list, got {shown(value)}")
