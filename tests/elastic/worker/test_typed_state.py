"""What newcomers take from survivors: plain values, arrays and tensors of the kinds expected, and nothing is run."""

from __future__ import annotations

import os
import pickle
import re
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import resilin
from resilin import amp, ddp, nn, optim, zero
from resilin import distributed as dist
from resilin.core import rng
from resilin.core.tensor import Tensor
from resilin.data import DataLoader, ElasticSampler, TensorDataset
from resilin.ddp.comm_hooks import powerSGD_hook
from resilin.distributed.api.reconfigurable import Extent, Outline
from resilin.distributed.wire import object_codec, record_codec
from resilin.elastic.worker import handover, sync, trees
from resilin.elastic.worker.sharded_part import Stand
from resilin.elastic.worker.source_election import Report
from resilin.elastic.worker.state import Small, State
from resilin.errors import DistError, StateError, UsageError
from resilin.optim import lr_scheduler, swa_utils
from resilin.resharding import buddies
from resilin.testing.ranks import Outcome, run_ranks

HOSTILE = 1  # the rank that sends what is no state


class Mine:
    """A class of the user's."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mine) and other.number == self.number

    def __hash__(self) -> int:
        return hash(self.number)


class Runs:
    """Pickled, it runs a command of the sender's where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@pytest.fixture
def hostile(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Any], Any]], Callable[[int], None]]:
    """Give what a hostile rank makes of each object that it should send; the result tells each thread its rank."""
    own = threading.local()
    real = object_codec.dump

    def among(spoil: Callable[[Any], Any]) -> Callable[[int], None]:
        def dump(thing: Any) -> bytes:
            return pickle.dumps(spoil(thing)) if getattr(own, "rank", None) == HOSTILE else real(thing)

        monkeypatch.setattr(object_codec, "dump", dump)
        return lambda rank: setattr(own, "rank", rank)

    return among


def settled(rank: int, **more: Any) -> State:
    """The state of a rank; the hostile one has done a step, and is the source."""
    resilin.manual_seed(0)
    state = State(model=nn.Linear(4, 3), **more)
    state.__dict__["_step"] = int(rank == HOSTILE)
    return state


def equal(be: Callable[[int], None], make: Callable[[int], State] = settled) -> Outcome:
    def main(rank: int) -> Any:
        state = make(rank)
        state._capture()
        be(rank)
        sync.make_equal(state, dist.default_group(), rank, 2)
        return state

    return run_ranks(2, main)


def refusal(outcome: Outcome) -> str:
    error = outcome.errors[1 - HOSTILE]
    assert isinstance(error, DistError | StateError), error
    return str(error)


@pytest.mark.parametrize("whole", [True, False])
def test_a_pickle_of_a_survivor_is_refused_by_its_rank_and_nothing_of_it_is_run(
    hostile: Any, tmp_path: Path, whole: bool
) -> None:
    made = tmp_path / "made"

    def spoil(thing: Any) -> Any:
        if type(thing) is not tuple or len(thing) != 2:  # not yet what follows the reports
            return thing
        return Runs(made) if whole else ((*thing[0][:3], Runs(made), *thing[0][4:]), thing[1])

    said = refusal(equal(hostile(spoil)))
    assert f"the object of rank {HOSTILE} cannot be loaded here" in said
    assert "posix.mkdir" in said
    assert "State(..., weights_only=False) on all ranks" in said
    assert not made.exists()


def test_a_pickle_in_place_of_a_report_is_refused_too(hostile: Any, tmp_path: Path) -> None:
    made = tmp_path / "made"
    said = refusal(equal(hostile(lambda thing: Runs(made))))
    assert f"the object of rank {HOSTILE} cannot be loaded here" in said
    assert "all ranks must run the same version of resilin" in said
    assert not made.exists()


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda report: None, r"expected the 7 fields of a Report, got None"),
        (lambda report: report[:-1], r"expected the 7 fields of a Report"),
        (lambda report: (1, *report[1:]), r"Report\.settled: expected bool, got 1"),
        (lambda report: (report[0], True, *report[2:]), r"Report\.step: expected int, got True"),
        (lambda report: (report[0], -1, *report[2:]), r"step -1, generation 0"),
        (lambda report: (*report[:3], {"model": 3}, *report[4:]), r"Report\.digests: expected bytes, got 3"),
        (lambda report: (*report[:-1], {"model": ()}), r"expected the 7 fields of a Stand, got \(\)"),
    ],
)
def test_what_is_no_report_is_refused_field_by_field(hostile: Any, spoil: Any, why: str) -> None:
    said = refusal(equal(hostile(spoil)))
    assert re.search(rf"what rank {HOSTILE} sent is no Report: .*{why}", said), said


