"""The native walk: in which order it takes what several peers send."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from resilin._base.clock import SYSTEM
from resilin.distributed.wire import loader
from resilin.distributed.wire.reduce_op import ReduceOp
from resilin.testing.patience import PATIENCE_S

pytestmark = pytest.mark.skipif(loader.native is None, reason="there is no native code here, which this is about")
BYTES = 16 << 20  # more than sockets hold
DONE = 0


@contextlib.contextmanager
def connected(peers: int) -> Iterator[tuple[Any, list[socket.socket]]]:
    """A rank's Streams to some peers, numbered from 1, and the peers' ends."""
    with contextlib.ExitStack() as ends:
        pairs = [tuple(map(ends.enter_context, socket.socketpair())) for _ in range(peers)]
        for here, there in pairs:
            here.setblocking(False)
            there.settimeout(PATIENCE_S)
        assert loader.native is not None
        yield loader.native.Streams([-1, *(here.fileno() for here, _ in pairs)]), [there for _, there in pairs]


def walking(streams: Any, sends: list[Any], receives: list[Any]) -> tuple[threading.Thread, list[Any]]:
    ends: list[Any] = []
    until = SYSTEM.monotonic() + PATIENCE_S
    thread = threading.Thread(
        target=lambda: ends.append(streams.walk(sends, receives, 0, int(ReduceOp.SUM), until)), daemon=True
    )
    thread.start()
    return thread, ends


def received(end: socket.socket, size: int = BYTES) -> bytes:
    with end.makefile("rb") as stream:
        return stream.read(size)


def filled(value: int, size: int = BYTES) -> Any:
    return np.full(size, value, np.uint8)


@pytest.mark.slow
def test_a_peer_that_is_late_keeps_no_other_one_waiting() -> None:
    with connected(3) as (streams, (first, second, third)):
        into, out = [filled(0), filled(0)], filled(9)
        thread, ends = walking(
            streams, [(0, 1, out, None), (2, 3, out, None)], [(0, 1, into[0], None), (1, 2, into[1], None)]
        )
        second.sendall(filled(2))
        assert received(third) == out.tobytes()
        assert thread.is_alive()
        threading.Thread(target=first.sendall, args=(filled(1),), daemon=True).start()
        assert received(first) == out.tobytes()
        thread.join(PATIENCE_S)
        assert [end[0] for end in ends] == [DONE]
        assert [set(part) for part in into] == [{1}, {2}]


def test_what_is_received_to_one_place_is_received_in_the_order_of_the_steps() -> None:
    with connected(2) as (streams, (first, second)):
        into = filled(0, 1000)
        thread, ends = walking(streams, [], [(0, 1, into, None), (1, 2, into[500:], None)])
        second.sendall(filled(2, 500))
        first.sendall(filled(1, 1000))
        thread.join(PATIENCE_S)
        assert [end[0] for end in ends] == [DONE]
        assert set(into[:500]) == {1}
        assert set(into[500:]) == {2}


@pytest.mark.parametrize("start", [0, 500, 999])
def test_what_has_yet_to_come_is_not_sent_before(start: int) -> None:
    """From the middle of what another peer sends, too."""
    with connected(2) as (streams, (first, second)):
        memory = filled(0, 2000)
        thread, ends = walking(streams, [(1, 2, memory[start : start + 1000], None)], [(0, 1, memory[:1000], None)])
        first.sendall(filled(1, 999))
        first.sendall(filled(3, 1))
        got = received(second, 1000)
        thread.join(PATIENCE_S)
        assert [end[0] for end in ends] == [DONE]
        assert list(got) == [1] * (999 - start) + [3] + [0] * start


def test_a_walk_that_is_late_names_a_peer_that_it_waits_for() -> None:
    with connected(3) as (streams, (first, _, third)):
        into = [filled(0, 10) for _ in range(3)]
        first.sendall(filled(1, 10))
        third.sendall(filled(3, 10))
        receives = [(step, 1 + step, part, None) for step, part in enumerate(into)]
        assert streams.walk([], receives, 0, int(ReduceOp.SUM), SYSTEM.monotonic() + 0.2)[1:] == (-1, 2)
        assert [set(part) for part in into] == [{1}, {0}, {3}]
