"""Join: ranks whose data ended take part in the others' collectives; what it says when they must not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from resilin import distributed as dist
from resilin.core.device import CPU, device
from resilin.core.tensor import Tensor
from resilin.distributed.algorithms import join as torch_names
from resilin.distributed.api.join import Join, Joinable, JoinHook
from resilin.errors import CollectiveMismatch, DistBackendError, DistError, GroupAborted, UsageError, UsageTypeError
from resilin.testing.ranks import run_ranks

WORLD = 3


class Summed(Joinable):
    """Each step all-reduces `value`; a rank that has joined brings zero."""

    def __init__(self, group: Any = None) -> None:
        super().__init__()
        self.group = group
        self.sums: list[float] = []
        self.shadowed = 0
        self.ends: list[bool] = []
        self.options: dict[str, Any] = {}
        self.fails = False

    def step(self, value: float) -> None:
        work = Join.notify_join_context(self)
        self.sums.append(self.reduce(value))
        if work is not None:
            work.wait()

    def reduce(self, value: float) -> float:
        total = Tensor._wrap(np.full(1, value))
        dist.all_reduce(total, group=self.group)
        return float(total.item())

    def join_hook(self, **kwargs: Any) -> JoinHook:
        self.options = kwargs
        return Shadow(self)

    @property
    def join_device(self) -> device:
        return CPU

    @property
    def join_process_group(self) -> Any:
        return self.group


class Shadow(JoinHook):
    def __init__(self, of: Summed) -> None:
        self.of = of

    def main_hook(self) -> None:
        if self.of.fails:
            raise ValueError("no hook today")
        self.of.shadowed += 1
        self.of.reduce(0)

    def post_hook(self, is_last_joiner: bool) -> None:
        self.of.ends.append(is_last_joiner)


def counts_of(world: int, seed: int) -> list[int]:
    return [int(count) for count in np.random.default_rng(seed).integers(0, 5, world)]


@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.parametrize("seed", range(4))
def test_every_step_is_shared_by_all_ranks_until_the_last_rank_has_joined(world: int, seed: int) -> None:
    counts = counts_of(world, seed)

    def train(rank: int) -> Summed:
        first, second = Summed(), Summed()
        with Join([first, second], factor=2):
            for _ in range(counts[rank]):
                first.step(1)
                second.step(10)
        return first if rank % 2 else second

    for rank, seen in enumerate(run_ranks(world, train).results()):
        scale = 1 if rank % 2 else 10
        assert seen.sums == [scale * sum(count > step for count in counts) for step in range(counts[rank])]
        assert seen.shadowed == max(counts) - counts[rank]
        assert seen.ends == [counts[rank] == max(counts)]
        assert seen.options == {"factor": 2}


def test_early_termination_raises_on_all_ranks_and_names_who_ended() -> None:
    counts = (2, 4, 2)

    def train(rank: int) -> str:
        one = Summed()

        def steps() -> None:
            with Join([one], throw_on_early_termination=True):
                for _ in range(counts[rank]):
                    one.step(1)

        with pytest.raises(DistError) as error:
            steps()
        assert one.sums == [3, 3]
        dist.barrier()  # the group lives on
        return str(error.value)

    zero, one, two = run_ranks(WORLD, train).results()
    assert zero == "Join, rank 0: exhausted all inputs, but rank 1 still had some"
    assert one == "Join, rank 1: ranks 0, 2 exhausted all inputs; throwing on all ranks"
    assert two.startswith("Join, rank 2")


def test_even_inputs_do_not_terminate_early_and_the_context_can_be_entered_again() -> None:
    def train(rank: int) -> list[bool]:
        one = Summed()
        around = Join([one], throw_on_early_termination=True)
        for _ in range(2):
            with around:
                one.step(1)
            assert Join.notify_join_context(one) is None  # outside, nothing is announced
        return one.ends

    assert run_ranks(2, train).results() == [[True, True]] * 2


def test_a_disabled_join_does_nothing() -> None:
    def train(rank: int) -> Summed:
        one = Summed()
        with Join([one], enable=False):
            assert Join.notify_join_context(one) is None
            one.step(1)
        return one

    assert all(one.ends == [] and one.sums == [2] for one in run_ranks(2, train).results())


def test_an_error_of_a_hook_ends_the_others_at_once_and_names_the_rank() -> None:
    def train(rank: int) -> None:
        one = Summed()
        one.fails = rank == 0
        with Join([one]):
            for _ in range(0 if rank == 0 else 2):
                one.step(1)

    outcome = run_ranks(2, train, abort=False)
    assert isinstance(outcome.errors[0], ValueError)
    assert "Join, rank 0, main_hook of Summed: the group is aborted" in outcome.errors[0].__notes__[0]
    assert isinstance(outcome.errors[1], DistBackendError)
    assert "rank 0" in str(outcome.errors[1])


def test_an_error_in_the_block_leaves_it_without_waiting() -> None:
    def train(rank: int) -> str:
        one = Summed()
        with pytest.raises(KeyError), Join([one]):
            raise KeyError(rank)
        dist.barrier()
        return "together"

    assert run_ranks(2, train).results() == ["together"] * 2


class Forgetful(Summed):
    def __init__(self) -> None:
        """Does not call Joinable's."""


