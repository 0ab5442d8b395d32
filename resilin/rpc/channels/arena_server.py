"""Hand the arenas of this process to workers of the same host that know the job's secret.

A borrower keeps its connection (`ArenaClient`) until it shows nothing of the lender's any more; the kernel closes it
when the borrower dies. So the end of the connection says that nobody reads what was lent through it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import socket
import struct
import threading
from collections.abc import Callable

from resilin._base import auth
from resilin._base.clock import Deadline
from resilin._base.framing import recv_exactly
from resilin._base.wrong_proofs import WrongProofs
from resilin.core.machine import memory
from resilin.distributed.connections.accept_loop import AcceptLoop, Refusals, Visit
from resilin.distributed.wire.after_fork import track
from resilin.errors import DistNetworkError

TOKEN_BYTES = 16  # a server's name
_PURPOSE = b"resilin rpc arenas"
_HANDSHAKE_S = 10.0
_ANSWER_S = 10.0
_BACKLOG = 128
_WANTED = struct.Struct("<QQ")  # loan, arena
_FOUND = struct.Struct("<Q")  # its size; 0: it is gone


class ArenaServer:
    """Listens under a random name. `borrower(loan)` says whose a loan is; `gone(line)` hears that a line has ended."""

    def __init__(self, word: str, borrower: Callable[[int], int | None], gone: Callable[[int], None]) -> None:
        self.token = secrets.token_bytes(TOKEN_BYTES)
        self._word = word
        self._borrower = borrower
        self._gone = gone
        self._lock = threading.Lock()
        self._lines: dict[int, int] = {}  # guarded by _lock: whose they are, by number
        self._numbers = itertools.count()
        self._wrong = WrongProofs()
        self._refusals = Refusals("the arenas that RPC lends")
        listening = track(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        listening.bind(_address(self.token))
        listening.listen(_BACKLOG)
        self._accept_loop = AcceptLoop("rpc-arenas", [listening], self._serve)

    def lines_of(self, peer: int) -> set[int]:
        """The numbers of the lines through which `peer` may still show what it has borrowed."""
        with self._lock:
            return {line for line, owner in self._lines.items() if owner == peer}

    def close(self) -> None:
        """End every line and thread. Idempotent."""
        self._accept_loop.close()

    def _serve(self, visit: Visit) -> None:
        with self._refusals.noted():
            auth.prove_as_server(
                visit.sock, self._word, _PURPOSE, Deadline(_HANDSHAKE_S), self._wrong, self.token.hex()
            )
        visit.admit()
        line, peer = next(self._numbers), None
        try:
            while True:
                loan, arena = _WANTED.unpack(recv_exactly(visit.sock, _WANTED.size, Deadline(None)))
                owner = self._borrower(loan)
                if owner is None or peer not in (None, owner):
                    raise DistNetworkError(
                        f"worker {peer} asks for the memory of loan {loan}, which is worker {owner}'s"
                    )
                peer = owner
                with self._lock:
                    self._lines[line] = peer
                _send_arena(visit.sock, arena)
        finally:
            with self._lock:
                self._lines.pop(line, None)
            self._gone(line)


class ArenaClient:
    """A borrower's connection to the arena server that `token` names, of worker `lender`. One thread at a time asks.

    Raises: DistNetworkError when nobody listens there (any more); HandshakeError; SecretRequired.
    """

    def __init__(self, token: bytes, word: str, lender: int) -> None:
        self.lender = lender
        self._lock = threading.Lock()
        self._sock = track(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        try:
            self._sock.settimeout(_HANDSHAKE_S)
            self._sock.connect(_address(token))
            auth.prove_as_client(self._sock, word, _PURPOSE, Deadline(_HANDSHAKE_S), token.hex())
            self._sock.settimeout(_ANSWER_S)
        except OSError as error:
            self._sock.close()
            raise DistNetworkError(f"the lender of a tensor does not answer: {error}") from error
        except BaseException:
            self._sock.close()
            raise

    def fetch(self, loan: int, arena: int) -> tuple[int, int]:
        """Return the descriptor, which is the caller's, and the size of an arena in which something is lent to us.

        Raises: DistNetworkError when the lender is gone, or the arena is.
        """
        with self._lock:
            fds: list[int] = []
            data = b""
            try:
                self._sock.sendall(_WANTED.pack(loan, arena))
                while len(data) < _FOUND.size:
                    more, came, _, _ = socket.recv_fds(self._sock, _FOUND.size - len(data), 1, socket.MSG_CMSG_CLOEXEC)
                    fds += came
                    if not more:
                        raise EOFError
                    data += more
                (size,) = _FOUND.unpack(data)
                if len(fds) != 1 or os.fstat(fds[0]).st_size < size or not size:
                    raise DistNetworkError(f"the lender of a tensor has no arena {arena} of {size} bytes any more")
                return fds.pop(), size
            except (OSError, EOFError) as error:
                raise DistNetworkError(
                    f"the lender of a tensor is gone before its memory arrived: {str(error) or 'it hung up'}"
                ) from error
            finally:
                for fd in fds:
                    os.close(fd)

    def close(self) -> None:
        """Say that nothing of the lender's is shown any more. Idempotent."""
        self._sock.close()


def _address(token: bytes) -> bytes:
    return b"\0resilin-rpc-arenas-" + token.hex().encode()


def _send_arena(sock: socket.socket, arena: int) -> None:
    try:
        fd = os.dup(memory.arena_fd(arena))
    except (KeyError, OSError):
        sock.sendall(_FOUND.pack(0))
        return
    with contextlib.closing(os.fdopen(fd, "rb", closefd=True)):
        socket.send_fds(sock, [_FOUND.pack(memory.arena_size(arena))], [fd])
