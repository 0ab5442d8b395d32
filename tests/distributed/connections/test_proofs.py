"""What one who attacks the proof of the job's secret between ranks learns and achieves."""

from __future__ import annotations

import logging
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from resilin._base import auth, log, wrong_proofs
from resilin._base.clock import SYSTEM, Deadline
from resilin._base.framing import recv_exactly
from resilin._base.wrong_proofs import WrongProofs, place_of
from resilin.distributed.connections import accept_loop, handshake
from resilin.distributed.connections.listener import Endpoint, Listener
from resilin.distributed.group import process_group
from resilin.distributed.stores import TCPStore
from resilin.errors import DistNetworkError, HandshakeError, UsageError
from resilin.testing.clock import FakeClock
from resilin.testing.job_secret import OTHER_SECRET, SECRET
from resilin.testing.patience import PATIENCE_S
from resilin.testing.relay import Relay

PURPOSE = handshake.PURPOSE


@pytest.fixture
def pair():
    here, there = socket.socketpair()
    with here, there:
        for sock in (here, there):
            sock.settimeout(PATIENCE_S)
        yield here, there


@pytest.fixture
def pool():
    with ThreadPoolExecutor(4) as pool:
        yield pool


def client(sock, secret=SECRET, purpose=PURPOSE, to=""):
    return auth.prove_as_client(sock, secret, purpose, Deadline(PATIENCE_S), to)


def server(sock, secret=SECRET, purpose=PURPOSE, own="", wrong=None):
    try:
        return auth.prove_as_server(sock, secret, purpose, Deadline(PATIENCE_S), wrong or WrongProofs(), own)
    finally:
        sock.shutdown(socket.SHUT_WR)


# -- what is said


def test_a_stranger_hears_random_bytes_and_a_refusal_that_are_the_same_whatever_the_secret(pool, monkeypatch):
    monkeypatch.setattr(auth, "new_nonce", lambda: b"n" * auth.WORD_BYTES)
    heard = set()
    for secret in (SECRET, OTHER_SECRET):
        here, there = socket.socketpair()
        with here, there:
            serving = pool.submit(server, here, secret)
            there.sendall(b"c" * auth.WORD_BYTES + b"guess".ljust(auth.WORD_BYTES))
            heard.add(there.makefile("rb").read())
            with pytest.raises(HandshakeError):
                serving.result(PATIENCE_S)
    assert heard == {b"n" * auth.WORD_BYTES + bytes(auth.WORD_BYTES)}


def test_a_proof_is_no_answer_to_another_nonce_role_purpose_or_server():
    nonces = b"c" * auth.WORD_BYTES, b"s" * auth.WORD_BYTES
    proofs = {
        auth.proof(secret, role, purpose, *order, to)
        for secret in (SECRET, OTHER_SECRET)
        for role in (b"client", b"server")
        for purpose in (b"ab", b"abc")
        for order in (nonces, nonces[::-1])
        for to in ("", "c", "dc")  # among them some whose purpose and mark are the same in a row
    }
    assert len(proofs) == 2 * 2 * 2 * 2 * 3


def test_a_client_that_is_sent_its_own_words_back_is_not_convinced(pair, pool):
    here, there = pair

    def reflect():
        for _ in range(2):
            there.sendall(recv_exactly(there, auth.WORD_BYTES, Deadline(PATIENCE_S)))

    reflecting = pool.submit(reflect)
    with pytest.raises(HandshakeError, match="did not prove its own knowledge"):
        client(here)
    reflecting.result(PATIENCE_S)


def test_a_recorded_conversation_opens_nothing(pool):
    with Listener(secret=SECRET) as listener, Relay("127.0.0.1", listener.endpoint.port) as relay:
        said = []
        with socket.create_connection(("127.0.0.1", relay.port)) as sock:
            send = sock.sendall

            class Recording:
                def __getattr__(self, name):
                    return getattr(sock, name)

                def sendall(self, data):
                    said.append(data)
                    send(data)

            client(Recording(), to=listener.endpoint.mark)
        with socket.create_connection(("127.0.0.1", listener.endpoint.port)) as again:
            again.settimeout(PATIENCE_S)
            again.sendall(b"".join(said))
            assert again.makefile("rb").read()[auth.WORD_BYTES :] == bytes(auth.WORD_BYTES)


