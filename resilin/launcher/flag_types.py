"""What single flags may hold, beyond what argparse checks: names, numbers, output files, and the login to an etcd."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

from resilin._base import env, private_files
from resilin._base.host_port import MAX_PORT
from resilin._base.private_files import NotOurs
from resilin._base.secret import read_file
from resilin.errors import UsageError
from resilin.store.connect import without_password

PASSWORD_VARIABLE = "RESILIN_ETCD_PASSWORD"
MAX_NAME_CHARS = 200


@dataclass(frozen=True, kw_only=True)
class Login:
    """A user of an etcd; `user` is empty when it asks for none."""

    user: str = ""
    password: str = field(default="", repr=False)


def nodes(text: str) -> tuple[int, int]:
    """--nnodes: the least and the most nodes."""
    try:
        low, _, high = text.partition(":")
        result = int(low), int(high or low)
    except ValueError:
        result = (0, 0)
    if not 1 <= result[0] <= result[1]:
        raise UsageError(f"--nnodes: expected a number or MIN:MAX with 1 <= MIN <= MAX, got {text!r}")
    return result


def job_name(name: str) -> str:
    """`name`, which becomes a part of keys and of a folder's name."""
    if not name or len(name) > MAX_NAME_CHARS or "/" in name or not name.isprintable():
        raise UsageError(
            f"--rdzv-id: expected 1 to {MAX_NAME_CHARS} printable characters without a slash, got {name[:60]!a}"
        )
    return name


def port(flag: str, number: int, most: int = MAX_PORT) -> int:
    """`number`, which 0 (any) to `most` may be."""
    if not 0 <= number <= most:
        raise UsageError(f"{flag}: expected a port from 0 to {most}, got {number}")
    return number


def node_rank(number: int, most_nodes: int) -> int:
    """`number`, which -1 (any) to the number of nodes less one may be."""
    if not -1 <= number < most_nodes:
        raise UsageError(f"--node-rank: expected 0 to {most_nodes - 1} (see --nnodes), got {number}")
    return number


def folder(flag: str, text: str | None, *, make: bool = True) -> Path | None:
    """The folder that `flag` names, made when it is not there (unless not `make`); files can be made in it."""
    if not text:
        return None
    path = Path(text)
    if not make:
        return path
    try:
        private_files.make_folders(path)
    except OSError as error:
        raise UsageError(f"{flag} {text}: cannot make this folder: {error.strerror}") from None
    if not os.access(path, os.W_OK | os.X_OK):
        raise UsageError(f"{flag} {text}: no permission to write there")
    return path


def output_file(flag: str, text: str | None, *, make: bool = True) -> Path | None:
    """The file that `flag` names, made when it is not there (unless not `make`); it can be appended to."""
    if not text or not make:
        return Path(text) if text else None
    try:
        os.close(private_files.open_log(text))
    except NotOurs as error:
        raise UsageError(f"{flag}: {error}") from None
    except OSError as error:  # among them a named pipe that nobody reads
        raise UsageError(f"{flag} {text}: cannot be written: {error.strerror}") from None
    return Path(text)


def hang_timeout(text: str) -> float | None:
    """--hang-timeout: seconds; 0 for `auto`; None for `off`."""
    if text in ("auto", "off"):
        return 0.0 if text == "auto" else None
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < math.inf:
        raise UsageError(f"--hang-timeout: expected seconds above 0, auto or off, got {text!r}")
    return seconds


def etcd(endpoint: str, conf: Mapping[str, str]) -> tuple[str, Login]:
    """The endpoint without its login, and the login.

    The user comes from `user` of --rdzv-conf or from the endpoint (`user@`), the password from the file `password_file`
    of --rdzv-conf, else from RESILIN_ETCD_PASSWORD, else from the endpoint, where every user of this machine can read
    it.
    """
    scheme, separator, rest = endpoint.rpartition("://")
    account, _, hosts = rest.rpartition("@")
    name, _, shown = account.partition(":")
    user = conf.get("user") or unquote(name)
    if "password_file" in conf:
        password = read_file(conf["password_file"], "--rdzv-conf password_file")
    else:
        password = env.get(PASSWORD_VARIABLE) or unquote(shown)
    if user and not password:
        raise UsageError(
            f"--rdzv-endpoint {without_password(endpoint)}: expected a password for {user!r}: --rdzv-conf "
            f"password_file=FILE, or the environment variable {PASSWORD_VARIABLE}"
        )
    if not user and "password_file" in conf:
        raise UsageError("--rdzv-conf password_file: expected user=NAME, too")
    return f"{scheme}{separator}{hosts}", Login(user=user, password=password if user else "")
