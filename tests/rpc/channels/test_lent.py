"""What is lent is the value at the call, for both sides and for ever; and nothing is left when it is let go."""

from __future__ import annotations

import gc
import os
import pickle
import random
import signal
import socket
import threading
import time
import zlib
from typing import Any

import numpy as np
import pytest
from joined_channels import DEADLINE_S, Workers, block_of, joined, layout_of
from tensor_writers import WRITERS

import resilin
from resilin import distributed as dist
from resilin.core.machine import memory
from resilin.errors import HandshakeError, PeerLost
from resilin.rpc.channels import lent
from resilin.rpc.channels.base import Packed
from resilin.rpc.channels.lent import LentChannel
from resilin.testing.ranks import run_ranks

SIZE = 50_000  # float32: 200 KB, no whole number of pages


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lend what is small, too, when it is sent first."""
    monkeypatch.setattr(lent, "EAGER_BYTES", 0)


def _bytes(tensor: Any) -> bytes:
    return bytes(np.ascontiguousarray(tensor._array).tobytes())


def _open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


# --- snapshots ---


@pytest.mark.parametrize("way", WRITERS)
def test_no_way_to_write_shows_at_the_other_side(way: str) -> None:
    with joined(2) as workers:
        for given_first in (False, True):
            sent = resilin.arange(SIZE).float()
            if given_first:  # a copy goes then, that the borrower writes in place
                workers.send([sent], 0, 1)
                sent.add_(1)
            before = _bytes(sent)
            (first,) = workers.send([sent], 0, 1)
            (second,) = workers.send([sent], 0, 1)
            assert _bytes(first) == _bytes(second) == before
            WRITERS[way](sent, random.Random(1))
            assert _bytes(sent) != before
            assert _bytes(first) == _bytes(second) == before
            after = _bytes(sent)
            WRITERS[way](first, random.Random(2))
            assert _bytes(first) != before
            assert _bytes(second) == before
            assert _bytes(sent) == after
            (third,) = workers.send([sent], 0, 1)
            assert _bytes(third) == after


def test_memory_that_has_escaped_before_is_lent_all_the_same() -> None:
    with joined(2) as workers:
        sent = resilin.zeros(SIZE)
        outside = sent.numpy()
        (received,) = workers.send([sent], 0, 1)
        outside[:] = 7
        assert not received.any()
        assert sent.sum().item() == 7 * SIZE


def test_what_comes_back_is_a_tensor_of_its_own() -> None:
    with joined(2) as workers:
        sent = resilin.ones(SIZE)
        (there,) = workers.send([sent], 0, 1)
        packed, layout = workers.pack([there], 1, 0)
        assert not packed.parts
        (back,) = workers.unpack((packed, layout), 1, 0)
        there.zero_()
        sent.add_(1)
        assert _bytes(back) == _bytes(resilin.ones(SIZE))
        back.add_(5)
        assert _bytes(sent) == _bytes(resilin.full((SIZE,), 2.0))
        assert not there.any()


def test_what_was_given_comes_back_without_a_copy_though_it_was_written() -> None:
    with joined(2) as workers:
        foreign = resilin.from_numpy(np.frombuffer(bytearray(4 * SIZE), np.float32))
        (there,) = workers.send([foreign], 0, 1)
        there.add_(1)
        blocks = memory.stats()["allocated"]
        (back,) = workers.send([there], 1, 0)
        assert memory.stats()["allocated"] == blocks
        there.add_(1)
        assert back.sum().item() == SIZE
        assert there.sum().item() == 2 * SIZE
        assert not foreign.any()


def test_a_third_worker_is_given_a_copy_that_outlives_the_loan() -> None:
    with joined(3) as workers:
        (there,) = workers.send([resilin.ones(SIZE)], 0, 1)
        (third,) = workers.send([there], 1, 2)
        there.zero_()
        del there
        gc.collect()
        workers.channels[1]._tell_now()
        workers.deliver()
        assert workers.channels[0].stats()["loans"] == 0
        assert third.sum().item() == SIZE


def test_tensors_that_share_memory_share_it_again() -> None:
    with joined(2) as workers:
        whole = resilin.zeros(200, 500)
        sent = [whole, whole[3:50], whole.t(), whole[:, ::7]]
        received = workers.send(sent, 0, 1)
        received[1].fill_(5)
        assert received[0].sum().item() == received[2].sum().item() == 5 * 47 * 500
        assert received[3].sum().item() == 5 * 47 * len(range(0, 500, 7))
        assert not whole.any()
        received[0].copy_(resilin.arange(100_000).reshape(200, 500).float())
        whole.copy_(received[0])
        for mine, theirs in zip(sent, received, strict=True):
            assert _bytes(mine) == _bytes(theirs)


def test_a_small_piece_of_a_large_block_leaves_the_block_where_peers_can_map_it() -> None:
    with joined(2) as workers:
        whole = resilin.zeros(1 << 20)
        (received,) = workers.send([whole[4096 : 4096 + SIZE]], 0, 1)
        assert memory.locate(whole._array) is not None
        whole.fill_(1)
        assert not received.any()


def test_a_block_is_either_lent_or_located_until_it_is_freed() -> None:
    with joined(2) as workers:
        sent, used = resilin.zeros(SIZE), resilin.zeros(SIZE)
        place = memory.locate(used._array)
        (received, copy) = (*workers.send([sent], 0, 1), *workers.send([used], 0, 1))
        assert memory.locate(sent._array) is None
        assert memory.locate(received._array) is None
        assert memory.locate(used._array) == place
        assert memory.locate(copy._array) is None
        used.fill_(1)
        assert not copy.any()
        del sent, used, received, copy
        workers.settle()
        assert memory.locate(resilin.zeros(SIZE)._array) is not None
        workers.send([resilin.zeros(SIZE)], 0, 1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_random_writers_on_three_workers_see_snapshots_only(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lent, "EAGER_BYTES", lent.MIN_BYTES * (seed % 3))
    rng = random.Random(seed)
    before = memory.stats()["loans"], memory.stats()["windows"], memory.stats()["allocated"]
    with joined(3) as workers:
        _play(workers, rng, steps=150)
        gc.collect()
        workers.settle()
    assert (memory.stats()["loans"], memory.stats()["windows"], memory.stats()["allocated"]) == before


def _play(workers: Workers, rng: random.Random, steps: int) -> None:
    """Writes, messages that arrive late, and tensors that go, at random; every value is compared after each."""
    held: dict[int, list[Any]] = {worker: [] for worker in range(3)}  # [tensor, its value]
    sent: list[tuple[Any, bytes, int, int]] = []
    ways = [way for way in WRITERS if way not in ("batch_norm", "optimizer", "gradient")]  # slow, and seen above
    for _ in range(steps):
        here = rng.randrange(3)
        move = rng.random()
        if move < 0.15 or not held[here]:
            made = resilin.rand(rng.randrange(17_000, SIZE))
            if rng.random() < 0.2:
                made = resilin.from_numpy(np.frombuffer(bytearray(_bytes(made)), np.float32))
            held[here].append([made, _bytes(made)])
        elif move < 0.45:
            each = rng.choice(held[here])
            WRITERS[rng.choice(ways)](each[0], rng)
            each[1] = _bytes(each[0])
        elif move < 0.65:
            to = rng.randrange(3)
            tensor, value = rng.choice(held[here])
            packed = workers.pack([tensor], here, to)
            if rng.random() < 0.1:
                workers.channels[here].withdraw(packed[0], to)
            else:
                sent.append((packed, value, here, to))
        elif move < 0.85 and sent:
            packed, value, source, to = sent.pop(rng.randrange(len(sent)))
            (received,) = workers.unpack(packed, source, to)
            assert _bytes(received) == value
            held[to].append([received, value])
        elif move < 0.95:
            held[here].pop(rng.randrange(len(held[here])))
        else:
            workers.deliver()
        if len(held[here]) > 8:
            held[here].pop(0)
        for tensors in held.values():
            for tensor, value in tensors:
                assert _bytes(tensor) == value
    for packed, value, source, to in sent:  # what nobody needs is unpacked all the same
        (received,) = workers.unpack(packed, source, to)
        assert _bytes(received) == value


def test_a_thread_that_writes_all_the_time_never_shows_later() -> None:
    with joined(2) as workers:
        sent, turn, stop = resilin.zeros(1 << 18), threading.Lock(), threading.Event()
        writes = 0

        def write() -> None:
            nonlocal writes
            while not stop.is_set():
                with turn:
                    sent.add_(1)
                    writes += 1

        writer = threading.Thread(target=write)
        writer.start()
        try:
            received: list[tuple[Any, int]] = []
            for _ in range(60):
                with turn:
                    packed = workers.pack([sent], 0, 1)
                    value = writes
                (there,) = workers.unpack(packed, 0, 1)
                received = [*received[-5:], (there, value)]
                for tensor, known in received:
                    assert (tensor == float(known)).all()
                turns = writes
                while writes < turns + 2:
                    stop.wait(0.0005)
        finally:
            stop.set()
            writer.join()
        assert (sent == float(writes)).all()  # no write was lost


def test_a_thread_that_writes_during_the_call_loses_nothing_and_what_was_sent_stays() -> None:
    with joined(2) as workers:
        stop = threading.Event()
        for _ in range(20):
            sent, writes = resilin.zeros(1 << 18), 0

            def write(sent: Any = sent) -> None:
                nonlocal writes
                while not stop.is_set():
                    sent.add_(1)
                    writes += 1

            writer = threading.Thread(target=write)
            writer.start()
            try:
                while writes < 3:
                    stop.wait(0.0005)
                (there,) = workers.send([sent], 0, 1)
                value, turns = _bytes(there), writes
                while writes < turns + 3:
                    stop.wait(0.0005)
                assert _bytes(there) == value
            finally:
                stop.set()
                writer.join()
                stop.clear()
            assert (sent == float(writes)).all()


# --- what goes which way ---


def test_what_is_small_is_copied_once_and_lent_when_it_is_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lent, "EAGER_BYTES", 2 << 20)
    with joined(2) as workers:
        sent = resilin.ones(SIZE)
        kinds = [workers.pack([sent], 0, 1)[0].note[0] for _ in range(3)]
        large = workers.pack([resilin.ones(1 << 20)], 0, 1)[0].note[0]
        assert [*kinds, large] == [lent._GIVEN, lent._LENT, lent._LENT, lent._LENT]


def test_small_and_foreign_blocks_are_left_to_other_channels() -> None:
    with joined(1) as workers:
        (channel,) = workers.channels
        ours = channel.describe()
        assert channel.reaches(block_of([resilin.zeros(lent.MIN_BYTES // 4)]), ours)
        assert not channel.reaches(block_of([resilin.zeros(lent.MIN_BYTES // 4 - 1)]), ours)
        assert not channel.reaches(block_of([resilin.zeros(SIZE)]), "another host")
        block = block_of([resilin.zeros(SIZE)])
        assert not channel.reaches(type(block)(block.owner, block.start, block.size, block.tensors, "cuda:0"), ours)
        channel.close()
        assert not channel.reaches(block, ours)


def test_without_native_code_everything_is_left_to_other_channels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lent.lending, "available", False)
    monkeypatch.setattr(lent.lending, "native", None)
    with joined(1) as workers:
        (channel,) = workers.channels
        assert not channel.reaches(block_of([resilin.zeros(SIZE)]), channel.describe())
        channel.lost(1)
        channel.handle(1, b"")
        assert channel.stats() == {"loans": 0, "windows": 0, "arenas": 0}


def test_without_arenas_bytes_travel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lent.lending, "_lend", lambda *_: None)
    monkeypatch.setattr(lent.lending, "_give", lambda *_: None)
    with joined(2) as workers:
        sent = resilin.rand(SIZE)
        packed, layout = workers.pack([sent], 0, 1)
        assert sum(len(part) for part in packed.parts) == sent.nbytes
        (received,) = workers.unpack((packed, layout), 0, 1)
        assert _bytes(received) == _bytes(sent)
        received.zero_()
        assert sent.any()


def test_where_the_kernel_maps_no_more_the_memory_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    with joined(2) as workers:
        sent = resilin.rand(SIZE)
        packed = workers.pack([sent], 0, 1)
        monkeypatch.setattr(lent.lending, "_open_window", lambda *_: None)
        (received,) = workers.unpack(packed, 0, 1)
        assert _bytes(received) == _bytes(sent)
        workers.settle()


def test_a_worker_sends_to_itself() -> None:
    with joined(1) as workers:
        sent = resilin.ones(SIZE)
        (received,) = workers.send([sent], 0, 0)
        received.add_(1)
        (again,) = workers.send([received], 0, 0)
        received.zero_()
        assert (sent == 1.0).all()
        assert (again == 2.0).all()
        del received, again
        workers.settle()


# --- ends ---


def test_nothing_is_left_after_a_thousand_messages() -> None:
    with joined(2) as workers:
        sent = resilin.rand(SIZE)
        workers.send(workers.send([sent], 0, 1), 1, 0)
        workers.settle()
        before, files = memory.stats(), _open_files()
        for turn in range(1000):
            (there,) = workers.send([sent], 0, 1)
            (back,) = workers.send([there], 1, 0)
            if turn % 50 == 0:
                back.add_(1)
                there.add_(1)
                sent.add_(1)
        del there, back
        workers.settle()
        after = memory.stats()
        for name in ("loans", "windows", "arenas", "allocated"):
            assert after[name] == before[name]
        assert _open_files() == files


def test_closing_gives_every_descriptor_and_thread_back() -> None:
    gc.collect()
    files, threads = _open_files(), threading.active_count()
    with joined(2) as workers:
        (there,) = workers.send([resilin.rand(SIZE)], 0, 1)
        value = _bytes(there)
    workers.close()
    assert _bytes(there) == value
    del there, workers
    gc.collect()
    assert (_open_files(), threading.active_count()) == (files, threads)


def test_a_freed_block_is_used_again_only_after_its_loan() -> None:
    with joined(2) as workers:
        sent = resilin.full((SIZE,), 3.0)
        address = sent.data_ptr()
        (there,) = workers.send([sent], 0, 1)
        del sent
        others = [resilin.zeros(SIZE) for _ in range(20)]
        assert address not in [each.data_ptr() for each in others]
        assert (there == 3.0).all()
        del there
        workers.settle()
        assert address in [resilin.zeros(SIZE).data_ptr() for _ in range(3)]


@pytest.mark.parametrize("written_while_lent", [True, False])
def test_originals_of_pages_that_were_written_are_freed_after_the_loan(written_while_lent: bool) -> None:
    with joined(2) as workers:
        sent = resilin.ones(4 << 20)
        (there,) = workers.send([sent], 0, 1)
        arena = next(iter(workers.channels[0]._loans.values())).place.arena

        def used() -> int:
            return os.fstat(memory.arena_fd(arena)).st_blocks * 512

        if written_while_lent:
            sent[: 2 << 20] = 2.0
        before = used()
        del there
        workers.settle()
        sent[: 2 << 20] = 2.0
        end = time.monotonic() + DEADLINE_S
        while before - used() < (8 << 20) - 8192:
            assert time.monotonic() < end, (before, used())
            time.sleep(0.01)
        assert sent.sum().item() == 3 * (2 << 20)
        (there,) = workers.send([sent], 0, 1)
        assert _bytes(there) == _bytes(sent)
        (there,) = workers.send([sent[2 << 20 :]], 0, 1)
        assert (there == 1.0).all()


def test_loans_of_a_lost_peer_end_when_it_shows_them_no_more() -> None:
    with joined(2) as workers:
        (there,) = workers.send([resilin.ones(SIZE)], 0, 1)
        pending = workers.pack([resilin.ones(SIZE)], 0, 1)
        workers.channels[0].lost(1)  # its process lives, and shows it
        assert workers.channels[0].stats()["loans"] == 2
        others = [resilin.zeros(SIZE) for _ in range(5)]
        assert (there == 1.0).all()
        assert not any(each.any() for each in others)
        workers.channels[1].close()
        assert (there == 1.0).all()
        workers.settle_one(0)
        with pytest.raises(PeerLost, match="after the end of RPC"):
            workers.unpack(pending, 0, 1)


def test_what_a_lost_lender_has_lent_is_let_go_with_its_tensors() -> None:
    with joined(2) as workers:
        (there,) = workers.send([resilin.ones(SIZE)], 0, 1)
        workers.channels[1].lost(0)
        assert (there == 1.0).all()
        del there
        gc.collect()
        workers.channels[1]._tell_now()
        workers.channels[0].lost(1)
        workers.settle_one(0)


def test_what_a_closed_channel_has_lent_is_shown_until_the_peer_lets_go() -> None:
    before = memory.stats()["loans"]
    with joined(2) as workers:
        (there,) = workers.send([resilin.ones(SIZE)], 0, 1)
        workers.pack([resilin.ones(SIZE)], 0, 1)
        workers.channels[0].close()
        others = [resilin.zeros(SIZE) for _ in range(8)]
        assert (there == 1.0).all()
        assert not any(each.any() for each in others)
        workers.channels[1].close()
        workers.settle_one(0)
        assert (there == 1.0).all()
    assert memory.stats()["loans"] == before


def test_a_replacement_under_the_same_number_is_another_lender_and_another_borrower() -> None:
    with joined(2) as workers:
        (old,) = workers.send([resilin.ones(SIZE)], 0, 1)
        (from_old,) = workers.send([resilin.ones(SIZE)], 1, 0)
        dead = workers.channels[1]
        workers.channels[0].lost(1)
        workers.channels[1] = LentChannel(workers.post_of(1), "")
        (new,) = workers.send([resilin.full((SIZE,), 2.0)], 0, 1)
        (from_new,) = workers.send([resilin.full((SIZE,), 3.0)], 1, 0)
        dead.close()
        assert (old == 1.0).all()
        others = [resilin.zeros(SIZE) for _ in range(8)]
        assert (from_old == 1.0).all()
        assert (new == 2.0).all()
        assert (from_new == 3.0).all()
        assert not any(each.any() for each in others)
        workers.settle_one(0, loans=1)
        del old, from_old, new, from_new
        workers.settle()


# --- strangers and nonsense ---


def test_notes_that_no_channel_wrote_are_refused() -> None:
    with joined(2) as workers:
        packed, _ = workers.pack([resilin.ones(SIZE)], 0, 1)
        receiver = workers.channels[1]
        for note in (b"", b"x", packed.note[:-1], b"\x09" + packed.note[1:], packed.note + b"x"):
            with pytest.raises(ValueError, match=r"worker 0|loans"):
                receiver.unpack(note, (), 0)
        with pytest.raises(ValueError, match="parts"):
            receiver.unpack(packed.note, (b"x",), 0)
        with pytest.raises(ValueError, match="loans"):
            receiver.handle(0, b"x")
        kind, loan, arena, offset, size, token = lent._NOTE.unpack(packed.note)
        for wrong in ((offset + (1 << 40), size), (offset, 1 << 50), (offset, 0)):
            with pytest.raises(ValueError, match="in an arena"):
                receiver.unpack(lent._NOTE.pack(kind, loan, arena, *wrong, token), (), 0)


def test_a_peer_can_send_back_only_what_it_was_lent() -> None:
    with joined(3) as workers:
        packed, _ = workers.pack([resilin.ones(SIZE)], 0, 1)
        _, loan, arena, offset, size, token = lent._NOTE.unpack(packed.note)
        lender = workers.channels[0]
        for source, wrong in ((2, (loan, arena, offset, size)), (1, (loan + 999, arena, offset, size))):
            with pytest.raises(ValueError, match="which it has not"):
                lender.unpack(lent._NOTE.pack(lent._BACK, *wrong, token), (), source)
        with pytest.raises(ValueError, match="which it has not"):
            lender.unpack(lent._NOTE.pack(lent._BACK, loan, arena, offset, size + 1, token), (), 1)
        lender.handle(2, lent._ENDED.pack(loan, 0))  # not its loan to end
        assert lender.stats()["loans"] == 1


def test_who_does_not_know_the_secret_gets_no_memory() -> None:
    memory.install()
    posted: list[Any] = []
    lender = LentChannel(lambda *note: posted.append(note), "right" * 5)
    stranger = LentChannel(lambda *note: posted.append(note), "wrong" * 5)
    try:
        packed = lender.pack(block_of([resilin.ones(SIZE)]), 1)
        with pytest.raises(HandshakeError):
            stranger.unpack(packed.note, packed.parts, 0)
        assert lender.stats()["loans"] == 1
    finally:
        stranger.close()
        lender.close()


def test_a_stranger_that_says_nothing_is_in_nobodys_way() -> None:
    with joined(2, "secret" * 5) as workers:
        address = b"\0resilin-rpc-arenas-" + workers.channels[0]._token.hex().encode()
        strangers = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(10)]
        try:
            for stranger in strangers:
                stranger.connect(address)
            (there,) = workers.send([resilin.ones(SIZE)], 0, 1)
            assert (there == 1.0).all()
        finally:
            for stranger in strangers:
                stranger.close()


# --- forks ---


def _fork(check: Any) -> int:
    """Run `check` in a forked child, which ends with 0 when it passes."""
    child = os.fork()
    if child:
        return child
    passed = False
    try:
        check()
        passed = True
    finally:
        os._exit(0 if passed else 1)


def test_a_forked_child_keeps_what_was_lent_and_borrowed_as_it_was() -> None:
    with joined(2) as workers:
        sent, other = resilin.ones(SIZE), resilin.ones(SIZE)
        (there,) = workers.send([sent], 0, 1)
        (given,) = workers.send([resilin.from_numpy(np.ones(SIZE, np.float32)[::1])], 0, 1)
        sent[:100] = 2.0
        go = os.pipe()

        def check(there: Any = there, sent: Any = sent) -> None:
            os.read(go[0], 1)
            assert sent[:100].sum().item() == 200
            assert sent[100:].sum().item() == SIZE - 100
            assert (there == 1.0).all()
            assert (given == 1.0).all()
            assert (other == 1.0).all()
            there.add_(1)
            given.add_(1)
            sent.add_(1)

        child = _fork(check)
        del check
        sent.zero_()
        given.add_(4)
        del there
        gc.collect()
        workers.channels[1]._tell_now()
        workers.deliver()
        assert workers.channels[0].stats()["loans"] == 1
        del sent
        rest = [resilin.full((SIZE,), 9.0) for _ in range(8)]
        os.write(go[1], b"g")
        assert os.waitpid(child, 0)[1] == 0
        assert (given == 5.0).all()
        assert all((each == 9.0).all() for each in rest)
        for fd in go:
            os.close(fd)


def test_a_forked_reader_keeps_the_loans_that_it_reads() -> None:
    with joined(2) as workers:
        sent = resilin.ones(SIZE)
        (there,) = workers.send([sent], 0, 1)
        readers = memory.Readers()
        go = os.pipe()

        def check(there: Any = there, sent: Any = sent) -> None:
            os.read(go[0], 1)
            assert (there == 1.0).all()
            assert (sent == 1.0).all()

        with readers.forking():
            child = _fork(check)
        del there, sent, check
        gc.collect()
        workers.channels[1]._tell_now()
        workers.deliver()
        assert workers.channels[0].stats()["loans"] == 1
        rest = [resilin.full((SIZE,), 9.0) for _ in range(8)]
        os.write(go[1], b"g")
        assert os.waitpid(child, 0)[1] == 0
        readers.close()
        workers.settle()
        assert all((each == 9.0).all() for each in rest)
        for fd in go:
            os.close(fd)


def test_a_child_that_writes_what_it_inherited_shows_nobody() -> None:
    with joined(2) as workers:
        sent = resilin.ones(SIZE)
        (there,) = workers.send([sent], 0, 1)

        def write() -> None:
            sent.fill_(7)
            there.fill_(8)
            assert (sent == 7.0).all()
            assert (there == 8.0).all()

        assert os.waitpid(_fork(write), 0)[1] == 0
        assert (sent == 1.0).all()
        assert (there == 1.0).all()


# --- two processes ---


def test_memory_of_a_killed_lender_stays_readable_and_a_killed_borrowers_loans_end() -> None:
    theirs, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    memory.install()
    child = os.fork()
    if child == 0:
        _lend_and_wait(theirs)
    theirs.close()
    channel = LentChannel(lambda to, note: None, "secret" * 5)
    try:
        note = ours.recv(65536)
        received = resilin.Tensor._wrap(channel.unpack(note, (), 1).view(np.float32))
        assert received.sum().item() == 3 * SIZE
        back = channel.pack(block_of([received]), 1)
        sent = resilin.ones(SIZE)
        for packed in (back, channel.pack(block_of([sent]), 1)):
            ours.send(packed.note)
            assert ours.recv(65536) == b"same"
        assert channel.stats() == {"loans": 1, "windows": 1, "arenas": 1}
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        channel.lost(1)
        assert received.sum().item() == 3 * SIZE
        received.add_(1)
        assert received.sum().item() == 4 * SIZE
        del received
        end = time.monotonic() + DEADLINE_S
        while any((found := channel.stats()).values()):
            assert time.monotonic() < end, found
            time.sleep(0.001)
    finally:
        ours.close()
        channel.close()


def _lend_and_wait(line: socket.socket) -> None:
    """The lender's process: sends a tensor, compares what comes back, and waits to be killed."""
    try:
        channel = LentChannel(lambda to, note: None, "secret" * 5)
        sent = resilin.full((SIZE,), 3.0)
        line.send(channel.pack(block_of([sent]), 0).note)
        kept = []
        for value in (3.0, 1.0):
            received = resilin.Tensor._wrap(channel.unpack(line.recv(65536), (), 0).view(np.float32))
            kept.append(received)
            line.send(b"same" if (received == value).all() else b"else")
        signal.pause()
    finally:
        os._exit(1)


