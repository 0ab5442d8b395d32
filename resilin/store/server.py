"""The embedded server: etcd v3's gRPC API over a `MemoryStore`, so one client serves both and `etcdctl` can look in.

With a secret, Authenticate (see `store.token` and `store.gate`) is the only call a stranger gets an answer to, and
nothing else of a request is decoded before its token was checked. Without one the server refuses to listen beyond
loopback, and a call is let in when the kernel says that the connection's other end is a process of this one's user, or
root's. Who waits in front of both: `store.front_proxy`.
"""

from __future__ import annotations

import errno
import os
import socket
import tempfile
import threading
from collections.abc import Iterator
from typing import Any, NoReturn
from urllib.parse import quote

from google.protobuf.message import DecodeError

from resilin._base import host_port
from resilin._base import secret as job_secret
from resilin._base.host import is_on_loopback
from resilin._base.owned_folder import PREFIX, OwnedFolder
from resilin._base.threads import OwnedThread
from resilin.errors import Compacted, LeaseLost, SecretRequired, StoreError, UsageError
from resilin.store import token
from resilin.store.front_proxy import Connection, FrontProxy
from resilin.store.gate import Gate
from resilin.store.grpc_quiet import grpc
from resilin.store.memory import MemoryStore
from resilin.store.messages import METHODS, cls, new, path
from resilin.store.pool import DaemonPool
from resilin.store.service import Rejected, Service
from resilin.store.state import FutureRevision
from resilin.store.watch_stream import WatchStream

MAX_MESSAGE_BYTES = 4 << 20  # control data; etcd itself takes 1.5 MiB
GRACE_S = 0.2  # for calls under way; they take microseconds, only streams of foreign clients are cut after it
STOP_S = 5.0
_SOCKET_PATH_CHARS = 60  # the path of a Unix socket has 107, and some are the folder's own
_ADVICE = {
    errno.EADDRINUSE: "stop what uses the port (another node with --node-rank 0 on this host?), or choose another one",
    errno.EADDRNOTAVAIL: "this host does not have the address: serve the store on the host that has it",
    errno.EACCES: "ports below 1024 are the administrator's: choose another one",
    socket.EAI_NONAME: "no address is known under this name: check its spelling, or give an address",
}

_OPTIONS = (
    ("grpc.max_concurrent_streams", 100),  # of a connection: a call takes a thread, also one that was not let in
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_metadata_size", 16 << 10),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 1000),  # clients ping idle watches every few seconds
    ("grpc.keepalive_permit_without_calls", 1),
)


class PortTaken(UsageError):
    """Somebody else listens on the store's port, or has just taken it."""


class StoreServer:
    """Serves the data of `state`, which its owner may go on using directly and closes after the server.

    `port` 0 takes a free one. Raises SecretRequired for a host beyond loopback without a secret, PortTaken when another
    process has the port, UsageError when the address is not ours or cannot be used, or the secret is too short.
    """

    def __init__(self, state: MemoryStore, host: str = "127.0.0.1", port: int = 0, secret: str | None = None) -> None:
        secret = job_secret.checked(secret or "", "StoreServer: secret") or None
        self.host = host = host_port.host(host, "the store listens on")
        if secret is None and not is_on_loopback(host):
            raise SecretRequired(
                f"the store would listen on {host}, beyond loopback, without a secret: anybody there could steer the "
                "job. Give the job a secret, or listen on 127.0.0.1"
            )
        self._shared_state = state.hub
        self._pool = DaemonPool("store-server")
        self._server: Any = grpc.server(self._pool, options=_OPTIONS)
        sockets = _listen(host, port)
        self.port = int(sockets[0].getsockname()[1])
        self._router = _Router(state, secret, host_port.join(host, self.port))
        self._server.add_generic_rpc_handlers((self._router,))
        self._closed = False
        self._front = self._open(sockets)

    def _open(self, sockets: list[socket.socket]) -> FrontProxy:
        """Start to serve. grpc listens in a folder of this user's alone, which is not needed once it is found."""
        roomy = len(tempfile.gettempdir()) < _SOCKET_PATH_CHARS
        try:
            with OwnedFolder(f"{PREFIX}-store-", None if roomy else "/tmp") as folder:
                path = str(folder / "grpc")
                self._server.add_insecure_port(f"unix:{quote(path)}")
                self._router.front = front = FrontProxy(sockets, path)
            self._server.start()
        except BaseException:
            for sock in sockets:
                sock.close()
            raise
        return front

    @property
    def url(self) -> str:
        """What `connect` takes, e.g. "embedded://127.0.0.1:4001"."""
        return f"embedded://{host_port.join(self.host, self.port)}"

    def close(self) -> None:
        """Stop serving: open calls are cut, clients reconnect to whoever serves next. The data stays with its owner."""
        if self._closed:
            return
        self._closed = True
        self._router.finish_watches()  # they end in order, so that their clients are not told of an error
        stopped = self._server.stop(GRACE_S).wait(STOP_S)
        self._front.close()
        if not stopped:
            raise TimeoutError(f"the store server on port {self.port} did not stop within {STOP_S} s")
        self._pool.shutdown()

    def __enter__(self) -> StoreServer:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<StoreServer {host_port.join(self.host, self.port)} revision={self._shared_state.revision}>"