def test_what_is_proved_in_a_dead_listeners_place_cannot_be_passed_on_to_another_listener():
    with Listener(secret=SECRET, unix=False) as gone, Listener(secret=SECRET, unix=False) as alive:
        with Relay("127.0.0.1", alive.endpoint.port) as impostor, Listener(secret=SECRET, unix=False) as here:
            told = replace(gone.endpoint, port=impostor.port).describe()
            with pytest.raises(HandshakeError, match="refused our proof"):
                process_group.connect(
                    here, [told, here.describe()], 1, group_name="g", secret=SECRET, timeout_s=PATIENCE_S
                )
        assert "did not prove" in alive._refusals.text()


def test_no_two_listeners_have_one_mark_and_a_card_without_one_is_none():
    with Listener(secret=SECRET) as one, Listener(secret=SECRET) as two:
        assert one.endpoint.mark != two.endpoint.mark
        assert Endpoint.parse(one.describe()) == one.endpoint
        with pytest.raises(UsageError):
            Endpoint.parse(one.describe().replace('"mark"', '"else"'))


# -- truncated and hostile words


@pytest.mark.parametrize("count", [0, 1, 31, 32, 33, 63])
def test_a_client_that_stops_in_the_middle_is_no_wrong_proof_and_others_come_in(count):
    with TCPStore("127.0.0.1", 0, None, True, PATIENCE_S, secret=SECRET) as store:
        with socket.create_connection(("127.0.0.1", store.port)) as sock:
            sock.sendall(b"x" * count)
        with TCPStore("127.0.0.1", store.port, timeout=PATIENCE_S, secret=SECRET) as other:
            other.set("a", "1")
        assert not store._server._wrong


@pytest.mark.parametrize("count", [0, 1, 31, 32, 33, 63])
def test_a_server_that_stops_in_the_middle_is_an_error(pair, count):
    here, there = pair
    there.sendall(b"x" * count)
    there.shutdown(socket.SHUT_WR)
    with pytest.raises(DistNetworkError, match="closed the connection"):
        client(here)


# -- guessing


def test_a_wrong_proof_makes_the_next_ones_from_its_place_wait_and_is_answered_late():
    wrong = WrongProofs()
    for _ in range(wrong_proofs.FREE):
        wrong.note(place_of("", lambda: auth.os.geteuid()))
    here, there = socket.socketpair()
    with here, there, ThreadPoolExecutor(1) as pool:
        serving = pool.submit(server, here, wrong=wrong)
        begun = SYSTEM.monotonic()
        client(there)
        assert SYSTEM.monotonic() - begun >= wrong_proofs.FIRST_S
        assert serving.result(PATIENCE_S) == SECRET


@pytest.mark.parametrize("serve", ["store", "listener"])
def test_guesses_are_counted_by_every_server_and_slowed(serve, monkeypatch, caplog):
    monkeypatch.setattr(wrong_proofs, "FIRST_S", 0.3)
    with Listener(secret=SECRET) as listener, TCPStore("127.0.0.1", 0, None, True, 5.0, secret=SECRET) as store:
        card = listener.endpoint
        port, purpose, mark = (
            (card.port, PURPOSE, card.mark)
            if serve == "listener"
            else (store.port, b"resilin dist key-value store", "")
        )
        for number in range(wrong_proofs.FREE + 1):
            begun = SYSTEM.monotonic()
            with socket.create_connection(("127.0.0.1", port)) as sock, pytest.raises(HandshakeError):
                client(sock, OTHER_SECRET, purpose, mark)
            if number == wrong_proofs.FREE:
                assert SYSTEM.monotonic() - begun >= 0.3
        with socket.create_connection(("127.0.0.1", port)) as sock:
            client(sock, SECRET, purpose, mark)
            assert f"{sock.getsockname()[0]}:" in caplog.text


