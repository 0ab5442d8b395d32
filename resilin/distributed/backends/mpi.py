"""Provide the `mpi` backend: ScheduledBackend over MPI messages, through mpi4py. The only file that imports mpi4py.

MPI's own collectives promise no order of summation, cannot be aborted and know no deadline. So ours are used, over
MPI's non-blocking messages: a rank that waits tests its requests, looks at the abort flag and the clock, and sleeps in
between for a tenth of the time it has waited. Deaths are heard on the group's control sockets, as with every backend.

Importing mpi4py starts MPI, so this happens when the first group with this backend is made. MPI must allow calls from
any thread (MPI_THREAD_MULTIPLE, which mpi4py asks for).
"""

from __future__ import annotations

import importlib
import socket
import threading
import zlib
from collections.abc import Sequence
from typing import Any

from resilin._base import env, host
from resilin._base.clock import Deadline, spell
from resilin.distributed.backends.backend_context import BackendContext
from resilin.distributed.backends.polling import SPIN_S, poll
from resilin.distributed.backends.scheduled import ScheduledBackend
from resilin.distributed.stores.base import Store
from resilin.distributed.stores.tcp import TCPStore
from resilin.errors import CollectiveTimeout, DistBackendError

_TAG = 7  # of data, on a communicator that nobody else uses
_MEET_TAG = 31_007  # on COMM_WORLD, whose tags go up to 32767 at least
_CARD_BYTES = 512  # of a message of `meet`
_PIECE_BYTES = 1 << 30  # MPI counts in C's int
_ABANDONED: list[Any] = []  # requests of aborted groups, with their buffers: MPI may still touch them


def load() -> Any:
    """The module mpi4py.MPI, with MPI started. DistBackendError says why there is none."""
    try:
        mpi: Any = importlib.import_module("mpi4py.MPI")
    except (ImportError, RuntimeError) as error:
        raise DistBackendError(
            f"backend 'mpi' needs mpi4py and an MPI library, which cannot be loaded ({error}): "
            "pip install 'resilin[mpi]' mpich, or mpi4py beside the cluster's own MPI"
        ) from error
    if mpi.Query_thread() < mpi.THREAD_MULTIPLE:
        raise DistBackendError(
            "backend 'mpi' needs MPI_THREAD_MULTIPLE, but MPI was started with less: let mpi4py start it, with "
            "mpi4py.rc.thread_level = 'multiple' (its default)"
        )
    return mpi


