"""Read and write network addresses: the one place that knows how a host and a port stand together. Pure.

An IPv6 address stands in brackets wherever a port may follow: in `[::1]:2940` the port is known, `::1:2940` is an
address as it stands. So one without brackets is refused there, with the forms that may be meant. Where no port can
follow (`host`), both forms are taken, and the bare one is what `bind` and `connect` take.
"""

from __future__ import annotations

import socket
from typing import NamedTuple

from resilin.errors import UsageError

MAX_PORT = 65535
_SHOWN_CHARS = 80  # of what could not be read
_NO_HOST = set("/@[]?#\\,\"'<>{}|^` ")  # beside what cannot be printed


class HostPort(NamedTuple):
    """Where somebody listens. Its text is what `parse` reads."""

    host: str
    port: int

    def __str__(self) -> str:
        return join(self.host, self.port)


def join(host: str, port: int | str) -> str:
    """`host:port`, with an IPv6 address in brackets."""
    return f"{in_url(host)}:{port}"


def in_url(host: str) -> str:
    """`host` as it stands before a colon: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host


def parse(text: str, what: str, *, default_port: int | None = None, lowest_port: int = 1) -> HostPort:
    """The host and port of `HOST:PORT` or `[IPV6]:PORT`. `default_port` may be left out.

    UsageError, which begins with `what`: the text is something else.
    """
    if text.startswith("["):
        inside, bracket, rest = text[1:].replace("%25", "%", 1).partition("]")  # so an interface is named in URLs
        if not bracket or not is_ipv6(inside) or rest[:1] not in ("", ":"):
            raise _refusal(text, what, "", default_port)
        name, port = inside, rest
    elif text.count(":") > 1:
        raise _refusal(text, what, _meant(text, default_port), default_port)
    else:
        name, colon, digits = text.partition(":")
        port = colon + digits
        if not _may_be_a_name(name):
            raise _refusal(text, what, "", default_port)
    if not port and default_port is not None:
        return HostPort(name, default_port)
    number = _number(port[1:])
    if number is None or not lowest_port <= number <= MAX_PORT:
        known = f": ports are {lowest_port} to {MAX_PORT}" if number is not None else ""
        raise _refusal(text, what, known, default_port)
    return HostPort(name, number)


def host(text: str, what: str) -> str:
    """The host that `text` is, without a port: a name, an IPv4 address, or an IPv6 address with or without brackets.

    UsageError, which begins with `what`: it is something else.
    """
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    if is_ipv6(bare) or (bare == text and ":" not in text and _may_be_a_name(text)):
        return bare
    if ":" not in text:
        advice = ""
    elif text.startswith("[") or text.count(":") == 1:
        advice = ": the port is given elsewhere"
    else:
        advice = ": no such IPv6 address"
    raise UsageError(f"{what}: expected a name or an address, got {_shown(text)}{advice}")


def packed(address: str) -> bytes | None:
    """The bytes of a numeric address; those of an IPv4 address where it is one of IPv6 that stands for it.

    None: a name.
    """
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            found = socket.inet_pton(family, address.partition("%")[0] if family == socket.AF_INET6 else address)
        except (OSError, ValueError, UnicodeError):  # ValueError: a character 0
            continue
        return found[12:] if found.startswith(bytes(10) + b"\xff\xff") else found
    return None


def is_ipv6(text: str) -> bool:
    """Whether `text` is an IPv6 address without brackets; an interface may follow, as in `fe80::1%eth0`."""
    _, percent, scope = text.partition("%")
    return ":" in text and packed(text) is not None and (not percent or (":" not in scope and _may_be_a_name(scope)))


def _may_be_a_name(text: str) -> bool:
    return bool(text) and text.isprintable() and _NO_HOST.isdisjoint(text)


def _number(digits: str) -> int | None:
    return int(digits) if digits.isascii() and digits.isdecimal() and len(digits) <= 5 else None


def _meant(text: str, default_port: int | None) -> str:
    """What a text with colons and without brackets may stand for."""
    name, _, digits = text.rpartition(":")
    number = _number(digits)
    forms = [f"[{name}]:{digits}"] if is_ipv6(name) and number is not None and number <= MAX_PORT else []
    if is_ipv6(text):
        forms.append(f"[{text}]" if default_port is not None else f"[{text}]:PORT")
    return f": an IPv6 address stands in brackets, {' or '.join(forms)}" if forms else ""


def _refusal(text: str, what: str, meant: str, default_port: int | None) -> UsageError:
    port = "" if default_port is None else f" (the port may be left out: {default_port})"
    return UsageError(f"{what}: expected HOST:PORT or [IPV6]:PORT{port}, got {_shown(text)}{meant}")


def _shown(text: str) -> str:
    """What could not be read, so that it can be printed anywhere."""
    return ascii(text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}...")
