"""What gets into a store with a secret, and what one that attacks it, or takes its place, learns and achieves."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import grpc
import pytest

from resilin import store
from resilin._base import wrong_proofs
from resilin._base.clock import SYSTEM, Deadline
from resilin.errors import StoreRefused, UsageError
from resilin.store import gate as store_gate
from resilin.store import token
from resilin.store.gate import Gate
from resilin.store.memory import MemoryStore
from resilin.store.messages import METHODS, cls, new, path
from resilin.store.server import StoreServer
from resilin.store.service import Rejected
from resilin.testing.clock import FakeClock
from resilin.testing.job_secret import OTHER_SECRET, SECRET
from resilin.testing.patience import PATIENCE_S
from resilin.testing.recorder import Recorder

HERE, FAR, FARTHER = "127.0.0.1", "192.0.2.7", "192.0.2.8"


@dataclass
class Caller:
    """A connection, as the gate sees it."""

    host: str = FAR
    number: int | None = None
    closed: bool = False
    given: token.Given = field(default_factory=token.Given)

    @property
    def address(self):
        return self.host, 4711

    @property
    def same_host(self):
        return self.host == HERE

    def user(self):
        return self.number


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def gate(clock):
    return Gate(SECRET, "192.0.2.1:29400", clock)


@pytest.fixture
def state():
    with MemoryStore() as state:
        yield state


@pytest.fixture
def server(state):
    with StoreServer(state, secret=SECRET) as server:
        yield server


def answer(gate, caller, secret=SECRET):
    """Log in with a guess, as our client does; the second answer."""
    mine = token.ClientProof(secret)
    return mine, gate.authenticate(
        caller, token.PROOF_USER, mine.respond(gate.authenticate(caller, token.PROOF_USER, mine.nonce))
    )


def log_in(gate, caller):
    mine, given = answer(gate, caller)
    return mine.finish(given)


def refused(code, attempt, *arguments):
    with pytest.raises(Rejected) as caught:
        attempt(*arguments)
    assert caught.value.code == code
    return str(caught.value)


# -- tokens


def test_a_call_is_let_in_by_its_token_and_its_answer_proves_who_gave_it(gate):
    caller = Caller()
    session = log_in(gate, caller)
    for _ in range(3):
        presented, proof = session.present()
        assert gate.admit(caller, presented) == proof
        assert SECRET not in presented + proof


def test_a_recorded_token_is_worth_nothing_on_another_connection(gate):
    caller = Caller()
    presented, _ = log_in(gate, caller).present()
    assert gate.admit(caller, presented)
    assert refused("UNAUTHENTICATED", gate.admit, Caller(), presented) == "invalid auth token"
    other = Caller()
    log_in(gate, other)  # nor on one that is let in itself
    refused("UNAUTHENTICATED", gate.admit, other, presented)


def test_a_token_ends_after_minutes_also_on_its_own_connection(gate, clock):
    caller = Caller()
    session = log_in(gate, caller)
    assert session.life_s == token.LIFE_S <= 600
    clock.advance(token.LIFE_S - 1)
    gate.admit(caller, session.present()[0])
    clock.advance(1)
    refused("UNAUTHENTICATED", gate.admit, caller, session.present()[0])
    gate.admit(caller, log_in(gate, caller).present()[0])


def test_an_older_token_is_good_until_its_end_and_few_are_kept(gate):
    caller = Caller()
    sessions = [log_in(gate, caller) for _ in range(token.KEPT + 1)]
    refused("UNAUTHENTICATED", gate.admit, caller, sessions[0].present()[0])
    for session in sessions[1:]:
        gate.admit(caller, session.present()[0])
    for _ in range(100):
        gate.authenticate(caller, token.PROOF_USER, token.new_nonce())
    assert len(caller.given.challenges) == len(caller.given.tokens) == token.KEPT


# -- proofs


def test_a_stranger_gets_random_bytes_and_nothing_that_the_secret_went_into(gate, monkeypatch):
    monkeypatch.setattr(token.secrets, "token_hex", lambda count: "5" * 2 * count)
    nonce = "1" * 32
    assert {
        Gate(secret, "at").authenticate(Caller(), token.PROOF_USER, nonce) for secret in (SECRET, OTHER_SECRET)
    } == {"5" * 32}


def test_a_recorded_proof_is_good_once_on_its_connection_and_for_seconds(gate, clock):
    caller, mine = Caller(), token.ClientProof(SECRET)
    response = mine.respond(gate.authenticate(caller, token.PROOF_USER, mine.nonce))
    refused("UNAUTHENTICATED", gate.authenticate, Caller(), token.PROOF_USER, response)
    assert mine.finish(gate.authenticate(caller, token.PROOF_USER, response))
    refused("UNAUTHENTICATED", gate.authenticate, caller, token.PROOF_USER, response)
    response = mine.respond(gate.authenticate(caller, token.PROOF_USER, mine.nonce))
    clock.advance(token.CHALLENGE_S)
    refused("UNAUTHENTICATED", gate.authenticate, caller, token.PROOF_USER, response)


def test_a_proof_for_another_nonce_of_the_client_is_refused(gate):
    caller, mine, other = Caller(), token.ClientProof(SECRET), token.ClientProof(SECRET)
    challenge = gate.authenticate(caller, token.PROOF_USER, mine.nonce)
    refused("UNAUTHENTICATED", gate.authenticate, caller, token.PROOF_USER, other.respond(challenge))


def test_what_the_server_proves_is_no_proof_of_a_client_nor_the_other_way_round(gate):
    caller = Caller()
    mine, given = answer(gate, caller)
    proven = given.rpartition(".")[2]
    challenge = gate.authenticate(caller, token.PROOF_USER, mine.nonce)
    refused("INVALID_ARGUMENT", gate.authenticate, caller, token.PROOF_USER, f"{mine.nonce}.{challenge}.{proven}")
    reflected = mine.respond(token.new_nonce()).rpartition(".")[2]
    assert mine.finish(f"{'0' * 32}.300.{reflected}") is None


def test_a_client_believes_no_server_with_another_secret_or_changed_words(gate):
    mine, given = answer(gate, Caller())
    name, life, proven = given.split(".")
    assert mine.finish(given)
    for other in ("", ".", "..", given[:-1], f"{name}.{life}9.{proven}", f"{'0' * 32}.{life}.{proven}", "ü" * 99):
        assert mine.finish(other) is None
    for challenge in (
        "",
        "x",
        "0" * 31,
        "0" * 33,
        "G" * 32,
        "0" * 31 + "\n",
        f"{'0' * 32}.{'0' * 64}",
        "0" * (4 << 20),
    ):
        assert mine.respond(challenge) is None


@pytest.mark.parametrize(
    "password",
    ["", ".", "..", "0" * 31, f"{'0' * 32}.{'0' * 32}", f"{'0' * 32}.{'0' * 32}.x.y", "\0" * 40, "é" * 40, "0." * 999],
)
def test_hostile_words_are_refused_and_counted_as_wrong(gate, password):
    caller = Caller()
    refused("INVALID_ARGUMENT", gate.authenticate, caller, token.PROOF_USER, password)
    assert len(gate._wrong) == 1
    assert not caller.given.tokens


@pytest.mark.parametrize(
    "presented", ["", ".", ".1", "0" * 32, "NAME.", "NAME", "NAME.x", "NAME.-1", "NAME.1.1", "NAMÉ.1"]
)
def test_a_token_that_is_none_is_refused(gate, presented):
    caller = Caller()
    name = log_in(gate, caller).name
    refused("UNAUTHENTICATED", gate.admit, caller, presented.replace("NAME", name))
    refused("INVALID_ARGUMENT", gate.admit, caller, None)


# -- passwords


def test_a_password_is_taken_on_the_host_alone_and_elsewhere_not_even_compared(gate):
    caller = Caller(HERE, 1000)
    assert gate.admit(caller, gate.authenticate(caller, "resilin", SECRET)) == ""
    for password in (SECRET, OTHER_SECRET):
        said = refused("PERMISSION_DENIED", gate.authenticate, Caller(), "resilin", password)
        assert "clear text" in said
        assert "tunnel" in said
    assert not gate._wrong


def test_a_token_for_a_password_is_of_one_user_and_ends_with_its_connection_and_after_minutes(gate, clock):
    first = Caller(HERE, 1000)
    name = gate.authenticate(first, "resilin", SECRET)
    assert gate.admit(Caller(HERE, 1000), name) == ""  # `etcdctl endpoint status` has another connection
    for other in (Caller(HERE, 1001), Caller(HERE, None), Caller(FAR, 1000)):
        refused("UNAUTHENTICATED", gate.admit, other, name)
    first.closed = True
    refused("UNAUTHENTICATED", gate.admit, Caller(HERE, 1000), name)
    first = Caller(HERE, 1000)
    name = gate.authenticate(first, "resilin", SECRET)
    clock.advance(token.LIFE_S)
    for caller in (first, Caller(HERE, 1000)):
        refused("UNAUTHENTICATED", gate.admit, caller, name)


def test_where_the_kernel_names_no_user_a_token_for_a_password_is_its_connections_alone(gate):
    first = Caller(HERE, None)
    name = gate.authenticate(first, "resilin", SECRET)
    assert gate.admit(first, name) == ""
    refused("UNAUTHENTICATED", gate.admit, Caller(HERE, None), name)


def test_few_tokens_for_passwords_are_kept(gate):
    callers = [Caller(HERE, 1000) for _ in range(store_gate.MAX_PASSWORDS + 9)]
    names = [gate.authenticate(caller, "resilin", SECRET) for caller in callers]
    assert len(gate._by_password) == store_gate.MAX_PASSWORDS
    assert gate.admit(callers[-1], names[-1]) == gate.admit(callers[0], names[0]) == ""


@pytest.mark.parametrize("who", ["resilin", "root", "", token.PASSWORD_USER + "\0"])
def test_a_wrong_password_or_user_is_refused(gate, who):
    caller = Caller(HERE, 1000)
    refused("INVALID_ARGUMENT", gate.authenticate, caller, who, OTHER_SECRET)
    assert len(gate._wrong) == 1


# -- guessing


def test_guessing_is_slow_whoever_shares_the_place_waits_half_a_second_and_nobody_else_waits(gate, clock):
    begun = clock.monotonic()
    for _ in range(100):
        refused("INVALID_ARGUMENT", answer, gate, Caller(), OTHER_SECRET)
    assert clock.monotonic() - begun > 0.9 * (100 - wrong_proofs.FREE - 4) * wrong_proofs.LONGEST_S
    for caller, longest in ((Caller(FARTHER), 0.0), (Caller(HERE, 1000), 0.0), (Caller(), wrong_proofs.LONGEST_S)):
        begun = clock.monotonic()
        assert log_in(gate, caller)
        assert clock.monotonic() - begun == pytest.approx(longest)
    clock.advance(wrong_proofs.FORGET_S + 1)
    begun = clock.monotonic()
    log_in(gate, Caller())
    assert clock.monotonic() == begun


def test_users_of_one_host_are_told_apart_when_one_guesses(gate, clock):
    for _ in range(20):
        refused("INVALID_ARGUMENT", answer, gate, Caller(HERE, 1001), OTHER_SECRET)
    begun = clock.monotonic()
    log_in(gate, Caller(HERE, 1000))
    assert clock.monotonic() == begun


def test_of_guesses_at_the_same_time_few_wait_and_the_others_are_told_to_come_again(gate):
    class Slow(FakeClock):
        def sleep(self, seconds):
            asleep.release()
            assert gate_open.wait(PATIENCE_S)

    asleep, gate_open = threading.Semaphore(0), threading.Event()
    gate._clock = Slow()
    for _ in range(wrong_proofs.FREE):
        refused("INVALID_ARGUMENT", answer, gate, Caller(), OTHER_SECRET)
    with ThreadPoolExecutor(store_gate.MAX_WAITING) as pool:
        waiting = [
            pool.submit(refused, "INVALID_ARGUMENT", answer, gate, Caller(), OTHER_SECRET)
            for _ in range(store_gate.MAX_WAITING)
        ]
        for _ in waiting:
            assert asleep.acquire(timeout=PATIENCE_S)
        assert "too many requests" in refused("RESOURCE_EXHAUSTED", answer, gate, Caller(), SECRET)
        assert log_in(gate, Caller(FARTHER))
        gate_open.set()
        for each in waiting:
            each.result(PATIENCE_S)
    assert log_in(gate, Caller())
    assert not gate._waiting


def test_wrong_proofs_are_logged_with_their_address_and_without_filling_the_disk(gate, clock, caplog):
    def lines():
        return [record.fields for record in caplog.records if record.levelno == logging.WARNING]

    for number in range(1000):
        refused("INVALID_ARGUMENT", gate.authenticate, Caller(f"192.0.2.{number % 250}"), token.PROOF_USER, "x")
    assert len(lines()) == store_gate.MAX_LINES
    assert lines()[0] == {
        "server": "192.0.2.1:29400",
        "address": "192.0.2.0:4711",
        "from_there": 1,
        "lines_left_out": 0,
    }
    clock.advance(store_gate.WITHIN_S + 1)
    refused("INVALID_ARGUMENT", gate.authenticate, Caller(), token.PROOF_USER, "x")
    assert lines()[-1]["lines_left_out"] == 1000 - store_gate.MAX_LINES
    assert SECRET not in caplog.text


# -- over the wire


def connected(server):
    return grpc.insecure_channel(f"127.0.0.1:{server.port}", [("grpc.use_local_subchannel_pool", 1)])


def ask(channel, user, password):
    request = new("AuthenticateRequest", name=user, password=password)
    raw = channel.unary_unary(path("Authenticate"))(request.SerializeToString(), timeout=PATIENCE_S)
    return cls("AuthenticateResponse").FromString(raw).token


def session_on(channel):
    mine = token.ClientProof(SECRET)
    response = mine.respond(ask(channel, token.PROOF_USER, mine.nonce))
    return mine.finish(ask(channel, token.PROOF_USER, response)), response


def status(channel, presented):
    metadata = (("token", presented),)
    return channel.unary_unary(path("Status")).with_call(b"", metadata=metadata, timeout=PATIENCE_S)


def test_what_was_recorded_on_the_wire_opens_no_other_connection(server):
    with connected(server) as one, connected(server) as two:
        session, response = session_on(one)
        presented, proof = session.present()
        _, call = status(one, presented)
        assert (token.PROOF_KEY, proof) in [tuple(each) for each in call.trailing_metadata()]
        for attempt in (lambda: status(two, presented), lambda: ask(two, token.PROOF_USER, response)):
            with pytest.raises(grpc.RpcError, match="invalid auth token"):
                attempt()
        for method in ("Watch", "LeaseKeepAlive"):
            stream = two.stream_stream(path(method))(iter([b""]), metadata=(("token", presented),), timeout=PATIENCE_S)
            with pytest.raises(grpc.RpcError, match="invalid auth token"):
                next(stream)
        status(one, presented)


def test_a_long_job_never_notices_that_tokens_end(state, server, caplog):
    caplog.set_level(logging.DEBUG, "resilin.store")
    clock = FakeClock()
    with store.connect(server.url, secret=SECRET) as client:
        transport = client._transport
        server._router._gate._clock = transport._clock = clock
        client._transport._endpoints[0].calls.session = None  # its end was counted on the other clock
        seen = Recorder()
        client.watch("k", seen.on_events, on_error=seen.on_error)
        lost = threading.Event()
        lease = client.lease(1.0, lost.set)
        names = set()
        for number in range(6):
            client.put("k", b"%d" % number, lease)
            names.add(transport._endpoints[0].calls.session.name)
            renewed = lease.expires_at  # on the connection of the watch
            patience = Deadline(PATIENCE_S)
            while lease.expires_at == renewed:
                assert not patience.passed()
                SYSTEM.sleep(0.01)
            clock.advance(token.LIFE_S * 0.6)
        assert [event.kv.value for event in seen.wait(6, timeout_s=PATIENCE_S)] == [b"%d" % each for each in range(6)]
        assert len(names) == 6
        assert lease.alive
        assert not lost.is_set()
        assert "broke" not in caplog.text
        assert "could not be renewed" not in caplog.text


def test_a_token_that_ended_unnoticed_is_renewed_within_the_call(state, server):
    clock = FakeClock()
    with store.connect(server.url, secret=SECRET) as client:
        server._router._gate._clock = clock
        clock.advance(10 * token.LIFE_S)  # the server's time: the client's stands
        assert client.compare_and_put("a", 0, b"1")[0]  # what is not to be repeated, too
        clock.advance(10 * token.LIFE_S)
        assert client.get("a").value == b"1"


def test_a_renewal_that_fails_leaves_the_old_token_in_use(server):
    with store.connect(server.url, secret=SECRET) as client:
        connection = client._transport._endpoints[0].calls
        before = connection.session
        gate = server._router._gate
        real = gate.authenticate

        def busy(*_):
            raise Rejected("RESOURCE_EXHAUSTED", "too many requests")

        gate.authenticate, connection.renew_at = busy, 0.0
        client.put("a", b"1")
        assert connection.session is before
        gate.authenticate, connection.renew_at = real, 0.0
        client.put("a", b"2")
        assert connection.session is not before


def test_a_server_that_came_back_is_logged_in_to_again_and_the_watch_goes_on(state):
    server = StoreServer(state, secret=SECRET)
    with store.connect(server.url, secret=SECRET, timeout_s=PATIENCE_S) as client:
        seen = Recorder()
        client.watch("k", seen.on_events, on_error=seen.on_error)
        client.put("k", b"1")
        server.close()
        with StoreServer(state, port=server.port, secret=SECRET):
            client.put("k", b"2")
            assert [event.kv.value for event in seen.wait(2, timeout_s=PATIENCE_S)] == [b"1", b"2"]


class Impostor(grpc.GenericRpcHandler):
    """Answers every call as if it were the store. recorded: what it heard the real one say."""

    def __init__(self, recorded=()):
        self.recorded = recorded
        self.heard = []

    def service(self, details):
        method = details.method.rpartition("/")[2]
        if method in ("Watch", "LeaseKeepAlive"):
            return grpc.stream_stream_rpc_method_handler(self._watch)

        def answer(raw, context):
            self.heard.append((method, raw))
            context.set_trailing_metadata(self.recorded)
            response = new(METHODS[method][2])
            if method == "Authenticate":
                response.token = "f" * 32
            elif method == "Txn":
                response.succeeded = True
            return response.SerializeToString()

        return grpc.unary_unary_rpc_method_handler(answer)

    def _watch(self, requests, context):
        context.send_initial_metadata(self.recorded)
        event = new("Event", kv=new("KeyValue", key=b"k", value=b"false", mod_revision=1 << 40))
        yield new("WatchResponse", watch_id=1, events=[event]).SerializeToString()


@contextmanager
def serving(impostor, port):
    with ThreadPoolExecutor(8) as pool:
        server = grpc.server(pool, options=[("grpc.so_reuseport", 0)])
        server.add_generic_rpc_handlers((impostor,))
        assert server.add_insecure_port(f"127.0.0.1:{port}") == port
        server.start()
        try:
            yield
        finally:
            server.stop(0).wait(PATIENCE_S)


@pytest.mark.parametrize("call", ["get", "put", "compare_and_put", "lease"])
def test_who_takes_a_dead_servers_port_is_not_believed(state, call):
    server = StoreServer(state, secret=SECRET)
    with store.connect(server.url, secret=SECRET) as client:
        client.put("a", b"1")
        server.close()
        attempts = {
            "get": lambda: client.get("a"),
            "put": lambda: client.put("a", b"2"),
            "compare_and_put": lambda: client.compare_and_put("a", 0, b"2"),
            "lease": lambda: client.lease(5.0),
        }
        with (
            serving(Impostor(((token.PROOF_KEY, "0" * 64),)), server.port),
            pytest.raises(StoreRefused, match="did not prove that it knows the job's secret"),
        ):
            attempts[call]()


def test_who_takes_a_dead_servers_port_tells_a_watch_nothing(state):
    server = StoreServer(state, secret=SECRET)
    with store.connect(server.url, secret=SECRET) as client:
        seen, ended = Recorder(), threading.Event()
        client.watch("k", seen.on_events, on_error=lambda error: (seen.on_error(error), ended.set()))
        client.put("k", b"true")
        seen.wait(1, timeout_s=PATIENCE_S)
        server.close()
        with serving(Impostor(), server.port):
            assert ended.wait(PATIENCE_S)
    assert [event.kv.value for event in seen.events] == [b"true"]
    assert [type(error) for error in seen.errors] == [StoreRefused]


def test_a_client_tells_an_impostor_neither_the_secret_nor_any_record_before_it_has_proved_itself():
    impostor = Impostor()
    with StoreServer(MemoryStore()) as free:
        port = free.port
    with serving(impostor, port), pytest.raises(StoreRefused, match="did not prove"):
        store.connect(f"embedded://127.0.0.1:{port}", secret=SECRET)
    assert {method for method, _ in impostor.heard} == {"Authenticate"}
    assert all(SECRET.encode() not in raw for _, raw in impostor.heard)


def test_guesses_over_the_wire_are_slowed_and_a_member_gets_in_meanwhile(server, monkeypatch):
    monkeypatch.setattr(wrong_proofs, "FIRST_S", 0.3)
    for _ in range(wrong_proofs.FREE):
        with pytest.raises(StoreRefused):
            store.connect(server.url, secret=OTHER_SECRET)
    begun = SYSTEM.monotonic()
    with pytest.raises(StoreRefused):
        store.connect(server.url, secret=OTHER_SECRET)
    assert SYSTEM.monotonic() - begun >= 0.3
    store.connect(server.url, secret=SECRET, timeout_s=PATIENCE_S).close()


# -- secrets


@pytest.mark.parametrize(
    "attempt",
    [
        lambda state, secret: StoreServer(state, secret=secret),
        lambda state, secret: store.connect("embedded://127.0.0.1:1", secret=secret),
        lambda state, secret: store.connect("etcd://127.0.0.1:1", secret=secret),
    ],
)
def test_a_short_secret_is_refused_with_the_command_that_makes_one(state, attempt):
    with pytest.raises(
        UsageError, match=r"at least 22 random characters, got 21.*`elastic-run --make-secret`"
    ) as caught:
        attempt(state, "x" * 21)
    assert "xxx" not in str(caught.value)


def test_an_empty_secret_is_none(state):
    with pytest.raises(UsageError, match="beyond loopback, without a secret"):
        StoreServer(state, "0.0.0.0", secret="")
    with StoreServer(state, secret="") as server, store.connect(server.url, secret="") as client:
        client.put("a", b"1")


@pytest.mark.parametrize("host", ["192.0.2.1", "store.example"])
def test_our_client_sends_no_password_in_clear_text_to_an_embedded_store_elsewhere(host):
    with pytest.raises(UsageError, match=r"would be sent in clear text") as caught:
        store.connect(f"embedded://resilin:{SECRET}@{host}:29400")
    assert SECRET not in str(caught.value)