class MpiBackend(ScheduledBackend):
    """All collectives over messages of `comm`, whose ranks are the group's; owned from here on."""

    name = "mpi"

    def __init__(self, mpi: Any, comm: Any, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self._mpi = mpi
        self._comm = comm
        self._stop = threading.Event()
        self._spin_s = SPIN_S if size <= host.cpu_count() else 0.0

    def exchange(
        self, to: int | None, out: memoryview | None, source: int | None, into: memoryview | None, deadline: Deadline
    ) -> None:
        """See ScheduledBackend."""
        sending = out if to is not None and out is not None else memoryview(b"")
        receiving = into if source is not None and into is not None else memoryview(b"")
        for at in range(0, max(len(sending), len(receiving)), _PIECE_BYTES):
            waits: list[tuple[int, Any]] = []
            try:
                if source is not None and at < len(receiving):
                    part = [receiving[at : at + _PIECE_BYTES], self._mpi.BYTE]
                    waits.append((source, self._comm.Irecv(part, source, _TAG)))
                if to is not None and at < len(sending):
                    part = [sending[at : at + _PIECE_BYTES], self._mpi.BYTE]
                    waits.append((to, self._comm.Isend(part, to, _TAG)))
                self._await(waits, deadline)
            except BaseException as error:
                _abandon([request for _, request in waits], (sending, receiving))
                if isinstance(error, self._mpi.Exception):
                    raise DistBackendError(f"MPI failed: {error}") from error
                raise

    def _await(self, waits: Sequence[tuple[int, Any]], deadline: Deadline) -> None:
        if _finish([request for _, request in waits], self._stop, deadline, self._spin_s):
            return
        late = {peer for peer, request in waits if not request.Test()}
        if late:
            names = " and ".join(f"rank {peer}" for peer in sorted(late))
            raise CollectiveTimeout(f"{names} did not answer", late)

    def abort(self, rank: int, lost: bool) -> None:
        """See Backend."""
        self._stop.set()

    def close(self) -> None:
        """See Backend. After an abort the communicator stays: MPI may be using it."""
        if not self._stop.is_set():
            self._comm.Free()
        self._stop.set()


def _finish(requests: Sequence[Any], stop: threading.Event, deadline: Deadline, spin_s: float = 0.0) -> bool:
    """Wait for all `requests`: False at the deadline. Aborted once `stop` is set."""
    return poll(lambda: all([request.Test() for request in requests]), stop, deadline, spin_s)  # each is moved on


def _abandon(requests: Sequence[Any], buffers: Any) -> None:
    """Give up requests that will not end; what cannot be cancelled keeps its memory."""
    left = []
    for request in requests:
        if request and not request.Test():
            request.Cancel()
            if not request.Test():
                left.append(request)
    if left:
        _ABANDONED.append((left, buffers))


def make(setup: BackendContext, options: Any) -> MpiBackend:
    """The backend of one group. DistBackendError when its ranks are not processes of one MPI job."""
    mpi = load()
    world = mpi.COMM_WORLD
    ranks = [int(text) for text in setup.peers.all_gather(str(world.rank).encode(), setup.deadline)]
    if len(set(ranks)) < len(ranks):
        raise DistBackendError(
            f"backend 'mpi': the ranks of the group are ranks {ranks} of MPI's world, expected each to be another one: "
            "start them together with mpiexec, one process each"
        )
    members = world.Get_group().Incl(ranks)
    comm = world.Create_group(members, zlib.crc32(setup.group_id.encode()) & 0x7FFF)
    members.Free()
    return MpiBackend(mpi, comm, setup.group_rank, setup.group_size)


def meet(timeout_s: float) -> tuple[Store, int, int]:
    """A store for all ranks of MPI's world, with this process's rank and their number: init method "mpi://".

    Rank 0 serves it, on loopback when all are on its host, else at RESILIN_HOST or its host's name.
    Raises: CollectiveTimeout with the ranks that did not come.
    """
    mpi = load()
    rank, size = mpi.COMM_WORLD.rank, mpi.COMM_WORLD.size
    deadline = Deadline(timeout_s)
    here = host.host_id()
    if rank:
        _transfer(mpi, {0: _card(here)}, {}, deadline)
        cards = {0: bytearray(_CARD_BYTES)}
        _transfer(mpi, {}, cards, deadline)
        address, port = _text(cards[0]).rsplit(" ", 1)
        return TCPStore(address, int(port), timeout=timeout_s), rank, size
    cards = {peer: bytearray(_CARD_BYTES) for peer in range(1, size)}
    _transfer(mpi, {}, cards, deadline)
    near = all(_text(card) == here for card in cards.values())
    address = "127.0.0.1" if near else env.get("RESILIN_HOST") or socket.gethostname()
    store = TCPStore(address, 0, is_master=True, timeout=timeout_s)
    try:
        _transfer(mpi, dict.fromkeys(cards, _card(f"{address} {store.port}")), {}, deadline)
    except BaseException:
        store.close()
        raise
    return store, rank, size


def _card(text: str) -> bytearray:
    return bytearray(text.encode().ljust(_CARD_BYTES))


def _text(card: bytearray) -> str:
    return card.decode().rstrip()


def _transfer(mpi: Any, out: dict[int, bytearray], into: dict[int, bytearray], deadline: Deadline) -> None:
    """Send and receive cards on COMM_WORLD, by rank."""
    world = mpi.COMM_WORLD
    waits = {peer: world.Irecv([card, mpi.BYTE], peer, _MEET_TAG) for peer, card in into.items()}
    waits.update({peer: world.Isend([card, mpi.BYTE], peer, _MEET_TAG) for peer, card in out.items()})
    if not _finish(list(waits.values()), threading.Event(), deadline):
        late = [peer for peer, request in waits.items() if not request.Test()]
        _abandon(list(waits.values()), (out, into))
        names = ", ".join(f"rank {peer}" for peer in late)
        raise CollectiveTimeout(
            f"init_process_group, MPI rank {world.rank} of {world.size}: {names} did not call it within "
            f"{spell(deadline.seconds)}",
            late,
        )