def test_a_layout_that_no_memory_holds_is_refused_before_memory_is_taken(hostile: Any) -> None:
    def make(rank: int) -> State:
        model = nn.Linear(4, 3)
        return settled(rank, optimizer=optim.SGD(model.parameters(), lr=0.1, momentum=0.9))

    def with_layout(*layout: Any) -> Any:
        return lambda thing: (
            (thing[0], {**thing[1], "optimizer": layout}) if type(thing) is tuple and len(thing) == 2 else thing
        )

    huge = refusal(equal(hostile(with_layout(("0", (1 << 40, 1 << 15), "float32"))), make))
    assert "optimizer: the source's state has a tensor '0' of shape (1099511627776, 32768)" in huge
    assert "bytes of memory" in huge
    odd = refusal(equal(hostile(with_layout(("0", (3,), "object"))), make))
    assert "no dtype is called 'object'" in odd
    negative = refusal(equal(hostile(with_layout(("0", (-3,), "float32"))), make))
    assert "of shape (-3,)" in negative


def test_a_rank_that_consents_takes_objects_of_the_users_classes_and_others_say_so_before_training() -> None:
    with pytest.raises(UsageError, match=r"of 'best', it is a .*\.Mine \(it holds .*\.Mine\), which newcomers take by"):
        State(best=Mine(1))._capture()
    with pytest.raises(
        UsageError, match=r"of 'best', \['a'\]\[1\] is a .*Mine.*: keep plain .* State\(\.\.\., weights_o"
    ):
        State(best={"a": [0, Mine(1)]})._capture()
    with pytest.raises(UsageError, match="of 'best', it is a dict with such keys"):
        State(best={Mine(1): 0})._capture()
    outcome = equal(lambda rank: None, lambda rank: settled(rank, weights_only=False, best=Mine(rank)))
    assert [state.best for state in outcome.results()] == [Mine(HOSTILE), Mine(HOSTILE)]


def test_an_object_that_comes_later_is_an_error_at_the_next_commit_and_not_when_a_worker_has_died() -> None:
    state = State(best=0.0)
    state.commit()
    state.best = Mine(1)
    with pytest.raises(UsageError, match="of 'best'"):
        state.commit()


def test_a_state_that_refers_to_itself_or_to_one_thing_twice_is_looked_at_once() -> None:
    shared: list[Any] = [1, 2]
    for _ in range(60):
        shared = [shared, shared]
    assert trees.not_plain(shared) is None
    circle: list[Any] = []
    circle.append(circle)
    assert trees.not_plain([circle]) is None


def _trained(make: Callable[[Any], Any]) -> Any:
    model = nn.Linear(4, 3)
    optimizer = make(model.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        model(resilin.randn(2, 4)).sum().backward()
        optimizer.step()
    return optimizer


OPTIMIZERS = ("SGD", "Adam", "AdamW", "Adagrad", "Adadelta", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop")
SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "StepLR": lambda o: lr_scheduler.StepLR(o, 2),
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda step: 0.9**step),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.1, total_steps=9),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, cycle_momentum=False),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [1, 3]),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o), lr_scheduler.ExponentialLR(o, 0.9)], [2]
    ),
    "SWALR": lambda o: swa_utils.SWALR(o, 0.05),
}


def _things() -> dict[str, Callable[[], Any]]:
    things: dict[str, Callable[[], Any]] = {
        f"optim.{name}": lambda name=name: _trained(getattr(optim, name)) for name in OPTIMIZERS
    }
    things["optim.LBFGS"] = lambda: optim.LBFGS(nn.Linear(2, 2).parameters())
    for name, make in SCHEDULERS.items():
        things[name] = lambda make=make: make(_trained(lambda p: optim.SGD(p, lr=0.1)))
    return things | {
        "sampler": lambda: ElasticSampler(20, 4, 2),
        "scaler": lambda: amp.GradScaler(),
        "hook's state": lambda: powerSGD_hook.PowerSGDState(dist.default_group(), matrix_approximation_rank=1),
        "averaged model": lambda: swa_utils.AveragedModel(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))),
        "ddp": lambda: ddp.DistributedDataParallel(nn.Linear(3, 2), shards=2),
        "zero optimizer": lambda: _trained(lambda p: zero.ZeroRedundancyOptimizer(p, optim.Adam, lr=0.1)),
        "zero module": lambda: zero.shard(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))),
    }


@pytest.mark.parametrize("name", _things())
def test_what_resilin_offers_is_plain_and_arrives_as_it_was(name: str) -> None:
    def main(rank: int) -> None:
        thing = _things()[name]()
        state = State(thing=thing, epoch=3, scores=[1.5, np.float32(2)], seen={"a": (1, None)}, at=rng.get_rng_state())
        state._capture()  # refuses what is not plain
        small: Small = state._last.small
        sent = record_codec.plain(Small, small)
        there: Small = record_codec.record(Small, object_codec.load(object_codec.dump(sent), weights_only=True))
        assert there.digests() == small.digests()
        assert type(there.parts["thing"]) is type(small.parts["thing"])

    run_ranks(1, main).results()