def test_a_server_that_closes_does_not_wait_for_guesses_that_wait(monkeypatch):
    monkeypatch.setattr(wrong_proofs, "FREE", 0)
    monkeypatch.setattr(wrong_proofs, "FIRST_S", 600.0)
    monkeypatch.setattr(wrong_proofs, "LONGEST_S", 600.0)
    store = TCPStore("127.0.0.1", 0, None, True, PATIENCE_S, secret=SECRET)
    store._server._wrong.note(place_of("127.0.0.1", lambda: auth.os.geteuid()))
    with socket.create_connection(("127.0.0.1", store.port)) as sock:
        sock.settimeout(PATIENCE_S)
        sock.sendall(b"x" * 64)
        recv_exactly(sock, auth.WORD_BYTES, Deadline(PATIENCE_S))  # it has begun
        begun = SYSTEM.monotonic()
        store.close()
        assert SYSTEM.monotonic() - begun < PATIENCE_S


def test_the_wait_doubles_up_to_its_longest_is_of_one_place_and_is_forgotten():
    clock = FakeClock()
    wrong = WrongProofs(clock)
    waits = []
    for _ in range(12):
        waits.append(wrong.wait_s("a"))
        wrong.note("a")
    first, longest = wrong_proofs.FIRST_S, wrong_proofs.LONGEST_S
    assert waits[: wrong_proofs.FREE + 3] == [0.0] * wrong_proofs.FREE + [first, 2 * first, 4 * first]
    assert waits[-1] == longest
    assert wrong.wait_s("b") == 0.0
    clock.advance(wrong_proofs.FORGET_S + 1)
    assert wrong.wait_s("a") == 0.0
    assert not wrong


def test_a_million_wrong_places_take_little_memory_and_those_of_late_are_remembered():
    wrong = WrongProofs(FakeClock())
    for number in range(3 * wrong_proofs.MAX_PLACES):
        wrong.note(str(number))
    for _ in range(wrong_proofs.FREE):
        wrong.note("guesser")
    assert len(wrong) == wrong_proofs.MAX_PLACES
    assert wrong.wait_s("guesser") > 0


@pytest.mark.parametrize(
    ("one", "two", "same"),
    [
        ("192.0.2.1", "192.0.2.2", False),
        ("192.0.2.1", "::ffff:192.0.2.1", True),
        ("2001:db8::1", "2001:db8::ffff:2", True),  # of one network, whose host may take any
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("fe80::1%eth0", "fe80::2%eth0", True),
        ("127.0.0.1", "127.9.9.9", True),  # any process may take any of these
        ("127.0.0.1", "::1", True),
        ("127.0.0.1", "::ffff:127.0.0.2", True),
        ("", "127.0.0.1", True),  # a Unix socket
    ],
)
def test_addresses_of_one_host_are_one_place(one, two, same):
    assert (place_of(one, lambda: 1000) == place_of(two, lambda: 1000)) is same


def test_users_of_this_host_are_places_of_their_own():
    assert len({place_of("127.0.0.1", lambda user=user: user) for user in (1000, 1001, None)}) == 3


def test_refusals_are_logged_sparingly_for_ever_and_counted(caplog):
    clock = FakeClock()
    refusals = accept_loop.Refusals("here")
    refusals._warnings = log.Ration(2, 10.0, clock)
    for number in range(9):
        with pytest.raises(HandshakeError), refusals.noted():
            raise HandshakeError(f"{number} is wrong")
        clock.advance(2.0)
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert [line.partition("refused: ")[2] for line in lines] == [
        "0 is wrong",
        "1 is wrong",
        "5 is wrong (and 3 others since the last such line)",
        "6 is wrong",
    ]
    assert refusals.text().startswith("9 connections to here refused")


# -- secrets


@pytest.mark.parametrize(
    "attempt",
    [
        lambda secret: TCPStore("127.0.0.1", 1, secret=secret),
        lambda secret: Listener(secret=secret),
        lambda secret: process_group.connect(None, [], 0, group_name="g", secret=secret),
    ],
    ids=["TCPStore", "Listener", "connect"],
)
@pytest.mark.parametrize("given", ["argument", "environment"])
def test_a_short_secret_is_refused_with_the_command_that_makes_one(attempt, given, monkeypatch):
    short = "y" * 21
    monkeypatch.setenv("RESILIN_SECRET", short if given == "environment" else "")
    with pytest.raises(
        UsageError, match=r"at least 22 random characters, got 21.*`elastic-run --make-secret`"
    ) as caught:
        attempt(short if given == "argument" else None)
    assert "yyy" not in str(caught.value)
    assert threading.active_count() < 50
