"""State of modules on devices: it survives every change of the world with the bits of one worker on the device."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial

import generations
import numpy as np
import pytest
import test_divided_state
import zoo
from device_states import Divided
from generations import Change, play
from test_same_bits import CHANGES, rotating

import resilin
from resilin import elastic, nn, optim
from resilin.core.host_copies import PACKED_BYTES, copies, on_host, write
from resilin.distributed.backends.registry import Backend
from resilin.errors import UsageError

WHERE = "sim:1"


@pytest.fixture(autouse=True)
def _carried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups carry tensors of `sim` by way of the host."""
    monkeypatch.setitem(Backend.default_device_backend_map, "sim", Backend.GLOO)


def results(kind: str, size: int, *changes: Change) -> set[str]:
    """The digests of all ranks at the end."""
    there = replace(zoo.KINDS[kind], device=WHERE)
    return set(play(partial(zoo.make, there), partial(zoo.train, there), size, changes))


@cache
def undisturbed(kind: str) -> str:
    """The digest of one worker that nothing happens to."""
    (one,) = results(kind, 1)
    return one


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "story"), rotating(zoo.KINDS, CHANGES))
def test_every_model_on_a_device_ends_with_the_bits_of_one_worker_whatever_happens(kind: str, story: str) -> None:
    size, *changes = CHANGES[story]
    assert results(kind, size, *changes) == {undisturbed(kind)}


@pytest.mark.parametrize("site", ["forward", "reduced", "applied", "committed"])
@pytest.mark.parametrize("how", ["optimizer", "stage 2", "stage 3"])
def test_divided_state_on_a_device_outlives_those_who_hold_it(
    monkeypatch: pytest.MonkeyPatch, how: str, site: str
) -> None:
    monkeypatch.setattr(generations, "digest", test_divided_state.digest)  # with the whole state on each rank
    (alone,) = Divided("whole", WHERE).results(1)
    for lost, after in ((0, 3), (2, 2)):
        assert Divided(how, WHERE).results(3, Change(2, site, (lost,), after)) == {alone}, (lost, after)


def test_the_fingerprint_of_a_state_does_not_depend_on_where_it_lies() -> None:
    def state(where: str) -> elastic.State:
        resilin.manual_seed(1)
        net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).to(where)
        return elastic.State(net=net, optimizer=optim.SGD(net.parameters(), lr=0.1, momentum=0.9))

    assert state(WHERE).fingerprint() == state("cpu").fingerprint()


def test_ranks_with_a_device_each_have_equal_plain_values() -> None:
    def state(where: str) -> elastic.State:
        return elastic.State(net=nn.Linear(1, 1, bias=False).to(where), total=[resilin.ones(2, device=where)])

    resilin.manual_seed(1)
    one = state("sim:1").fingerprint()
    resilin.manual_seed(1)
    assert one == state("sim:2").fingerprint()


@pytest.mark.parametrize("snapshot", [False, True])
def test_buffers_and_a_snapshot_go_back_to_the_last_commit_on_their_device(snapshot: bool) -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).to(WHERE)
    state = elastic.State(net=net, snapshot=snapshot)
    state.commit()
    before = state.fingerprint()
    net(resilin.randn(8, 3, device=WHERE))
    if snapshot:
        with resilin.no_grad():
            net[0].weight += 1
    assert state.fingerprint() != before
    state._roll_back()
    assert state.fingerprint() == before
    assert {str(value.device) for value in net.state_dict().values()} == {WHERE}


def test_nothing_is_committed_of_a_step_in_which_a_device_found_an_index_out_of_range(monkeypatch) -> None:
    state = elastic.State(model=nn.Linear(2, 2, device=WHERE), seen=0)
    state.commit()

    def check() -> None:
        raise IndexError("embedding: index 7 is outside [0, 3)")

    monkeypatch.setattr(resilin.device(WHERE).backend, "check", check, raising=False)
    with pytest.raises(IndexError, match="index 7 is outside"):
        state.commit()
    assert state.step == 1
    monkeypatch.undo()
    state.commit()
    assert state.step == 2


def test_small_tensors_of_a_device_come_to_the_host_in_one_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = resilin.device(WHERE).backend
    counted: list[int] = []
    to_host = type(backend).to_host

    def counting(self: object, array: np.ndarray) -> np.ndarray:
        counted.append(array.nbytes)
        return to_host(backend, array)

    monkeypatch.setattr(type(backend), "to_host", counting)
    small = [resilin.arange(n, dtype=resilin.float32, device=WHERE).reshape(-1, 2).T for n in (2, 6, 0, 10)]
    scalar, large = resilin.tensor(3.0, device=WHERE), resilin.ones(PACKED_BYTES // 4 + 1, device=WHERE)
    here = resilin.ones(2)
    found = copies([*small, scalar, large, here])
    assert sorted(counted) == [4 * (2 + 6 + 10 + 1), PACKED_BYTES + 4]
    for array, tensor in zip(found, [*small, scalar, large, here], strict=True):
        assert array.shape == tuple(tensor.shape)
        assert array.tolist() == tensor.tolist()
    assert found[-1] is not here._array
    assert on_host(here) is here._array
    write(small[1], found[1] + 1)
    assert small[1].tolist() == (found[1] + 1).tolist()


def test_a_backend_that_nobody_knows_is_refused_before_anything_is_formed() -> None:
    @elastic.run(backend="cpu:gloo,cuda:nonsense")
    def train() -> None:
        raise AssertionError("it was called")

    with pytest.raises(UsageError, match=r"elastic\.run: backend 'nonsense' is not available"):
        train()