def test_wrong_joinables_are_refused() -> None:
    def train(rank: int) -> None:
        with pytest.raises(UsageError, match="at least one joinable"):
            Join([])
        with pytest.raises(UsageError, match="expected objects that are Joinable, got int"):
            Join([3])  # type: ignore[list-item]
        for single in (Summed(), 3, None):
            said = rf"expected a list of joinables, as in Join\(\[model, optimizer\]\), got {type(single).__name__}$"
            with pytest.raises(UsageTypeError, match=said):
                Join(single)  # type: ignore[arg-type]
        twice = Summed()
        with pytest.raises(UsageError, match="Join: this Summed is listed twice; list each joinable once"):
            Join([twice, Summed(), twice])
        with pytest.raises(UsageError, match="Forgetful must call"):
            Join([Forgetful()])
        other = dist.new_group([0, 1])
        with pytest.raises(UsageError, match="of one process group"):
            Join([Summed(), Summed(other)])
        one = Summed()
        with Join([one]), pytest.raises(UsageError, match="this Summed is inside another Join"):
            Join([one]).__enter__()

    run_ranks(2, train).results()


def test_joinables_that_one_rank_refuses_are_refused_by_all() -> None:
    def train(rank: int) -> None:
        given: Any = [Summed(), 3] if rank == 1 else [Summed()]
        with pytest.raises(UsageError, match="expected objects that are Joinable, got int") as caught, Join(given):
            pass
        assert ("rank 1 refused its joinables" in str(caught.value)) == (rank == 0)
        dist.barrier()

    run_ranks(2, train).results()


def test_a_group_that_is_aborted_ends_the_wait_of_those_that_joined() -> None:
    def train(rank: int) -> None:
        one = Summed()
        with Join([one]):
            if rank == 1:
                dist.default_group().abort(GroupAborted("stopped by the test"))
                one.step(1)

    outcome = run_ranks(2, train, abort=False)
    assert outcome.errors.keys() == {0, 1}
    assert all("stopped by the test" in str(error) for error in outcome.errors.values())


def test_the_names_are_where_pytorch_has_them() -> None:
    assert (torch_names.Join, torch_names.Joinable, torch_names.JoinHook) == (Join, Joinable, JoinHook)
    assert dist.algorithms.join is torch_names


@pytest.mark.parametrize(
    ("zero", "one", "says"),
    [
        ({"enable": True}, {"enable": False}, "enable is True on rank 0 and False on rank 1"),
        (
            {"throw_on_early_termination": False},
            {"throw_on_early_termination": True},
            "throw_on_early_termination is False on rank 0 and True on rank 1",
        ),
        ({"scale": 2.0}, {"scale": 3.0}, r"scale is 2\.0 on rank 0 and 3\.0 on rank 1"),
        ({}, {"scale": 3.0}, r"scale is absent on rank 0 and 3\.0 on rank 1"),
    ],
)
def test_options_that_differ_between_ranks_are_named_when_the_block_begins(
    zero: dict[str, Any], one: dict[str, Any], says: str
) -> None:
    def train(rank: int) -> None:
        joinable = Summed()
        with pytest.raises(CollectiveMismatch, match=f"Join: {says}; all ranks must give the same"):
            Join([joinable], **(one if rank == 1 else zero)).__enter__()
        with Join([joinable]):  # the group is as it was
            for _ in range(rank):
                joinable.step(1)

    run_ranks(2, train).results()