def test_layouts_survive() -> None:
    with joined(2) as workers:
        for tensor in (
            resilin.arange(60_000).reshape(200, 300).t(),
            resilin.rand(100, 100, 8)[:, 3:, ::2],
            resilin.ones(60_000, dtype=resilin.bfloat16),
            resilin.arange(90_000) > 15_000,
        ):
            block = block_of([tensor])
            if block.size < lent.MIN_BYTES:
                raise AssertionError(layout_of(block))
            (received,) = workers.send([tensor], 0, 1)
            assert received.shape == tensor.shape
            assert received.stride() == tensor.stride()
            assert _bytes(received) == _bytes(tensor)


def test_a_packed_note_is_small() -> None:
    with joined(2) as workers:
        packed, _ = workers.pack([resilin.ones(SIZE)], 0, 1)
        assert isinstance(packed, Packed)
        assert len(packed.note) < 64


# --- beside collectives ---


def test_collectives_of_tensors_on_loan_give_the_same_and_show_at_no_borrower() -> None:
    def work(rank: int) -> None:
        for count in (SIZE, 1_000_003):
            tensor = resilin.full((count,), rank + 1.0)
            (there,) = workers.send([tensor], rank, 1 - rank)
            for turn in range(3):
                dist.all_reduce(tensor)
                assert (tensor == 3.0 * 2**turn).all()
                (there_later,) = workers.send([tensor], rank, 1 - rank)
            dist.all_reduce(there)  # a window itself
            assert (there == 3.0).all()
            assert (tensor == 12.0).all()
            dist.all_reduce(there_later)
            assert (there_later == 24.0).all()
            gathered = [resilin.zeros(count), resilin.zeros(count)]
            dist.all_gather(gathered, tensor)
            assert all((each == 12.0).all() for each in gathered)

    with joined(2) as workers:
        run_ranks(2, work).results()


