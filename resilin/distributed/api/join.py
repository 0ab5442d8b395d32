"""Train with uneven inputs: a rank whose data ended takes part in the others' collectives until all data ended.

    rank 0   step   step   shadow   shadow   post       one small all-reduce before each says who still trains
    rank 1   step   step   step     step     post

`Join` runs this for objects that are `Joinable`: what their collectives are, they alone know.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np

from resilin.core.argument_checks import flag
from resilin.core.device import device
from resilin.core.tensor import Tensor
from resilin.distributed.agreement import compare
from resilin.distributed.agreement.guard import abort_group_on_error
from resilin.distributed.agreement.refuse import propagate_errors
from resilin.distributed.api.collectives import all_reduce
from resilin.distributed.group.default_group import resolve
from resilin.distributed.group.process_group import ProcessGroup
from resilin.distributed.wire.reduce_op import ReduceOp
from resilin.distributed.work.work import Work
from resilin.errors import DistError, UsageError, UsageTypeError

_TRAINS, _JOINED = 1, 2  # what a rank says of itself
_COMPARED = (bool, int, float, str, type(None))  # of other options the text may differ where they are the same
_SKEW = 1000  # shadowed iterations after which the user is warned


class JoinHook:
    """Do for one `Joinable` what a rank that has joined (its data ended) does; override what is needed."""

    def _ended(self) -> None:
        """This rank's data has ended, which it has told nobody yet. What this raises ends the group."""

    def main_hook(self) -> None:
        """Take part in the collectives of one training iteration of the ranks that still train."""

    def post_hook(self, is_last_joiner: bool) -> None:
        """All ranks have joined. `is_last_joiner`: this rank trained in the last iteration that any rank trained in."""


class _Turns:
    """How often each of the joinables has begun its collectives, by its place: the first one begins each iteration."""

    def __init__(self, joinables: Sequence[Joinable]) -> None:
        self._names = [type(joinable).__name__ for joinable in joinables]
        self._begun = [0] * len(joinables)

    def begin(self, place: int) -> None:
        """UsageError when the first one has not begun this iteration yet."""
        if place and self._begun[place] == self._begun[0]:
            listed = [self._names[place], *self._names[:place], *self._names[place + 1 :]]
            raise UsageError(
                f"Join: {self._names[place]} began its collectives before {self._names[0]}, which is listed before it, "
                f"began those of the iteration; list joinables in their collectives' order: Join([{', '.join(listed)}])"
            )
        self._begun[place] += 1


@dataclass(frozen=True, slots=True)
class _JoinConfig:
    """What a Joinable must know of the Join around it."""

    enable: bool = False
    throw_on_early_termination: bool = False
    is_first_joinable: bool = False
    place: int = 0
    turns: _Turns | None = None


class Joinable(ABC):
    """Something with collectives in each training iteration, which a `Join` can carry on for ranks without data.

    It calls `Join.notify_join_context(self)` before the collectives of each iteration, and `Joinable.__init__`.
    """

    @abstractmethod
    def __init__(self) -> None:
        super().__init__()
        self._join_config = _JoinConfig()

    @abstractmethod
    def join_hook(self, **kwargs: Any) -> JoinHook:
        """The hook of this object. `kwargs` are those of `Join`, the same for all its joinables: ignore the others'."""

    @property
    @abstractmethod
    def join_device(self) -> device:
        """The device on which `Join`'s own collectives run."""

    @property
    @abstractmethod
    def join_process_group(self) -> Any:
        """The process group of the collectives (None: the default group), the same for all joinables of a `Join`."""


