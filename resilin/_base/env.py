"""Reads the environment: the one place that may touch `os.environ`. The last three functions alone write it."""

from __future__ import annotations

import os
from collections.abc import Mapping

from resilin.errors import UsageError


def get(name: str, default: str | None = None) -> str | None:
    """The value of variable `name`, or `default` when it is unset or empty."""
    return os.environ.get(name) or default


def get_int(name: str, default: int | None = None) -> int | None:
    """The value of variable `name` as an integer; UsageError names the variable when it is none."""
    text = get(name)
    if text is None:
        return default
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"environment variable {name}: expected an integer, got {text!r}") from None


def require(name: str, why: str) -> str:
    """The value of variable `name`; UsageError says `why` it is needed when it is missing."""
    text = get(name)
    if text is None:
        raise UsageError(f"environment variable {name} is not set, but {why}")
    return text


def snapshot(overrides: Mapping[str, str] | None = None) -> dict[str, str]:
    """A copy of the whole environment with `overrides` applied, for a child process."""
    return {**os.environ, **(overrides or {})}


def set_for_c(name: str, value: str) -> None:
    """Set variable `name` for C libraries of this process, unless it is set. `os.environ` stays as it is, and with it
    what workers get (`snapshot`)."""
    if name not in os.environ:
        os.putenv(name, value)


def replace(variables: Mapping[str, str]) -> None:
    """Make `variables` this process's environment: a worker just forked from a template, which has another one."""
    os.environ.clear()
    os.environ.update(variables)


def prepend_path(name: str, folder: str) -> None:
    """Put `folder` first in the list of folders in variable `name`, of this process and of those it starts."""
    folders = [one for one in os.environ.get(name, "").split(os.pathsep) if one and one != folder]
    os.environ[name] = os.pathsep.join([folder, *folders])