@pytest.mark.parametrize("option", ["enable", "throw_on_early_termination"])
@pytest.mark.parametrize("value", ["x", 2, None])
def test_an_option_that_is_no_bool_is_refused(option: str, value: Any) -> None:
    def make(rank: int) -> None:
        with pytest.raises(UsageTypeError, match=f"Join: {option} must be True or False, got {value!r}"):
            Join([Summed()], **{option: value})

    run_ranks(1, make).results()


def test_flags_that_say_the_same_in_other_types_are_no_difference() -> None:
    def train(rank: int) -> list[float]:
        joined = Summed()
        with Join([joined], enable=(1, np.True_)[rank], throw_on_early_termination=(0, False)[rank]):  # type: ignore[arg-type]
            for _ in range(rank):
                joined.step(1)
        return joined.sums

    assert run_ranks(2, train).results() == [[], [1]]


class Odd(Summed):
    """Its hook is `gives`, which is raised where it is an error."""

    def __init__(self, gives: Any) -> None:
        super().__init__()
        self.gives = gives

    def join_hook(self, **kwargs: Any) -> Any:
        if isinstance(self.gives, BaseException):
            raise self.gives
        return self.gives


@pytest.mark.parametrize(
    ("gives", "own", "told"),
    [
        (ValueError("no hook today"), ValueError, "no hook today"),
        (None, UsageTypeError, r"Odd.join_hook\(\) must return a JoinHook, got NoneType"),
        (3, UsageTypeError, r"Odd.join_hook\(\) must return a JoinHook, got int"),
    ],
)
@pytest.mark.parametrize("enable", [True, False])
def test_a_hook_that_one_rank_cannot_give_is_told_to_all(gives: Any, own: type, told: str, enable: bool) -> None:
    def train(rank: int) -> float:
        joined = Odd(gives) if rank == 1 else Summed()
        what = told if rank == 1 else f"rank 1 refused its options: .*{told}"
        with pytest.raises(own, match=what) as caught:
            Join([joined], enable).__enter__()
        assert type(caught.value) is own
        return joined.reduce(1)  # the group is as it was

    assert run_ranks(WORLD, train, abort=False).results() == [WORLD] * WORLD


def test_a_hook_that_no_rank_can_give_is_each_ranks_own_error() -> None:
    def train(rank: int) -> float:
        with pytest.raises(ValueError, match=f"none on {rank}"):
            Join([odd := Odd(ValueError(f"none on {rank}"))])
        return odd.reduce(1)

    assert run_ranks(2, train, abort=False).results() == [2, 2]


def test_a_rank_that_ends_while_it_makes_its_hook_is_named_on_all() -> None:
    def train(rank: int) -> None:
        dist.barrier()  # all have the group
        Join([Odd(SystemExit(3)) if rank == 1 else Summed()]).__enter__()

    errors = run_ranks(WORLD, train, abort=False).errors
    assert isinstance(errors.pop(1), SystemExit)
    assert [("rank 1 aborted the group: SystemExit: " in str(error)) for error in errors.values()] == [True, True]


def test_options_and_nesting_that_one_rank_refuses_are_told_to_all() -> None:
    def train(rank: int) -> None:
        joined = Summed()
        with pytest.raises(UsageTypeError, match="enable must be True or False"):
            Join([joined], enable="x" if rank else True).__enter__()  # type: ignore[arg-type]
        outer = Join([joined])
        outer.__enter__()
        other = joined if rank else Summed()
        with pytest.raises(UsageError, match="is inside another Join already"):
            Join([other]).__enter__()
        outer.__exit__(None, None, None)

    run_ranks(2, train, abort=False).results()


def test_joinables_may_come_from_a_generator() -> None:
    def train(rank: int) -> list[Summed]:
        joined = [Summed(), Summed()]
        with Join(one for one in joined):
            for _ in range(rank):
                for one in joined:
                    one.step(1)
        return joined

    for idle, trained in zip(*run_ranks(2, train).results(), strict=True):
        assert (idle.shadowed, trained.sums) == (1, [1])


def test_a_join_hook_that_gives_no_hook_is_refused() -> None:
    class Wrong(Summed):
        def join_hook(self, **kwargs: Any) -> Any:
            return 5

    def make(rank: int) -> None:
        with pytest.raises(UsageTypeError, match=r"Join: Wrong\.join_hook\(\) must return a JoinHook, got int"):
            Join([Wrong()])

    run_ranks(1, make).results()
