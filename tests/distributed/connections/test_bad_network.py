"""A network that delays, stalls, cuts and corrupts, in every phase of a collective: right results or right errors."""

import contextlib
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from resilin import distributed as dist
from resilin.distributed.backends import socket
from resilin.distributed.wire import shard_tree
from resilin.errors import CollectiveTimeout, DistError, HandshakeError, PeerLost
from resilin.testing.rank_data import data
from resilin.testing.ranks import run_ranks
from resilin.testing.relay import Relay

COUNT = 50_000  # float32: several pieces, and more than sockets of loopback take at once with all_gather's factor


def all_to_all(array, rows):
    dist.all_to_all_single(np.empty_like(rows), rows)


def along_the_tree(array, rows):
    rank, plan = dist.get_rank(), shard_tree.plan(3, 3)
    dist.tree_all_reduce({shard_tree.Subtree(rank, rank + 1): array}, np.empty_like(array), plan)


def messages_round(array, rows):
    rank = dist.get_rank()
    coming = dist.irecv(rows[0], src=(rank - 1) % 3)
    dist.send(array, dst=(rank + 1) % 3)
    coming.wait()


CALLS = {
    "messages": messages_round,
    "barrier": lambda array, rows: dist.barrier(),
    "all_reduce doubling": lambda array, rows: dist.all_reduce(array[:2000]),
    "all_reduce direct": lambda array, rows: dist.all_reduce(array),
    "all_reduce of halves": lambda array, rows: dist.all_reduce(array.astype(np.float16)),
    "broadcast tree": lambda array, rows: dist.broadcast(array[:2000], src=1),
    "broadcast chain": lambda array, rows: dist.broadcast(rows, src=1),
    "reduce tree": lambda array, rows: dist.reduce(array[:2000], dst=0),
    "reduce chain": lambda array, rows: dist.reduce(rows, dst=0),
    "all_gather": lambda array, rows: dist.all_gather_into_tensor(rows, array),
    "reduce_scatter": lambda array, rows: dist.reduce_scatter_tensor(array, rows),
    "gather": lambda array, rows: dist.gather(array, list(rows) if dist.get_rank() == 0 else None, dst=0),
    "scatter": lambda array, rows: dist.scatter(array, list(rows) if dist.get_rank() == 0 else None, src=0),
    "all_to_all": all_to_all,
    "tree_all_reduce": along_the_tree,
}
BOTH = ("all_reduce doubling", "all_reduce direct", "broadcast chain", "all_to_all")  # in numpy's form, too
FORMS = [(name, form) for name in CALLS for form in (("native", "numpy") if name in BOTH else ("native",))]


@contextlib.contextmanager
def relays(count):
    """A relay before each rank, and what the ranks are told of one another."""
    with contextlib.ExitStack() as stack:
        made = {}

        def told(rank, endpoint):
            made[rank] = stack.enter_context(Relay(endpoint.address, endpoint.port))
            return replace(endpoint, port=made[rank].port)

        yield made, told


def use(form, monkeypatch):
    if form == "numpy":
        monkeypatch.setattr(socket, "loader", SimpleNamespace(native=None))


def until_it_fails(rank, relay_of, after, what, call):
    """Calls until the planned fault ends one; its error."""
    array, rows = np.ones(COUNT, np.float32), np.ones((3, COUNT), np.float32)
    try:
        dist.barrier()  # which may not be over everywhere when the fault comes
        if rank == 0:
            relay_of[0].after(after, what)
        for _ in range(2000):
            call(array, rows)
            array.fill(1)
            rows.fill(1)
    except DistError as error:
        return error
    return None


@pytest.mark.parametrize("after", [100, *(pytest.param(n, marks=pytest.mark.slow) for n in (0, 5_000, 150_000))])
@pytest.mark.parametrize(("name", "form"), FORMS)
def test_a_connection_cut_in_the_middle_is_an_error_that_names_an_end_of_it_on_every_rank(
    name, form, after, monkeypatch
):
    use(form, monkeypatch)
    with relays(3) as (made, told):
        work = run_ranks(
            3, until_it_fails, made, after, Relay.CUT, CALLS[name], transport="tcp", told=told, abort=False
        )
        errors = work.results()
        assert made[0].fired
    assert all(isinstance(error, PeerLost) and error.ranks for error in errors), errors
    ends = {0}.union(*(error.ranks for error in errors))  # a rank may hear of it from the other end first
    assert len(ends) <= 2, errors


@pytest.mark.parametrize("form", ["native", "numpy"])
@pytest.mark.parametrize("name", BOTH[1:])
def test_a_stalled_connection_is_a_timeout_on_every_rank(name, form, monkeypatch):
    """On a busy machine the limit may be over before the group is made, or before the fault: then with more time."""
    use(form, monkeypatch)
    for after in (100, 150_000):
        for limit_s in (0.4, 2.0, 8.0, 20.0):
            with relays(3) as (made, told):
                outcome = run_ranks(
                    3, until_it_fails, made, after, Relay.STALL, CALLS[name],
                    transport="tcp", told=told, abort=False, timeout_s=limit_s,
                )  # fmt: skip
                fired = 0 in made and made[0].fired
            if fired:
                break
        assert fired
        errors = outcome.results()
        assert any(isinstance(error, CollectiveTimeout) for error in errors), errors
        named = set().union(*(getattr(error, "ranks", set()) for error in errors))
        assert named <= {0, 1, 2}
        assert named


def some_of_everything(rank, size):
    found = []
    for count in (0, 3, 5000, 100_000):
        for dtype in (np.dtype(np.float32), np.dtype(np.float16)):
            array = data(rank, count, dtype)
            dist.all_reduce(array)
            rows = np.zeros((size, count), dtype)
            dist.all_gather_into_tensor(rows, array)
            dist.broadcast(array, src=1)
            part = np.zeros(count, dtype)
            dist.reduce_scatter_tensor(part, data(rank, (size, count), dtype))
            swapped = np.zeros_like(rows)
            dist.all_to_all_single(swapped, rows)
            found += [array, rows, part, swapped]
    return [each.tobytes() for each in found]


def test_results_have_the_same_bits_natively_with_numpy_and_under_delay(monkeypatch):
    natively = run_ranks(3, some_of_everything, 3, transport="tcp").results()
    with relays(3) as (made, told):

        def delayed(rank, size):
            made[rank].delay_s = 0.001 * (rank + 1)
            return some_of_everything(rank, size)

        assert run_ranks(3, delayed, 3, transport="tcp", told=told).results() == natively
    monkeypatch.setattr(socket, "loader", SimpleNamespace(native=None))
    assert run_ranks(3, some_of_everything, 3, transport="tcp").results() == natively


@pytest.mark.parametrize("at", [3, 40, 70, 90])
def test_a_corrupted_handshake_lets_nobody_in_and_nobody_hang(at):
    with relays(2) as (made, told):

        def corrupting(rank, endpoint):
            endpoint = told(rank, endpoint)
            made[rank].corrupt_at = at
            return endpoint

        outcome = run_ranks(2, lambda rank: None, transport="tcp", told=corrupting, timeout_s=0.6)
    assert set(outcome.errors) == {0, 1}
    kinds = (HandshakeError, PeerLost, CollectiveTimeout)
    assert all(isinstance(error, kinds) for error in outcome.errors.values()), outcome.errors
