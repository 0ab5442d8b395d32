"""Make what gRPC needs for TLS: from files, or from the job's secret."""

from __future__ import annotations

from typing import Any, Protocol

from resilin._base import host_port
from resilin.errors import UsageError
from resilin.rpc.transports import introduction
from resilin.rpc.transports.grpc import certificate
from resilin.rpc.transports.introduction import NetworkAddress
from resilin.store.grpc_quiet import grpc
from resilin.store.transport import Tls


class Credentials(Protocol):
    """Of one worker."""

    def of_server(self) -> Any:
        """Return what its server shows, and asks of clients."""

    def to_peer(self, card: NetworkAddress) -> tuple[Any, str]:
        """Return what it shows to that worker's server and asks of it, and the name in that one's certificate."""


class OfSecret:
    """Of the job's secret and a worker's mark a key is made, and a certificate that the key signs.

    Who knows both has the worker's own key: the server shows the certificate and asks for the same one. So the secret
    is proved by both ends before anything is sent; and what strangers see of the certificate says nothing of the
    secret without the mark, which only members know.
    """

    def __init__(self, secret: str, mark: str) -> None:
        self._secret = secret
        self._own = self._made(mark)

    def _made(self, mark: str) -> tuple[bytes, bytes]:
        return certificate.made(introduction.derived(self._secret, "TLS key", mark))

    def of_server(self) -> Any:
        """See Credentials."""
        key, shown = self._own
        return grpc.ssl_server_credentials([(key, shown)], root_certificates=shown, require_client_auth=True)

    def to_peer(self, card: NetworkAddress) -> tuple[Any, str]:
        """See Credentials."""
        key, shown = self._made(card.mark)
        return grpc.ssl_channel_credentials(shown, key, shown), certificate.NAME


class OfFiles:
    """Of what files hold. UsageError names what is missing."""

    def __init__(self, tls: Tls) -> None:
        missing = [name for name in ("ca", "cert", "key") if getattr(tls, name) is None]
        if missing:
            raise UsageError(f"GrpcTransport: tls needs the files ca, cert and key, got none for {', '.join(missing)}")
        self._tls = tls
        self._ca, self._cert, self._key = (_read_file(getattr(tls, name)) for name in ("ca", "cert", "key"))

    def of_server(self) -> Any:
        """See Credentials."""
        return grpc.ssl_server_credentials(
            [(self._key, self._cert)], root_certificates=self._ca, require_client_auth=True
        )

    def to_peer(self, card: NetworkAddress) -> tuple[Any, str]:
        """See Credentials."""
        made = grpc.ssl_channel_credentials(self._ca, self._key, self._cert)
        return made, self._tls.server_name or host_port.parse(card.at, "an RPC address").host


def _read_file(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise UsageError(f"GrpcTransport: tls: cannot read {path}: {error.strerror}") from None