def test_trees_with_tensors_travel_with_their_holes() -> None:
    tree = OrderedDict(a=[Tensor._wrap(np.arange(3.0)), 1], b=(Tensor._wrap(np.zeros(2)),))
    bare, tensors = trees.split(tree)
    there = object_codec.load(object_codec.dump(bare), weights_only=True)
    assert trees.difference(tree["a"][0], trees.join(there, tensors)["a"][0]) is None
    assert type(there["b"][0]) is trees.Hole


@pytest.mark.parametrize(
    ("extent", "why"),
    [
        (Extent(4, 3, 9, "float32"), r"elements \[4, 3\) of a tensor of 9"),
        (Extent(-1, 3, 9, "float32"), r"elements \[-1, 3\)"),
        (Extent(0, 9, 8, "float32"), "of a tensor of 8"),
        (Extent(0, 1 << 60, 1 << 60, "float32"), "of a tensor of 1152921504606846976"),
        (Extent(0, 3, 9, "O"), "no dtype is called 'O'"),
        (Extent(0, 3, 9, "x" * (1 << 20)), "no dtype is called 'xxx"),
    ],
)
def test_an_outline_that_no_slices_have_is_refused(extent: Extent, why: str) -> None:
    sent = record_codec.plain(Outline, Outline((1, 1), {"0.exp_avg": extent}))
    with pytest.raises(ValueError, match=f"Outline.extents: .*{why}") as caught:
        record_codec.record(Outline, sent)
    assert len(str(caught.value)) < 600


def test_slices_of_more_than_the_hosts_memory_are_refused_before_it_is_taken() -> None:
    outline = Outline((1, 1), {"0.exp_avg": Extent(0, 1 << 50, 1 << 50, "float32")})
    with pytest.raises(DistError, match="slices of 4503599627370496 bytes were announced"):
        outline.empty()


@pytest.mark.parametrize("number", ["world_size", "rank", "buddies"])
def test_a_place_that_no_world_has_is_refused(number: str) -> None:
    stand = Stand((1, 1), (), frozenset(), 0, (), 2, b"")
    wrong = replace(stand, **{number: {"world_size": 1 << 40, "rank": 2, "buddies": (1,)}[number]})
    with pytest.raises(ValueError, match="of a world of"):
        record_codec.record(Stand, record_codec.plain(Stand, wrong))


def test_a_pickle_in_place_of_a_second_copys_outline_is_refused(hostile: Any, tmp_path: Path) -> None:
    made = tmp_path / "made"
    be = hostile(lambda thing: Runs(made))

    def main(rank: int) -> None:
        be(rank)
        own = Outline((1, 1), {"a": Extent(0, 4, 4, "float32")}).empty()
        buddies.Pairing(dist.default_group()).exchange(own, Outline.empty)

    said = refusal(run_ranks(2, main))
    assert f"the object of rank {HOSTILE} cannot be loaded here" in said
    assert "posix.mkdir" in said
    assert not made.exists()


def test_changes_of_an_outline_that_was_never_said_are_refused(hostile: Any) -> None:
    be = hostile(lambda thing: (None, (("3", 0, 1.5),)))

    def main(rank: int) -> None:
        be(rank)
        own = Outline((1, 1), {"a": Extent(0, 4, 4, "float32")}).empty()
        buddies.Pairing(dist.default_group()).exchange(own, Outline.empty)

    assert f"rank {HOSTILE} changes what it has not said before" in refusal(run_ranks(2, main))


def test_a_pickle_among_those_that_leave_is_refused(hostile: Any, tmp_path: Path) -> None:
    made = tmp_path / "made"
    be = hostile(lambda thing: Runs(made))

    def main(rank: int) -> None:
        be(rank)
        handover.hand_over({}, {}, frozenset({0}), dist.default_group())

    assert f"the object of rank {HOSTILE} cannot be loaded here" in refusal(run_ranks(2, main))
    assert not made.exists()


def test_a_report_says_the_same_when_it_has_arrived() -> None:
    stand = Stand((3, 1), (Outline((3, 1), {"a": Extent(0, 4, 9, "float32")}, {"a": (("step", "value", 1.0),)}),),
                  frozenset({"p"}), 1, (1, 0), 2, b"x")  # fmt: skip
    report = Report(settled=True, step=3, intact=True, digests={"a": b"1"}, generation=2, divided={"o": stand})
    sent = object_codec.load(object_codec.dump(record_codec.plain(Report, report)), weights_only=True)
    assert record_codec.record(Report, sent) == report


def test_a_loader_and_its_sampler_are_found_in_a_state_as_plain_values() -> None:
    sampler = ElasticSampler(20, 4, 2)
    loader = DataLoader(TensorDataset(resilin.randn(20, 2)), batch_size=4)
    assert trees.not_plain(sampler.state_dict()) is None
    assert not hasattr(loader, "state_dict") or trees.not_plain(loader.state_dict()) is None