def _listen(host: str, port: int) -> list[socket.socket]:
    """Sockets that listen on one port of all addresses that `host` stands for and that are this host's."""
    sockets: list[socket.socket] = []
    address = host
    try:
        for address in _check_free(host, port):
            sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
            sockets.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if address == "::":  # whatever the host's default: all of its addresses
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            sock.bind((address, port))
            sock.listen(socket.SOMAXCONN)
            port = sock.getsockname()[1]
    except OSError as error:  # lost a race for the port since the check
        for sock in sockets:
            sock.close()
        kind = PortTaken if error.errno == errno.EADDRINUSE else UsageError
        advice = _ADVICE.get(error.errno or 0, "choose another address or port")
        raise kind(f"the store cannot listen on {host_port.join(address, port)}: {error.strerror}; {advice}") from None
    return sockets


def _check_free(host: str, port: int) -> list[str]:
    """Those of the addresses that `host` stands for that are this host's: at least one, and the port is free at all.

    Nothing listens here: of several servers that look at once, each would be in the way of the others, and none might
    have the port.
    """
    usable: list[str] = []
    problem: Exception | None = None
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # UnicodeError: a name that cannot be one
        found, problem = [], error
    for family, kind, protocol, _, address in found:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
            usable.append(str(address[0]))
        except OSError as error:
            foreign = error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
            problem = (problem or error) if foreign else error  # one of an address of ours tells more
            if not foreign:  # taken at one of them: all are refused
                usable.clear()
                break
    if usable:
        return list(dict.fromkeys(usable))
    why, number = getattr(problem, "strerror", None) or problem, getattr(problem, "errno", None)
    advice = _ADVICE.get(number or 0, "choose another address or port")
    error_kind = PortTaken if number == errno.EADDRINUSE else UsageError
    raise error_kind(f"the store cannot listen on {host_port.join(host, port)}: {why}; {advice}")


Metadata = tuple[tuple[str, str], ...]