class Join:
    """Context manager around training loops that are not equally long on all ranks.

        with Join([model, optimizer]):
            for x, y in batches:
                optimizer.zero_grad()
                loss_fn(model(x), y).backward()
                optimizer.step()

    At its end a rank runs the joinables' `main_hook`s, in their order, once for each iteration of those that still
    train, then all ranks run the `post_hook`s.

    joinables:  in the order of their collectives in an iteration, a model before its optimizer. The first one announces
                each iteration, by an all-reduce of one byte per rank.
    enable:     False: do nothing in the iterations; for inputs known to be even.
    throw_on_early_termination: as soon as one rank's data ended while others go on, DistError on all ranks.
    kwargs:     for `join_hook` of every joinable.

    Options are compared when the block begins, by one small exchange: also those of `kwargs` that are numbers or texts.

    Raises: UsageError for no joinables, one that is listed twice, joinables of several process groups, or one that is
    inside a Join already; in the first iteration, for joinables in another order than that of their collectives.
    UsageTypeError for what is no list of joinables, options that are neither True nor False, and a `join_hook` that
    gives no JoinHook. CollectiveMismatch on all ranks, which names the option and both values, when ranks give
    different ones. When one refuses its own or a `join_hook` fails, the others raise an error of that class, with the
    rank and the reason. An error inside the block leaves it at once; an error of a hook ends the group, so that no rank
    waits for this one.
    """

    def __init__(
        self,
        joinables: Iterable[Joinable],
        enable: bool = True,
        throw_on_early_termination: bool = False,
        **kwargs: Any,
    ) -> None:
        with propagate_errors(lambda: _any_group(joinables), compare.KIND, verb="refused its joinables"):
            self._joinables = _listed(joinables)
            self._group = _group_of(self._joinables)
        self._options: dict[str, Any] = {}
        with self._propagating("refused its options"):
            self._enable = flag("Join: enable", enable)
            self._throw = flag("Join: throw_on_early_termination", throw_on_early_termination)
            self._options = {"enable": self._enable, "throw_on_early_termination": self._throw, **kwargs}
            self._hooks = [_hook(joinable, kwargs) for joinable in self._joinables]

    def __enter__(self) -> None:
        with self._propagating("refused the block"):
            for joinable in self._joinables if self._enable else ():
                if joinable._join_config.enable:
                    raise UsageError(f"Join: this {type(joinable).__name__} is inside another Join already")
        self._compare_options()
        if not self._enable:
            return
        turns = _Turns(self._joinables)
        for place, joinable in enumerate(self._joinables):
            joinable._join_config = _JoinConfig(True, self._throw, place == 0, place, turns)

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._enable:
            return
        try:
            if kind is None:
                self._join()
        finally:
            for joinable in self._joinables:
                joinable._join_config = _JoinConfig()

    def _join(self) -> None:
        """This rank's data ended: shadow the others until theirs has, too."""
        self._run("end of data", [hook._ended for hook in self._hooks])
        iterations = 0
        while training := self._others():
            if self._throw:
                raise DistError(
                    f"Join, rank {self._group.rank()}: exhausted all inputs, but {_named(training)} still had some"
                )
            self._run("main_hook", [hook.main_hook for hook in self._hooks])
            iterations += 1
            if iterations == _SKEW:
                warnings.warn(
                    f"Join: rank {self._group.rank()} has at least {_SKEW} fewer inputs than {_named(training)}: most "
                    "of the time it computes nothing; divide the data more evenly",
                    stacklevel=3,
                )
        self._run("post_hook", [lambda hook=hook: hook.post_hook(iterations == 0) for hook in self._hooks])

    def _compare_options(self) -> None:
        """CollectiveMismatch, on all ranks, when options differ."""
        if self._group.size() == 1:
            return
        plain = {
            name: value.item() if isinstance(value, np.generic) else value for name, value in self._options.items()
        }
        mine = {name: repr(value) for name, value in plain.items() if isinstance(value, _COMPARED)}
        compare.agree(compare.Facts("Join", [("", mine)], "all ranks must give the same"), self._group)

    def _propagating(self, verb: str) -> propagate_errors:
        """Around what a rank may refuse before the others are asked: they hear of it where they compare options."""
        return propagate_errors(self._group, compare.KIND, verb=verb)

    def _others(self) -> list[int]:
        """The ranks that train in the iteration that begins now."""
        said = _said(self._joinables[0], self._group, _JOINED)
        all_reduce(said, op=ReduceOp.MAX, group=self._group)
        return _ranks(said, _TRAINS)

    def _run(self, name: str, calls: Sequence[Any]) -> None:
        for call, joinable in zip(calls, self._joinables, strict=True):
            where = f"Join, rank {self._group.rank()}, {name} of {type(joinable).__name__}"
            with abort_group_on_error(self._group, where, always=True):
                call()

    @staticmethod
    def notify_join_context(joinable: Joinable) -> Work | None:
        """Say that this rank trains on: to be called before the collectives of each iteration. UsageError when another
        joinable, which was listed before this one, has not called it in this iteration.

        The Work of an all-reduce when `joinable` is the first one of an enabled Join, else None. DistError when a rank
        has exhausted its inputs and `throw_on_early_termination` was asked for.
        """
        config = _config(joinable)
        if not config.enable:
            return None
        group = resolve(joinable.join_process_group, "Join")
        assert group is not None, "checked by Join"
        assert config.turns is not None, "there is one inside"
        with abort_group_on_error(group, "Join"):  # ranks without data wait for the others
            config.turns.begin(config.place)
        if not config.is_first_joinable:
            return None
        said = _said(joinable, group, _TRAINS)
        work = all_reduce(said, op=ReduceOp.MAX, group=group, async_op=True)
        assert work is not None, "an asynchronous collective returns its Work"
        if config.throw_on_early_termination:
            work.wait()
            joined = _ranks(said, _JOINED)
            if joined:
                raise DistError(
                    f"Join, rank {group.rank()}: {_named(joined)} exhausted all inputs; throwing on all ranks"
                )
        return work


