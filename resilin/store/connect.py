"""From a URL to a store. The network client, which loads grpc, is imported only when a URL asks for it."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

from resilin.errors import UsageError
from resilin.store.base import Store
from resilin.store.file import FileStore
from resilin.store.memory import MemoryStore

if TYPE_CHECKING:
    from resilin.store.client import ClientStore

FORMS = "memory://, file:///path, embedded://host:port, etcd://[user:password@]host:port[,host:port]"
_TLS_FIELDS = ("ca", "cert", "key", "server_name")


def connect(url: str, secret: str | None = None, timeout_s: float = 5.0, *, administers: bool = False) -> Store:
    """Open the store at `url`; each of its calls takes at most `timeout_s` seconds.

    memory://                 a new, empty store in this process
    file:///path              a folder that all nodes share; made when it is not there
    embedded://host:port      the store that `resilin store serve` or an agent serves; `secret` is the job's
    etcd://host:port,...      a real etcd; users as user:password@, TLS as ?ca=FILE&cert=FILE&key=FILE&server_name=NAME
                              (also for embedded://); `secret` is not sent to it

    administers: root may use a store of loopback that another user serves without a secret, as commands do; a member of
    a job joins only its own user's or root's.

    Raises UsageError for a URL it cannot read, StoreTimeout (which names the endpoints) when nobody answers within
    `timeout_s`, StoreRefused when the store does not let us in. The caller closes the store.
    """
    scheme, separator, rest = url.partition("://")
    if separator and scheme == "memory" and not rest:
        return MemoryStore()
    if separator and scheme == "file" and rest.startswith("/"):
        return FileStore(unquote(rest), timeout_s=timeout_s)
    if separator and scheme in ("embedded", "etcd"):
        client = _client(url, scheme, secret, timeout_s, administers and os.geteuid() == 0)
        try:
            client.ping()
        except BaseException:
            client.close()
            raise
        return client
    raise UsageError(f"store URL {without_password(url)!r}: expected one of {FORMS}")


def without_password(url: str) -> str:
    """`url` as it may be shown: `user:password@` becomes `user:***@`, whatever characters the password has."""
    return re.sub(r"(^|//)([^/:@]*):.*@", r"\1\2:***@", url)


def _client(url: str, scheme: str, secret: str | None, timeout_s: float, of_anybody: bool) -> ClientStore:
    parts = urlsplit(url)
    user, _, hosts = parts.netloc.rpartition("@")
    name, _, password = user.partition(":")
    endpoints = [host.strip() for host in hosts.split(",")]
    for endpoint in endpoints:
        host, _, port = endpoint.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise UsageError(f"store URL {without_password(url)!r}: expected host:port, got {endpoint!r}")
    query = dict(parse_qsl(parts.query))
    unknown = sorted(set(query) - set(_TLS_FIELDS))
    if unknown or parts.path.strip("/"):
        odd = unknown[0] if unknown else parts.path
        raise UsageError(
            f"store URL {without_password(url)!r}: {odd!r} is not known there; expected ?ca=, cert=, key=, server_name="
        )
    from resilin.store.client import ClientStore  # loads grpc (60 to 100 ms), which only network stores need
    from resilin.store.transport import Tls  # grpc as well

    tls = Tls(**query) if query else None
    login: dict[str, Any] = {"user": unquote(name), "password": unquote(password)} if user else {}
    if scheme == "embedded" and not user:
        login = {"secret": secret, "own_only": secret is None and tls is None and not of_anybody}
    return ClientStore(endpoints, timeout_s=timeout_s, tls=tls, **login)