class _Router(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no type hints
    """Finds the handler of a method. Handlers take and give raw bytes: nothing is decoded before the token is
    checked."""

    def __init__(self, state: MemoryStore, secret: str | None, at: str) -> None:
        self._shared_state = state.hub
        self._service = Service(state.hub)
        self._gate = Gate(secret, at)
        self._open = secret is None
        self.front: FrontProxy | None = None  # set before the first call can come
        self._streams: set[WatchStream] = set()  # guarded by _streams_lock
        self._streams_lock = threading.Lock()
        self._finished = False  # guarded by _streams_lock
        self._methods: dict[str, Any] = {}
        for method in METHODS:
            self._methods[path(method)] = self._handler(method)

    def service(self, handler_call_details: Any) -> Any:
        return self._methods.get(handler_call_details.method)

    def finish_watches(self) -> None:
        """End every Watch stream, and those that are still opened."""
        with self._streams_lock:
            self._finished = True
            for stream in self._streams:
                stream.finish()

    def _handler(self, method: str) -> Any:
        if method == "Watch":
            return grpc.stream_stream_rpc_method_handler(self._watch)
        if method == "LeaseKeepAlive":
            return grpc.stream_stream_rpc_method_handler(self._keep_alive)
        request_cls = cls(METHODS[method][1])
        act = None if method == "Authenticate" else self._service.handlers[method]

        def handle(raw: bytes, context: Any) -> bytes:
            try:
                if act is None:
                    return self._authenticate(request_cls.FromString(raw), context)
                if proof := self._authorize(context):
                    context.set_trailing_metadata(proof)
                response: bytes = act(request_cls.FromString(raw)).SerializeToString()
                return response
            except (StoreError, UsageError, DecodeError) as error:
                _abort(context, error)

        return grpc.unary_unary_rpc_method_handler(handle)

    def _authenticate(self, request: Any, context: Any) -> bytes:
        answer = self._gate.authenticate(self._connection(context), request.name, request.password)
        response: bytes = new("AuthenticateResponse", token=answer).SerializeToString()  # strangers hear no revision
        return response

    def _connection(self, context: Any) -> Connection:
        assert self.front is not None
        connection = self.front.connection(context.peer())
        if connection is None:
            raise Rejected("UNAVAILABLE", "the connection is closed")
        return connection

    def _authorize(self, context: Any) -> Metadata:
        """Let the call in, and its connection be no stranger's any more; or raise Rejected. What its answer brings."""
        connection, proof = self._connection(context), ""
        if not self._open:
            presented = next((value for key, value in context.invocation_metadata() if key == "token"), None)
            proof = self._gate.admit(connection, presented)
        elif not connection.admitted:
            _require_same_user(connection)
        if not connection.admitted:
            assert self.front is not None
            self.front.admit(connection)
        return ((token.PROOF_KEY, proof),) if proof else ()

    def _keep_alive(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        request_cls = cls("LeaseKeepAliveRequest")
        try:
            context.send_initial_metadata(self._authorize(context))
            for raw in requests:
                yield self._service.keep_alive(request_cls.FromString(raw)).SerializeToString()
        except (StoreError, DecodeError) as error:
            _abort(context, error)

    def _watch(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        try:
            context.send_initial_metadata(self._authorize(context))
        except StoreError as error:
            _abort(context, error)
        stream = WatchStream(self._shared_state)
        reader = OwnedThread("store-watch-reader", lambda: _read(requests, stream))
        with self._streams_lock:
            self._streams.add(stream)
            over = self._finished
        if over or not context.add_callback(stream.finish):
            stream.finish()  # over before it began
        try:
            for response in stream.responses():
                yield response.SerializeToString()
        finally:
            context.cancel()  # ends the reader, whatever ended us
            reader.join()
            stream.release()
            with self._streams_lock:
                self._streams.discard(stream)


def _require_same_user(connection: Connection) -> None:
    """Rejected, unless the kernel says that the other end is a process of this one's user, or root's."""
    user, own = connection.user(), os.geteuid()
    if user in (0, own):
        return
    whose = f"of user {user}" if user is not None else "of a user whom the kernel does not name here"
    raise Rejected(
        "PERMISSION_DENIED",
        f"this store has no secret, so it serves processes of its own user ({own}) and of root alone, and this one is "
        f"{whose}; give the store and all that use it one secret (RESILIN_SECRET or --secret-file)",
    )


def _read(requests: Iterator[bytes], stream: WatchStream) -> None:
    request_cls = cls("WatchRequest")
    try:
        for raw in requests:
            stream.handle(request_cls.FromString(raw))
    except (grpc.RpcError, StoreError, DecodeError):
        stream.finish()  # the client left, the store closed, or what came was no request: the stream is over


def _abort(context: Any, error: Exception) -> NoReturn:
    """End a call the way etcd would, so that its clients understand; the texts are etcd's where it has one."""
    code, text = "UNAVAILABLE", str(error)
    if isinstance(error, Rejected):
        code = error.code
    elif isinstance(error, Compacted):
        code, text = "OUT_OF_RANGE", "mvcc: required revision has been compacted"
    elif isinstance(error, FutureRevision):
        code, text = "OUT_OF_RANGE", "mvcc: required revision is a future revision"
    elif isinstance(error, LeaseLost):
        code, text = "NOT_FOUND", "requested lease not found"
    elif isinstance(error, DecodeError):
        code, text = "INVALID_ARGUMENT", "the request is no valid message"
    elif isinstance(error, UsageError):
        code = "INVALID_ARGUMENT"
    context.abort(grpc.StatusCode[code], f"etcdserver: {text}")
    raise AssertionError("context.abort returned")