@pytest.mark.slow
def test_two_processes_pass_tensors_to_and_fro_with_the_value_at_the_call() -> None:
    theirs, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    memory.install()
    child = _fork(lambda: _play_across(theirs, 0, random.Random(5)))
    theirs.close()
    before = memory.stats()["loans"], memory.stats()["windows"]
    try:
        _play_across(ours, 1, random.Random(6))
    finally:
        ours.close()
        assert os.waitpid(child, 0)[1] == 0
    assert (memory.stats()["loans"], memory.stats()["windows"]) == before


def _play_across(line: socket.socket, me: int, rng: random.Random) -> None:
    """In turns: take a tensor, compare it with its sum, write into it or not, and send it, another or both back."""
    posts: list[bytes] = []
    channel = LentChannel(lambda to, note: posts.append(note), "secret" * 5)
    kept: list[tuple[Any, bytes]] = []
    ways = ("add_", "fill_", "view", "strided", "numpy", "data_ptr", "data", "copy_")
    for turn in range(200):
        if turn % 2 == me:
            note, value, ended = pickle.loads(line.recv(1 << 20))
            for each in ended:
                channel.handle(1 - me, each)
            received = resilin.Tensor._wrap(channel.unpack(note, (), 1 - me).view(np.float32))
            assert zlib.crc32(_bytes(received)) == value
            kept.append((received, _bytes(received)))
        else:
            if not kept or rng.random() < 0.3:
                made = resilin.rand(rng.randrange(20_000, 200_000))
                kept.append((made, _bytes(made)))
            tensor, _ = kept.pop(rng.randrange(len(kept)))
            if rng.random() < 0.5:
                WRITERS[rng.choice(ways)](tensor, rng)
            packed = channel.pack(block_of([tensor]), 1 - me)
            ended, posts[:] = list(posts), []
            line.send(pickle.dumps((packed.note, zlib.crc32(_bytes(tensor)), ended)))
            if rng.random() < 0.5:
                WRITERS[rng.choice(ways)](tensor, rng)
            kept.append((tensor, _bytes(tensor)))
        for tensor, known in kept:
            assert _bytes(tensor) == known
        while len(kept) > 3:
            kept.pop(rng.randrange(len(kept)))
    kept.clear()
    del received, tensor
    gc.collect()
    channel._tell_now()
    line.send(pickle.dumps(posts))  # both are at the end
    for each in pickle.loads(line.recv(1 << 20)):
        channel.handle(1 - me, each)
    line.send(b"done")
    assert line.recv(16) == b"done"
    assert channel.stats()["windows"] == channel.stats()["loans"] == 0
    channel.close()