def _listed(joinables: Any) -> list[Joinable]:
    """`joinables` as a list. UsageTypeError for what cannot be one, UsageError for what a Join cannot carry on."""
    if not isinstance(joinables, Iterable):
        name = type(joinables).__name__
        raise UsageTypeError(f"Join: expected a list of joinables, as in Join([model, optimizer]), got {name}")
    listed = list(joinables)
    if not listed:
        raise UsageError("Join: expected at least one joinable, got none")
    for place, joinable in enumerate(listed):
        _config(joinable)
        if any(joinable is other for other in listed[:place]):
            raise UsageError(f"Join: this {type(joinable).__name__} is listed twice; list each joinable once")
    return listed


def _any_group(joinables: Any) -> ProcessGroup | None:
    """The group of the first joinable, of those that somebody gave for a list of joinables."""
    listed = joinables if isinstance(joinables, Sequence) else ()
    made = (one for one in listed if isinstance(one, Joinable) and hasattr(one, "_join_config"))
    return next((_group_of([one]) for one in made), None)


def _group_of(joinables: Sequence[Joinable]) -> ProcessGroup:
    group = resolve(joinables[0].join_process_group, "Join")
    if group is None or any(resolve(other.join_process_group, "Join") is not group for other in joinables):
        raise UsageError("Join: expected joinables of one process group that this process is in, got several")
    return group


def _hook(joinable: Joinable, kwargs: dict[str, Any]) -> JoinHook:
    hook: Any = joinable.join_hook(**kwargs)
    if not isinstance(hook, JoinHook):
        raise UsageTypeError(
            f"Join: {type(joinable).__name__}.join_hook() must return a JoinHook, got {type(hook).__name__}"
        )
    return hook


def _config(joinable: Any) -> _JoinConfig:
    if not isinstance(joinable, Joinable):
        raise UsageError(f"Join: expected objects that are Joinable, got {type(joinable).__name__}")
    config: _JoinConfig | None = getattr(joinable, "_join_config", None)
    if config is None:
        raise UsageError(f"Join: the constructor of {type(joinable).__name__} must call Joinable.__init__(self)")
    return config


def _said(joinable: Joinable, group: ProcessGroup, word: int) -> Tensor:
    """One byte per rank, this one's set."""
    said = np.zeros(group.size(), np.uint8)
    said[group.rank()] = word
    flags: Tensor = Tensor._wrap(said).to(joinable.join_device)
    return flags


def _ranks(said: Tensor, word: int) -> list[int]:
    return [rank for rank, other in enumerate(said.tolist()) if other == word]


def _named(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
