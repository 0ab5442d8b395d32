"""From a URL to a store. The network client, which loads grpc, is imported only when a URL asks for it."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote

from resilin._base import host_port
from resilin._base import secret as job_secret
from resilin._base.host import is_on_loopback
from resilin.errors import UsageError
from resilin.store.base import Store
from resilin.store.file import FileStore
from resilin.store.memory import MemoryStore

if TYPE_CHECKING:
    from resilin.store.client import ClientStore

FORMS = "memory://, file:///path, embedded://host[:port], etcd://[user:password@]host[:port][,host[:port]]"
EMBEDDED_PORT = 29400  # as torchrun's c10d backend
DEFAULT_PORTS = {"embedded": EMBEDDED_PORT, "etcd": 2379}  # the latter is etcd's own
_TLS_FIELDS = ("ca", "cert", "key", "server_name")


def connect(url: str, secret: str | None = None, timeout_s: float = 5.0, *, administers: bool = False) -> Store:
    """Open the store at `url`; each of its calls takes at most `timeout_s` seconds.

    memory://                 a new, empty store in this process
    file:///path              a folder that all nodes share; made when it is not there
    embedded://host:port      the store that `resilin store serve` or an agent serves; `secret` is the job's
    etcd://host:port,...      a real etcd; users as user:password@, TLS as ?ca=FILE&cert=FILE&key=FILE&server_name=NAME
                              (also for embedded://); `secret` is not sent to it

    An IPv6 address stands in brackets. A port that is left out is 29400, that of an etcd 2379.

    administers: root may use a store of loopback that another user serves without a secret, as commands do; a member of
    a job joins only its own user's or root's.

    Raises UsageError for a URL it cannot read or a secret that is too short, StoreTimeout (which names the endpoints)
    when nobody answers within `timeout_s`, StoreRefused when the store does not let us in. The caller closes the store.
    """
    scheme, separator, rest = url.partition("://")
    if separator and scheme == "memory" and not rest:
        return MemoryStore()
    if separator and scheme == "file" and rest.startswith("/"):
        return FileStore(unquote(rest), timeout_s=timeout_s)
    if separator and scheme in ("embedded", "etcd"):
        secret = job_secret.checked(secret or "", "the store's secret") or None
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
    return re.sub(r"^((?:\w+://)?[^/:@]*):.*@", r"\1:***@", url)


def endpoints_of(hosts: str, what: str, default_port: int) -> list[host_port.HostPort]:
    """Those of a list with commas. UsageError, which begins with `what`, for one that is none."""
    return [host_port.parse(each.strip(), what, default_port=default_port) for each in hosts.split(",")]


def url_of(text: str) -> str:
    """The URL that people mean: HOST or HOST:PORT alone is an embedded store."""
    return text if "://" in text else f"embedded://{text}"


def _parts(url: str) -> tuple[str, str, str]:
    """What stands before the path of a URL, the path, and the query. Of brackets `host_port` knows."""
    tail = url.partition("://")[2].partition("#")[0]
    before, _, query = tail.partition("?")
    netloc, slash, path = before.partition("/")
    return netloc, slash + path, query


def _client(url: str, scheme: str, secret: str | None, timeout_s: float, of_anybody: bool) -> ClientStore:
    netloc, path, query_text = _parts(url)
    user, _, hosts = netloc.rpartition("@")
    name, _, password = user.partition(":")
    endpoints = endpoints_of(hosts, f"store URL {without_password(url)!r}", DEFAULT_PORTS[scheme])
    query = dict(parse_qsl(query_text))
    unknown = sorted(set(query) - set(_TLS_FIELDS))
    if unknown or path.strip("/"):
        odd = unknown[0] if unknown else path
        raise UsageError(
            f"store URL {without_password(url)!r}: {odd!r} is not known there; expected ?ca=, cert=, key=, server_name="
        )
    from resilin.store.client import ClientStore  # loads grpc (60 to 100 ms), which only network stores need
    from resilin.store.transport import Tls  # grpc as well

    tls = Tls(**query) if query else None
    login: dict[str, Any] = {"user": unquote(name), "password": unquote(password)} if user else {}
    if scheme == "embedded" and user and tls is None and not all(is_on_loopback(each.host) for each in endpoints):
        raise UsageError(
            f"store URL {without_password(url)!r}: the password would be sent in clear text: give the job's secret "
            "instead (RESILIN_SECRET or --secret-file), which is proved without being sent, or use TLS (?ca=FILE)"
        )
    if scheme == "embedded" and not user:
        login = {"secret": secret, "own_only": secret is None and tls is None and not of_anybody}
    return ClientStore([str(each) for each in endpoints], timeout_s=timeout_s, tls=tls, **login)
