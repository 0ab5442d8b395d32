"""The conformance suite of `resilin.rpc.transports.base.Transport`: what every one must do, as tests to inherit.

    class TestMyTransport(TransportConformance):
        transport = MyTransport           # made as MyTransport(identity, queues, lost, **options)
        queues = ThreadQueues             # what it puts messages into
        options = {}                      # as JSON has them: some tests start it in another process

`StrangersConformance` is for those that listen where others can knock; give it a `doors` fixture.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest

from resilin._base.clock import SYSTEM, Deadline
from resilin.errors import HandshakeError, PeerLost, SecretRequired, UsageError
from resilin.rpc.transports.base import REQUESTS, Buffer, Queues, RpcMessage, Transport, WorkerIdentity
from resilin.rpc.transports.thread_queues import ThreadQueues
from resilin.testing.job_secret import OTHER_SECRET, SECRET
from resilin.testing.patience import PATIENCE_S
from resilin.testing.rpc_peer import HOLD, PeerProcess, Worker, spec

MakeWorker = Callable[..., Worker]
SIZES = [0, 1, 4095, 4096, 4097, 65_535, 65_536, 65_537, 262_145, 1 << 20, (1 << 20) + 1, 16 << 20]
_HELD_BYTES = 256 << 20  # more than any transport may hold for a consumer that takes nothing
_BLOCK = bytes(1 << 20)
_LINGER_S = 5.0  # at the end: so long a transport waits for peers that take nothing


def content(size: int, seed: int = 0) -> bytes:
    """Bytes that are told from others of the same length, and from themselves cut, shifted or doubled."""
    return random.Random(seed * 1_000_003 + size).randbytes(size)


def numbered(thread: int, number: int, size: int) -> bytes:
    """A message's content that says which one it is."""
    return b"%d %d " % (thread, number) + content(size, number)


def read_number(message: RpcMessage) -> tuple[int, int]:
    """Which message of `numbered` it is; the rest of it has to be right."""
    data = b"".join(message.parts)
    thread, number, rest = data.split(b" ", 2)
    assert rest == content(len(rest), int(number))
    return int(thread), int(number)


class TransportConformance:
    """Inherit it and name a transport."""

    transport: ClassVar[type[Transport]]
    queues: ClassVar[type[Queues]] = ThreadQueues
    options: ClassVar[dict[str, Any]] = {}
    needs_secret: ClassVar[bool] = False
    """Whether it cannot be made without one, with these options."""

    @pytest.fixture
    def group(self) -> str:
        """The group of this test's workers."""
        return f"group-{random.randrange(1 << 40)}"

    @pytest.fixture
    def make(self, group: str) -> Iterator[MakeWorker]:
        """Makes workers that are closed after the test: `make(id, **fields of its identity)`."""
        made: list[Worker] = []

        def make(number: int, **fields: Any) -> Worker:
            identity = replace(WorkerIdentity(number, f"worker{number}", group, SECRET), **fields)
            made.append(Worker(identity, self.transport, self.queues, self.options))
            return made[-1]

        yield make
        for worker in made:
            worker.close()

    @pytest.fixture
    def pair(self, make: MakeWorker) -> tuple[Worker, Worker]:
        """Workers 0 and 1, connected."""
        workers = make(0), make(1)
        workers[0].connect(workers[1])
        return workers

    @pytest.fixture
    def start(self, group: str) -> Iterator[Callable[..., PeerProcess]]:
        """Starts workers in processes of their own: `start(id)`."""
        started: list[PeerProcess] = []

        def start(number: int) -> PeerProcess:
            identity = WorkerIdentity(number, f"worker{number}", group, SECRET)
            started.append(PeerProcess(spec(identity, self.transport, self.queues, self.options)))
            return started[-1]

        yield start
        for process in started:
            with process:
                pass

    # ----------------------------------------------------------------------------------------------- delivery

    @pytest.mark.parametrize("size", SIZES)
    def test_a_message_of_any_length_arrives_whole(self, pair: tuple[Worker, Worker], size: int) -> None:
        for sender, receiver in (pair, pair[::-1]):
            data = content(size)
            sender.send(receiver.identity.id, data)
            (message,) = receiver.take(1)
            assert message.source == sender.identity.id
            assert [bytes(part) for part in message.parts] == [data]

    @pytest.mark.parametrize(
        "sizes",
        [(), (0,), (0, 0, 0), (5, 0, 70_000, 1), (3, 1 << 20, 0, 1 << 20, 4097), (1,) * 1000, (1 << 20, *(9,) * 500)],
        ids=str,
    )
    def test_parts_arrive_as_they_were_given(self, pair: tuple[Worker, Worker], sizes: tuple[int, ...]) -> None:
        parts = [content(size, index) for index, size in enumerate(sizes)]
        pair[0].send(1, *parts)
        pair[0].send(1, b"next")
        first, second = pair[1].take(2)
        assert [bytes(part) for part in first.parts] == parts
        assert [bytes(part) for part in second.parts] == [b"next"]

    @pytest.mark.parametrize("size", [10, 5_000, 1 << 20])
    def test_parts_may_be_bytes_of_any_kind(self, pair: tuple[Worker, Worker], size: int) -> None:
        data = content(size)
        array = np.frombuffer(data[: size // 2 * 2], np.int16).copy()
        parts: list[Any] = [data, bytearray(data), memoryview(data), array.data, array.reshape(-1, 1).data]
        pair[0].send(1, *parts)
        (message,) = pair[1].take(1)
        assert [bytes(part) for part in message.parts] == [bytes(part) for part in parts]

    @pytest.mark.parametrize("size", [100, 40_000, 100_000, 5 << 20])
    def test_what_was_sent_may_be_changed_at_once(self, pair: tuple[Worker, Worker], size: int) -> None:
        data = bytearray(content(size))
        for turn in range(5):
            pair[0].send(1, data)
            data[:] = content(size, turn + 1)
        assert [bytes(message.parts[0]) for message in pair[1].take(5)] == [content(size, turn) for turn in range(5)]

    def test_messages_arrive_once_and_in_order(self, pair: tuple[Worker, Worker]) -> None:
        sizes = random.Random(1).choices([0, 10, 3000, 70_000, 300_000], [5, 50, 20, 2, 1], k=1500)
        with ThreadPoolExecutor(1) as pool:
            sending = pool.submit(_send_all, pair[0], sizes)
            found = [read_number(message)[1] for message in pair[1].take(len(sizes))]
            sending.result()
        assert found == list(range(len(sizes)))
        assert pair[1].take(1, within_s=0.05) == []

    def test_each_queue_gets_what_it_was_sent(self, pair: tuple[Worker, Worker]) -> None:
        numbers = [REQUESTS, *(pair[1].queues.open().number for _ in range(5))]
        for turn, number in itertools.product(range(20), numbers):
            pair[0].send(1, b"%d %d" % (number, turn), queue=number)
        for number in numbers:
            found = [bytes(message.parts[0]) for message in pair[1].take(20, number)]
            assert found == [b"%d %d" % (number, turn) for turn in range(20)]

    def test_what_is_sent_to_no_queue_is_dropped(self, pair: tuple[Worker, Worker]) -> None:
        closed = pair[1].queues.open()
        closed.close()
        for number in (closed.number, 60_000):
            pair[0].send(1, b"lost", queue=number)
            pair[0].send(1, _BLOCK, queue=number)
        pair[0].send(1, b"after")
        assert [bytes(message.parts[0]) for message in pair[1].take(1)] == [b"after"]

    def test_many_threads_send_at_once(self, pair: tuple[Worker, Worker]) -> None:
        threads, each = 6, 60
        sizes = random.Random(2).choices([1, 2000, 100_000, 1 << 20], [20, 10, 2, 1], k=each)

        def work(thread: int) -> None:
            for number, size in enumerate(sizes):
                pair[0].send(1, numbered(thread, number, size))

        with ThreadPoolExecutor(threads) as pool:
            done = [pool.submit(work, thread) for thread in range(threads)]
            found = [read_number(message) for message in pair[1].take(threads * each)]
            for one in done:
                one.result()
        assert len(found) == threads * each
        for thread in range(threads):
            assert [number for sender, number in found if sender == thread] == list(range(each))

    def test_both_ends_send_at_once(self, pair: tuple[Worker, Worker]) -> None:
        sizes = random.Random(3).choices([1, 2000, 300_000], [20, 10, 3], k=200)

        def work(own: Worker, peer: int) -> list[int]:
            with ThreadPoolExecutor(1) as pool:
                taken = pool.submit(own.take, len(sizes))
                for one in enumerate(sizes):
                    own.send(peer, numbered(0, *one))
                return [read_number(message)[1] for message in taken.result()]

        with ThreadPoolExecutor(2) as pool:
            results = list(pool.map(work, pair, (1, 0)))
        assert results == [list(range(len(sizes)))] * 2

    def test_three_workers_are_told_apart(self, make: MakeWorker) -> None:
        workers = [make(number) for number in (3, 65_535, 0)]
        for one, other in itertools.combinations(workers, 2):
            one.connect(other)
        for one, other in itertools.permutations(workers, 2):
            one.send(other.identity.id, str(one.identity.id).encode())
        for one in workers:
            found = one.take(2)
            assert sorted(message.source for message in found) == sorted(
                other.identity.id for other in workers if other is not one
            )
            assert all(str(message.source).encode() == bytes(message.parts[0]) for message in found)

    def test_a_process_of_its_own_answers(self, make: MakeWorker, start: Callable[..., PeerProcess]) -> None:
        worker, process = make(0), start(1)
        worker.transport.connect(1, process.address, Deadline(PATIENCE_S))
        own = worker.queues.open()
        for size in SIZES:
            worker.send(1, own.number.to_bytes(2, "little"), content(size))
            (message,) = worker.take(1, own.number)
            assert bytes(message.parts[0]) == content(size)

    # --------------------------------------------------------------------------------------------- connections

    def test_a_worker_of_this_host_is_reached(self, make: MakeWorker) -> None:
        one, other = make(0), make(1)
        assert one.transport.reaches(other.transport.address)

    @pytest.mark.parametrize("address", ["", "x", "{}", "[]", '{"a": 1}', "tcp://127.0.0.1:1", "127.0.0.1:1", "\0"])
    def test_an_address_of_something_else_is_not_reached(self, make: MakeWorker, address: str) -> None:
        worker = make(0)
        assert not worker.transport.reaches(address)
        with pytest.raises(UsageError):
            worker.transport.connect(1, address, Deadline(PATIENCE_S))

    def test_a_second_connect_does_nothing(self, pair: tuple[Worker, Worker]) -> None:
        pair[0].connect(pair[1])
        pair[1].connect(pair[0])
        pair[1].send(0, b"x")
        assert len(pair[0].take(1)) == 1

    @pytest.mark.parametrize("turn", range(5))
    def test_both_may_connect_at_once(self, make: MakeWorker, turn: int) -> None:
        workers = make(0), make(1)
        start = threading.Barrier(4)

        def work(own: Worker, other: Worker) -> None:
            start.wait()
            own.connect(other)
            own.send(other.identity.id, b"x")

        with ThreadPoolExecutor(4) as pool:
            done = [pool.submit(work, *ends) for ends in (workers, workers[::-1]) * 2]
            for one in done:
                one.result()
        assert [len(worker.take(2)) for worker in workers] == [2, 2]
        assert [worker.losses for worker in workers] == [[], []]

    @pytest.mark.parametrize("turn", range(4))
    def test_who_gives_up_connecting_is_not_lost_to_the_other(self, make: MakeWorker, turn: int) -> None:
        first, second = make(1), make(2)
        dice = random.Random(turn)

        def hasty() -> None:
            for _ in range(10):
                with contextlib.suppress(TimeoutError):
                    first.transport.connect(2, second.transport.address, Deadline(dice.random() * 0.005))

        with ThreadPoolExecutor(2) as pool:
            dialing, connecting = pool.submit(hasty), pool.submit(second.connect, first)
            for each in (dialing, connecting):
                each.result(PATIENCE_S)
        first.connect(second)
        for sender, receiver in ((first, second), (second, first)):
            sender.send(receiver.identity.id, b"x")
            assert [bytes(message.parts[0]) for message in receiver.take(1)] == [b"x"]
        assert first.losses == second.losses == []

    def test_nobody_is_there(self, make: MakeWorker) -> None:
        worker, gone = make(0), make(1)
        gone.close()
        with pytest.raises(PeerLost) as caught:
            worker.connect(gone)
        assert caught.value.ranks == {1}
        assert worker.losses == []

    @pytest.mark.parametrize("fields", [{"secret": OTHER_SECRET}, {"secret": ""}, {"group": "another"}], ids=str)
    @pytest.mark.parametrize("dials", [0, 1])
    def test_a_worker_of_another_job_or_group_is_refused(
        self, make: MakeWorker, fields: dict[str, Any], dials: int
    ) -> None:
        if self.needs_secret and not fields.get("secret", SECRET):
            with pytest.raises(UsageError):
                make(1, **fields)
            return
        workers = make(0), make(1, **fields)
        with pytest.raises(HandshakeError):
            workers[dials].connect(workers[1 - dials])
        with pytest.raises(UsageError):
            workers[dials].send(1 - dials, b"x")
        right = make(2)
        right.connect(workers[0])
        right.send(0, b"x")
        assert [message.source for message in workers[0].take(1)] == [2]
        assert workers[0].losses == workers[1].losses == []

    def test_another_worker_than_was_meant_is_refused(self, make: MakeWorker) -> None:
        one, other = make(0), make(1)
        with pytest.raises(HandshakeError):
            one.transport.connect(2, other.transport.address, Deadline(PATIENCE_S))
        one.connect(other)
        one.send(1, b"x")
        assert len(other.take(1)) == 1

    def test_without_a_secret_the_kernel_says_who_it_is(self, make: MakeWorker) -> None:
        if self.needs_secret:
            with pytest.raises(UsageError):
                make(0, secret="")
            return
        one, other = make(0, secret=""), make(1, secret="")
        one.connect(other)
        one.send(1, b"x")
        assert len(other.take(1)) == 1

    def test_beyond_loopback_a_secret_is_needed(self, make: MakeWorker) -> None:
        with pytest.raises(SecretRequired):
            make(0, secret="", host="192.0.2.1")

    def test_a_worker_that_was_never_connected(self, make: MakeWorker) -> None:
        with pytest.raises(UsageError):
            make(0).send(1, b"x")

    # -------------------------------------------------------------------------------------------------- limits

    def test_a_message_above_the_limit_is_refused_where_it_is_sent(self, make: MakeWorker) -> None:
        one, other = make(0, max_message_bytes=100_000), make(1, max_message_bytes=100_000)
        one.connect(other)
        for parts in ((content(100_001),), (content(50_000), content(50_001))):
            with pytest.raises(UsageError):
                one.send(1, *parts)
        one.send(1, content(100_000))
        assert [len(message.parts[0]) for message in other.take(1)] == [100_000]

    @pytest.mark.parametrize("size", [100_001, 3 << 20])
    def test_a_message_above_the_receivers_limit_ends_the_connection(self, make: MakeWorker, size: int) -> None:
        one, other = make(0), make(1, max_message_bytes=100_000)
        one.connect(other)
        try:
            one.send(1, content(size))
        except (PeerLost, UsageError):
            return  # it knew, or heard at once
        assert [peer for peer, _ in one.wait_for_losses(1)] == [1]
        assert [peer for peer, _ in other.wait_for_losses(1)] == [0]
        assert other.take(1, within_s=0.05) == []

    def test_a_consumer_that_takes_nothing_holds_its_senders_back(self, pair: tuple[Worker, Worker]) -> None:
        sent = 0
        with contextlib.suppress(TimeoutError):
            while sent < _HELD_BYTES >> 20:
                pair[0].send(1, b"%d" % sent, _BLOCK, within_s=0.3)
                sent += 1
        assert sent < _HELD_BYTES >> 20
        found = pair[1].take(sent)
        assert [int(bytes(message.parts[0])) for message in found] == list(range(sent))
        pair[0].send(1, b"after")
        assert [bytes(message.parts[0]) for message in pair[1].take(1)] == [b"after"]
        assert pair[0].losses == pair[1].losses == []

    def test_a_full_queue_does_not_hold_up_another(self, pair: tuple[Worker, Worker]) -> None:
        own = pair[1].queues.open()
        sent = _fill(pair[0], 1)
        for turn in range(50):
            pair[0].send(1, b"%d" % turn, queue=own.number)
            assert bytes(pair[1].take(1, own.number)[0].parts[0]) == b"%d" % turn
        assert len(pair[1].take(sent)) == sent

    def test_who_waits_for_room_goes_on_when_there_is_some(self, pair: tuple[Worker, Worker]) -> None:
        sent = _fill(pair[0], 1)
        with ThreadPoolExecutor(2) as pool:
            waiting = [pool.submit(pair[0].send, 1, b"late", content(size)) for size in (10, 1 << 20)]
            assert len(pair[1].take(sent)) == sent
            for one in waiting:
                one.result(PATIENCE_S)
        assert sorted(len(message.parts[1]) for message in pair[1].take(2)) == [10, 1 << 20]

    def test_a_deadline_that_has_passed_sends_nothing_to_a_full_queue(self, pair: tuple[Worker, Worker]) -> None:
        sent = _fill(pair[0], 1)
        for size in (1, 1 << 20):
            with pytest.raises(TimeoutError):
                pair[0].send(1, content(size), within_s=0)
        assert len(pair[1].take(sent)) == sent
        pair[0].send(1, b"after")
        assert [bytes(message.parts[0]) for message in pair[1].take(1)] == [b"after"]

    # --------------------------------------------------------------------------------------------------- ends

    def test_who_closes_is_lost_to_the_others_once(self, pair: tuple[Worker, Worker]) -> None:
        pair[1].close()
        ((peer, error),) = pair[0].wait_for_losses(1)
        assert (peer, *error.ranks) == (1, 1)
        assert "worker1" in str(error)
        for size in (1, 1 << 20):
            with pytest.raises(PeerLost) as caught:
                pair[0].send(1, content(size))
            assert caught.value.ranks == {1}
        assert pair[0].wait_for_losses(2, within_s=0.1) == [(1, error)]
        assert pair[1].losses == []

    def test_a_killed_process_is_lost_at_once(self, make: MakeWorker, start: Callable[..., PeerProcess]) -> None:
        worker, process = make(0), start(1)
        worker.transport.connect(1, process.address, Deadline(PATIENCE_S))
        process.kill()
        ((peer, error),) = worker.wait_for_losses(1)
        assert peer == 1
        assert "worker1" in str(error)
        assert str(process.pid) in str(error)
        with pytest.raises(PeerLost):
            worker.send(1, b"x")

    def test_who_waits_for_room_hears_that_the_peer_was_killed(
        self, make: MakeWorker, start: Callable[..., PeerProcess]
    ) -> None:
        worker, process = make(0), start(1)
        worker.transport.connect(1, process.address, Deadline(PATIENCE_S))
        worker.send(1, HOLD)
        _fill(worker, 1)
        with ThreadPoolExecutor(2) as pool:
            waiting = [pool.submit(worker.send, 1, content(size)) for size in (10, 4 << 20)]
            process.kill()
            for one in waiting:
                with pytest.raises(PeerLost):
                    one.result(PATIENCE_S)

    def test_a_forgotten_peer_is_told_of_no_more(self, pair: tuple[Worker, Worker]) -> None:
        pair[0].transport.forget(1)
        pair[0].transport.forget(1)
        pair[0].transport.forget(7)
        assert [peer for peer, _ in pair[1].wait_for_losses(1)] == [0]
        with pytest.raises(UsageError):
            pair[0].send(1, b"x")
        assert pair[0].losses == []

    @pytest.mark.parametrize("dials", ["the replacement", "the other"])
    def test_a_replacement_has_the_same_id(self, make: MakeWorker, dials: str) -> None:
        one, other = make(0), make(1)
        one.connect(other)
        other.close()
        one.wait_for_losses(1)
        one.transport.forget(1)
        again = make(1, name="replacement")
        ends = (again, one) if dials == "the replacement" else (one, again)
        ends[0].connect(ends[1])
        one.send(1, b"there")
        again.send(0, b"back")
        assert bytes(again.take(1)[0].parts[0]) == b"there"
        assert bytes(one.take(1)[0].parts[0]) == b"back"
        assert len(one.losses) == 1

    def test_who_was_forgotten_may_come_back(self, pair: tuple[Worker, Worker]) -> None:
        for _ in range(3):
            pair[0].transport.forget(1)
            pair[1].transport.forget(0)
            pair[0].connect(pair[1])
            pair[0].send(1, b"x")
            pair[1].send(0, b"y")
            assert [len(worker.take(1)) for worker in pair] == [1, 1]

    @pytest.mark.parametrize("sizes", [[10] * 500, [1 << 20] * 8, [10, 20 << 20, 10]], ids=["short", "long", "mixed"])
    def test_close_delivers_what_was_sent(self, pair: tuple[Worker, Worker], sizes: Sequence[int]) -> None:
        for one in enumerate(sizes):
            pair[0].send(1, numbered(0, *one))
        pair[0].close()
        assert [read_number(message)[1] for message in pair[1].take(len(sizes))] == list(range(len(sizes)))

    def test_calls_after_close(self, pair: tuple[Worker, Worker]) -> None:
        pair[0].close()
        pair[0].transport.close()
        pair[0].transport.forget(1)
        with pytest.raises((UsageError, PeerLost)):
            pair[0].send(1, b"x")
        with pytest.raises(UsageError):
            pair[0].connect(pair[1])

    def test_both_close_at_once(self, pair: tuple[Worker, Worker]) -> None:
        with ThreadPoolExecutor(2) as pool:
            done = [pool.submit(worker.close) for worker in pair]
            for one in done:
                one.result(PATIENCE_S)

    def test_who_close_at_once_do_not_wait_for_one_another(self, make: MakeWorker) -> None:
        quickest = _LINGER_S
        for turn in range(3):
            workers = [make(3 * turn + number) for number in range(3)]
            for one, other in itertools.combinations(workers, 2):
                one.connect(other)
            for one, other in itertools.permutations(workers, 2):
                one.send(other.identity.id, _BLOCK)
            assert [len(worker.take(2)) for worker in workers] == [2, 2, 2]
            begun = SYSTEM.monotonic()
            with ThreadPoolExecutor(3) as pool:
                for done in [pool.submit(worker.close) for worker in workers]:
                    done.result(PATIENCE_S)
            quickest = min(quickest, SYSTEM.monotonic() - begun)
        assert quickest < _LINGER_S / 2

    def test_close_ends_who_waits_for_room(self, pair: tuple[Worker, Worker]) -> None:
        _fill(pair[0], 1)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(pair[0].send, 1, _BLOCK)
            pair[0].close()
            with pytest.raises((PeerLost, UsageError)):
                waiting.result(PATIENCE_S)

    def test_nothing_is_left_behind(self, make: MakeWorker) -> None:
        def live() -> None:
            workers = make(0), make(1)
            workers[0].connect(workers[1])
            workers[0].send(1, _BLOCK, b"x")
            assert len(workers[1].take(1)) == 1
            for worker in workers:
                worker.close()

        live()  # what a process keeps once it has used the transport
        threads, descriptors = _threads(), _descriptors()
        for _ in range(3):
            live()
        deadline = Deadline(PATIENCE_S)
        while (left := (_threads() > threads, _descriptors() > descriptors)) != (
            False,
            False,
        ) and not deadline.passed():
            SYSTEM.sleep(0.01)  # some are let go by threads of a library
        assert left == (False, False)


class StrangersConformance:
    """For transports that listen: strangers get nothing, and members get in beside them."""

    @pytest.fixture
    def doors(self) -> Callable[[Transport], list[Callable[[], socket.socket]]]:
        """Give it: of a transport, what connects to each place at which it listens."""
        raise NotImplementedError

    @pytest.mark.parametrize("said", [b"", b"\0" * 64, b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 70_000], ids=len)
    def test_strangers_get_nothing(self, make: MakeWorker, doors: Any, said: bytes) -> None:
        one, other = make(0), make(1)
        knocking = [door() for door in doors(other.transport) for _ in range(20)]
        try:
            for sock in knocking:
                sock.setblocking(False)
                _say(sock, said)
            one.connect(other)
            one.send(1, b"x")
            assert [message.source for message in other.take(1)] == [0]
            assert other.losses == []
        finally:
            for sock in knocking:
                sock.close()

    def test_members_get_in_beside_many_strangers(self, make: MakeWorker, doors: Any) -> None:
        one, other = make(0), make(1)
        knocking = [door() for door in doors(other.transport) for _ in range(300)]
        try:
            one.connect(other)
            one.send(1, b"x")
            assert len(other.take(1)) == 1
        finally:
            for sock in knocking:
                sock.close()


def _say(sock: socket.socket, said: bytes) -> None:
    try:
        sock.send(said)
    except OSError:
        assert sock.fileno() >= 0  # it was hung up on, which is as good


def _fill(worker: Worker, peer: int, *more: Buffer) -> int:
    """Send until there is no room: how many messages."""
    sent = 0
    try:
        while sent < _HELD_BYTES >> 20:
            worker.send(peer, _BLOCK, within_s=0.3)
            sent += 1
    except TimeoutError:
        return sent
    raise AssertionError(f"{sent} MiB were taken by nobody, and there is still room")


def _send_all(worker: Worker, sizes: Sequence[int]) -> None:
    for one in enumerate(sizes):
        worker.send(1, numbered(0, *one))


def _threads() -> int:
    return sum(thread.name.startswith("resilin-") for thread in threading.enumerate())


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))
