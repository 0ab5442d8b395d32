"""`ZeroRedundancyOptimizer`: any optimizer, its state divided among the ranks (ZeRO stage 1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import resilin.distributed as dist
from resilin._base import fault_points
from resilin.core.argument_checks import flag
from resilin.core.autograd.grad_mode import enable_grad
from resilin.core.device import device
from resilin.core.tensor import Tensor
from resilin.distributed.agreement.options import options_of
from resilin.distributed.api.join import Join, Joinable, JoinHook
from resilin.errors import UsageError
from resilin.optim import Optimizer
from resilin.optim.optimizer import Closure, Group, Params
from resilin.resharding.survivor import Survivor
from resilin.zero import agreement, state, supported_optimizers, uneven
from resilin.zero.all_gather import Gathering, gathering_of
from resilin.zero.flat_param import FlatParameter, check_contiguous, rows_of
from resilin.zero.gradients import Steps
from resilin.zero.loaded_state_check import described
from resilin.zero.local_optimizer import LocalOptimizer
from resilin.zero.stage1_state import OptimizerContent

NAME = "ZeroRedundancyOptimizer"


class ZeroRedundancyOptimizer(Optimizer, Joinable):
    """`optimizer_class(params, **defaults)` with its state divided: each of N ranks holds and updates 1/N of it.

    A step has three parts: this rank's range of the parameters is updated, from gradients that are complete on every
    rank (as DistributedDataParallel leaves them); the ranges are gathered; every rank has the parameters of all. The
    parameters have the bits that `optimizer_class` alone would give them, for every number of ranks.

    params:           tensors, (name, tensor) pairs, or groups with options of their own; equal on all ranks.
    optimizer_class:  of resilin.optim or derived from its Optimizer. Where the update is elementwise (`SGD`, `Adam`,
                      ... and classes with an attribute `elementwise = True`), parameters are cut into flat ranges, so
                      ranks differ by less than one block of 16 elements (times the number of dtypes) from 1/N. Others
                      (`Adafactor`, `Muon`, `SparseAdam`) have whole tensors divided, the largest first. `LBFGS` is
                      refused.
    process_group:    default: the default group when this is made. Without one the state is whole, until `elastic.run`
                      divides it among its workers (register the optimizer in `elastic.State`).
    parameters_as_bucket_view: the parameters become views of one flat array per dtype, which is gathered in place;
                      False: they keep their memory, and what is gathered passes through a small array.
    overlap_with_ddp: the update happens inside backward: see `resilin.ddp.comm_hooks.ddp_zero_hook`. From the first
                      step on; `step()` then updates nothing.
    buddies:          within `elastic.run`, whether another rank keeps a second copy of what this one holds, so that the
                      loss of a worker costs no step. False: nothing is kept twice or sent, and such a loss needs a
                      checkpoint.
    defaults:         options of `optimizer_class`.

    `param_groups` may be changed, by schedulers too, as with any optimizer, on all ranks alike: each step compares
    them, and which parameters have a gradient. `zero_grad`, hooks, `add_param_group` as well. `state` is empty but
    after `consolidate_state_dict`. Every rank makes the same calls.

    Raises UsageError for arguments without a meaning (UsageTypeError for flags that are neither True nor False),
    CollectiveMismatch (on all ranks) when ranks give different parameters, in the first step parameters with different
    values, in any step different options, states that were loaded with other entries, or a gradient of a parameter on
    some of the ranks that hold its elements only. Where a rank refuses its arguments the others raise an
    error of the same class, with its reason.
    """

    _carries_names = False

    def __init__(
        self,
        params: Params,
        optimizer_class: type[Optimizer],
        process_group: dist.ProcessGroup | None = None,
        parameters_as_bucket_view: bool = False,
        overlap_with_ddp: bool = False,
        *,
        buddies: bool = True,
        **defaults: Any,
    ) -> None:
        with agreement.propagating(process_group):
            supported_optimizers.check_class(optimizer_class)
            Joinable.__init__(self)
            self.parameters_as_bucket_view = flag(f"{NAME}: parameters_as_bucket_view", parameters_as_bucket_view)
            self.overlap_with_ddp = flag(f"{NAME}: overlap_with_ddp", overlap_with_ddp)
            self.reconfigurable = Survivor(OptimizerContent(self), flag(f"{NAME}: buddies", buddies))
            self._given = process_group is not None
            self._group = agreement.group_of(NAME, process_group)
            self._optimizer_class, self._whole = (
                optimizer_class,
                not supported_optimizers.is_elementwise(optimizer_class),
            )
            self._rank = 0 if self._group is None else self._group.rank()
            self._rows: list[FlatParameter] = []
            self._gatherings: list[Gathering] = []
            self._owned: LocalOptimizer | None = None  # None while the base class reads `params`
            self._gathered_on: int | None = None  # the global rank whose `state` is whole
            self._begun = False  # whether there is state, or may be
            self._unchecked: list[int] = []  # numbers of parameters whose values were not compared yet
            self._early = False  # whether some hook updates inside backward
            self._steps = Steps(NAME)
            super().__init__(params, dict(defaults))
            self._user_defaults = dict(defaults)
            self._check_divisible()
        self._compare_layout(first=0)
        self._owned = LocalOptimizer(optimizer_class, self._user_defaults, self._rank)
        self._take(self.param_groups, [[param for group in self.param_groups for param in group["params"]]])
        self.defaults = self._owned.optimizer.defaults

    # ------------------------------------------------------------------ groups and partition

    def add_param_group(self, param_group: Group) -> None:
        """Add a group, on all ranks; its parameters form rows of their own. See Optimizer.

        Where a rank refuses it the others raise an error of the same class with its reason, and no rank has added any.
        """
        first = len(self.param_groups)
        if self._owned is None:  # the constructor tells what it refuses
            self._append(param_group)
            return
        try:
            with agreement.propagating(self._group, self._asked(first)):
                self._append(param_group)
                self._check_divisible(first)
            added = self.param_groups[first:]
            self._compare_layout(first)
            self._owned.take_options(self.param_groups[:first])  # as schedulers have set them since the last step
            self._take(added, [added[0]["params"]])
        except BaseException:
            del self.param_groups[first:]
            raise

    def _append(self, param_group: Group) -> None:
        if isinstance(param_group, dict) and "params" not in param_group:
            raise UsageError(f"{NAME}: a parameter group needs a list 'params', got {list(param_group)!r:.80}")
        super().add_param_group(param_group)

    def _meet_twins(self) -> None:
        """Refuse a group that names a parameter twice: its ranges would have two owners."""
        raise UsageError(f"{NAME}: a parameter appears twice in one group")

    def _check_divisible(self, first: int = 0) -> None:
        """UsageError for parameters of the groups from `first` on that cannot be cut."""
        before = sum(len(group["params"]) for group in self.param_groups[:first])
        params = self.parameters()[before:]
        supported_optimizers.check_whole(params, self._optimizer_class)
        for number, param in enumerate(params, before):
            check_contiguous(param, number)

    def _asked(self, first: int) -> str:
        """The call that adds the groups from `first` on, by which other ranks know it."""
        return agreement.MAKING if self._owned is None else f"add_param_group (group {first})"

    def _take(self, groups: Sequence[Group], lists: Sequence[Sequence[Tensor]]) -> None:
        """Cut the parameters of `groups`, in `lists` that are each divided among all ranks."""
        assert self._owned is not None, "made before"
        numbers = {id(param): number for number, param in enumerate(self.parameters())}
        size = 1 if self._group is None else self._group.size()
        rows = [
            row
            for params in lists
            for row in rows_of(params, [numbers[id(param)] for param in params], size, self._whole)
        ]
        self._owned.extend(groups, rows)
        self._owned.give_options(self.param_groups)
        self._rows += rows
        self._gatherings += self._ways(rows)
        self._unchecked += [number for row in rows for number in row.numbers]

    def _ways(self, rows: Sequence[FlatParameter]) -> list[Gathering]:
        return [gathering_of(row, self._rank, self.parameters_as_bucket_view) for row in rows if row.world_size > 1]

    def parameters(self) -> list[Tensor]:
        """All parameters, in the order of their numbers."""
        return [param for group in self.param_groups for param in group["params"]]

    def _compare_layout(self, first: int) -> None:
        settings = {
            "optimizer_class": self._optimizer_class.__name__,
            "parameters_as_bucket_view": str(self.parameters_as_bucket_view),
            "overlap_with_ddp": str(self.overlap_with_ddp),
        }
        if self._group is not None:
            agreement.check_layout(self.param_groups, first, settings, self._group, self._asked(first))

    def _compare_values(self) -> None:
        params, numbers = self.parameters(), self._unchecked
        if numbers and self.process_group.size() > 1:
            agreement.check_values([params[number] for number in numbers], numbers, self.process_group)
        self._unchecked = []

    # ------------------------------------------------------------------ the step

    def step(self, closure: Closure | None = None, **kwargs: Any) -> Any:
        """Update this rank's range, then gather all. Returns the loss of `closure` (called first) or None.

        With `overlap_with_ddp` backward has done it already, and only `closure` is called; UsageError when no hook
        does. `kwargs` go to the step of `optimizer_class`.
        """
        loss = None
        if closure is not None:
            with enable_grad():
                loss = closure()
        Join.notify_join_context(self)  # after the collectives of a model in `closure`, which is listed before
        if not self.overlap_with_ddp:
            self._advance(**kwargs)
        elif not self._early:
            raise UsageError(
                f"{NAME}.step: made with overlap_with_ddp=True, but no hook updates it inside backward, so nothing "
                "would be trained; register hook_with_zero_step(hook, model, optimizer) with model.register_comm_hook, "
                "or leave overlap_with_ddp out"
            )
        return loss

    def skip_step(self) -> None:
        """Leave out a step, on all ranks that have data: inside a Join those without it hear that there is none.

        A collective there, nothing elsewhere. `GradScaler.step` calls it for a step that overflowed. CollectiveMismatch
        on all ranks where some with data step instead.
        """
        if not self._join_config.enable:
            return
        Join.notify_join_context(self)
        with agreement.of_call("skip_step"):
            self._compare_values()  # as those without data do before they ask
            uneven.who_steps(uneven.SKIPS, self.process_group)

    def _advance(self, **kwargs: Any) -> None:
        with agreement.of_call("step"):
            self._compare_values()
            with agreement.abort_on_error(self._group):
                self._follow()
                if self._join_config.enable:
                    self._tell_others(kwargs)
                self._update_own(**kwargs)
            self._publish([param for param in self.parameters() if param._grad is not None])

    def _tell_others(self, kwargs: Mapping[str, Any]) -> None:
        """Inside a Join: the first rank that trains tells those without data what they update with."""
        stepping = uneven.who_steps(uneven.STEPS, self.process_group)
        if stepping.index(True) == self._rank:
            joined = [rank for rank, steps in enumerate(stepping) if not steps]
            uneven.tell(self._rows, self.param_groups, kwargs, joined, self.process_group)

    def advance_with_others(self) -> None:
        """The step of a rank without data: its range, with the options and gradients of a rank that trains. Nothing
        where those that train leave it out."""
        self._compare_values()
        stepping = uneven.who_steps(uneven.JOINED, self.process_group)
        if not any(stepping):
            return
        with agreement.abort_on_error(self._group):
            self._follow()
            source = stepping.index(True)
            gradients, kwargs, used = uneven.listen(self._rows, self.param_groups, source, self.process_group)
            self._update_own(gradients, cut=True, **kwargs)
        self._publish([param for number, param in enumerate(self.parameters()) if number in used])

    def check_scalable(self) -> None:
        """UsageError when gradients cannot be unscaled before the update, because it happens inside backward."""
        if self.overlap_with_ddp:
            raise UsageError(
                f"{NAME}: made with overlap_with_ddp=True, it has updated inside backward, from gradients that were "
                "still multiplied by the loss scaler's factor, and steps that overflow are not left out: the "
                "parameters are wrong since the first scaled backward. Make it with overlap_with_ddp=False, or train "
                "without a scaler, as bfloat16 does"
            )

    def on_any_rank(self, *said: bool, scaler: Mapping[str, float]) -> Sequence[bool]:
        """Of each of `said`, whether any rank says so: a loss scaler's ranks step together. A collective.

        Inside a Join those without data cannot be asked, and those that train have the same gradients: `said` itself.
        """
        if self._join_config.enable or self.process_group.size() == 1:
            return said
        return agreement.on_any_rank(said, scaler, self.process_group)

    def _follow(self) -> None:
        for gathering in self._gatherings:
            gathering.follow()
        self.owned.follow()

    def _update_own(self, gradients: Mapping[int, Tensor | None] | None = None, **kwargs: Any) -> None:
        """This rank's range: nobody else has seen anything of it when this returns."""
        self.reconfigurable.before_update()
        self._forget()
        self._begun = True
        self.owned.take_options(self.param_groups)
        self.owned.update(gradients, **kwargs)

    def _publish(self, written: Sequence[Tensor]) -> None:
        """Gather the ranges of `written`, those with a gradient: every rank has finished its update after this."""
        self.reconfigurable.after_update()
        facts = self._steps.facts(self.param_groups, self._rows, written)
        for gathering in self._gatherings:
            fault_points.reached("gather")
            gathering.run(self.process_group, facts)
        self._steps.compared()
        fault_points.reached("gather")
        if self._gatherings:
            for param in written:
                param._bump()
        self.owned.give_options(self.param_groups)

    @property
    def process_group(self) -> dist.ProcessGroup:
        """The ranks that the state is divided among. UsageError when there was none to begin with."""
        if self._group is None:
            raise UsageError(
                f"{NAME}: no process group was there when it was made; call "
                "resilin.distributed.init_process_group() first, or register it in elastic.State and step inside "
                "elastic.run; a single process may make a group of one"
            )
        return self._group

    @property
    def rows(self) -> Sequence[FlatParameter]:
        """All parameters, as they are cut among the ranks."""
        return self._rows

    def rows_for(self, world_size: int) -> list[FlatParameter]:
        """All parameters, cut for a world of this size."""
        params = self.parameters()
        return rows_of(params, range(len(params)), world_size, self._whole)

    def divide(self, group: dist.ProcessGroup) -> LocalOptimizer:
        """Cut all parameters for `group`, and own this rank's pieces, without a state."""
        if self._given:
            raise UsageError(
                f"{NAME}: made with process_group=..., but elastic.run makes a new group for every generation: leave "
                "it out"
            )
        self._group, self._rank = group, group.rank()
        self._rows = self.rows_for(group.size())
        self._gatherings = self._ways(self._rows)
        self._owned = LocalOptimizer(self._optimizer_class, self._user_defaults, self._rank)
        self._owned.extend(self.param_groups, self._rows)
        self._unchecked = []  # elastic has made them equal
        self._steps.loaded({})
        self._forget()
        return self._owned

    @property
    def owned(self) -> LocalOptimizer:
        """What this rank holds."""
        assert self._owned is not None, "made by the constructor"
        return self._owned

    # ------------------------------------------------------------------ state

    def consolidate_state_dict(self, to: int = 0) -> None:
        """Gather the whole state on the global rank `to`, whose `state_dict()` then has it until the next step.

        Called by all ranks. No rank needs more memory for it than what `to` keeps. Raises, on all ranks,
        CollectiveMismatch when they give different ones, UsageError for one that is not in the group.
        """
        whole = state.consolidate(self.owned, self._rows, self.process_group, to)
        self.state.clear()
        self._gathered_on = to
        self.state.update(whole or {})

    def state_dict(self) -> dict[str, Any]:
        """The state as `optimizer_class` alone would give it, in the form of `Optimizer.state_dict`.

        UsageError on ranks other than the one that `consolidate_state_dict` gathered it on last, and after another
        step. For checkpoints that are written by all ranks see `sharded_state_dict`.
        """
        here = self.process_group.ranks[self._rank]
        if self.process_group.size() == 1 and self._gathered_on is None:
            self.consolidate_state_dict(to=here)
        if self._gathered_on != here:
            last = "" if self._gathered_on is None else f", but on rank {self._gathered_on} by the last call"
            raise UsageError(
                f"{NAME}.state_dict, rank {self._rank}: the state was not gathered here since the last step{last}; "
                f"call consolidate_state_dict(to={here}) on all ranks before this, and take the state of one rank "
                "before it is gathered on the next, or use sharded_state_dict()"
            )
        return super().state_dict()

    @property
    def _kind(self) -> Optimizer:
        return self.owned.optimizer

    def _forget(self) -> None:
        if self._gathered_on is not None:
            self.state.clear()
            self._gathered_on = None

    def _load(self, state_dict: Mapping[str, Any]) -> None:
        """Take this rank's pieces of a state of any number of ranks, or of the plain optimizer; or nothing."""
        saved = list(state_dict["param_groups"])
        places = [key for group in saved for key in group["params"]]
        by_number = {
            number: state_dict["state"][key] for number, key in enumerate(places) if key in state_dict["state"]
        }
        parts = state.parts_of(self.owned, by_number)
        self.reconfigurable.before_update(overwritten=True)
        self.owned.load(parts, [options_of(group) for group in saved])
        self.reconfigurable.after_update()
        self._steps.loaded({number: described(entry) for number, entry in by_number.items() if entry})
        self._forget()
        self._begun = True
        for group, mirror in zip(self.param_groups, self.owned.optimizer.param_groups, strict=True):
            group.update(options_of(mirror))

    def sharded_state_dict(self) -> dict[str, Any]:
        """The tree of `state_dict()` on every rank, with a `checkpoint.Sliced` for each tensor that is divided.

        Called by all ranks. Numbers and shapes are those of the plain optimizer, whatever the partition; tensors share
        memory with the state.
        """
        groups, first = [], 0
        for group in self.param_groups:
            numbers = list(range(first, first + len(group["params"])))
            names = {"param_names": list(group["param_names"])} if "param_names" in group else {}
            groups.append({**options_of(group), **names, "params": numbers})
            first += len(numbers)
        return {"state": state.slices(self.owned, self._rows, self.process_group), "param_groups": groups}

    def load_sharded_state_dict(self, tree: Mapping[str, Any]) -> None:
        """Take over what `sharded_state_dict()`, or `state_dict()` of the plain optimizer, gave in any world.

        Leaves are tensors, or slices that cover what this rank holds. Raises as `load_state_dict`, UsageError also for
        entries of parameters that are in no group.
        """
        self.load_state_dict(tree)

    def __getstate__(self) -> NoReturn:
        raise UsageError(
            f"{NAME} cannot be copied or pickled: it holds one rank's part, and a process group. Make one of the "
            "copied parameters, and load sharded_state_dict() into it by load_sharded_state_dict()"
        )

    # ------------------------------------------------------------------ with others

    def join_hook(self, **kwargs: Any) -> JoinHook:
        """For `Join`: ranks whose data ended step with those that train, on gradients that DDP's hook left them."""
        if self.overlap_with_ddp:
            raise UsageError(
                f"{NAME}: Join has no meaning with overlap_with_ddp=True: ranks without data have no backward to "
                "update in; use step() with uneven inputs"
            )
        return _StepWithOthers(self)

    @property
    def join_device(self) -> device:
        """See Joinable."""
        return self.parameters()[0].device

    @property
    def join_process_group(self) -> dist.ProcessGroup:
        """See Joinable."""
        return self.process_group

    def stats(self) -> dict[str, Any]:
        """Elements in all, those that this rank updates, and the bytes of the state it holds for them.

        Inside elastic.run also its buddy (None in a world of one), and the bytes of what it keeps twice or for another.
        """
        found = {
            "world_size": self.process_group.size(),
            "rank": self._rank,
            "elements": sum(row.total for row in self._rows),
            "own_elements": self.owned.elements(),
            "own_state_bytes": self.owned.state_bytes(),
        }
        return found | self.reconfigurable.stats()

    # ------------------------------------------------------------------ inside backward (ddp_zero_hook)

    def begin_early(self, buckets: Sequence[Sequence[Tensor]] | None = None) -> None:
        """Updates will come from backward, on all ranks. With `buckets` each of them is divided among all ranks.

        UsageError without overlap_with_ddp, for buckets that do not hold the same parameters, or when there is state.
        """
        if not self.overlap_with_ddp:
            raise UsageError(f"{NAME}: made with overlap_with_ddp=False, its update cannot happen inside backward")
        if buckets is not None:
            self._recut(buckets)
        self._compare_values()
        self._follow()
        self._early = True

    def _recut(self, buckets: Sequence[Sequence[Tensor]]) -> None:
        if self._begun:
            raise UsageError(f"{NAME}: shard_buckets=True divides anew, so it comes before the first step and any load")
        if self.reconfigurable.group is not None:
            raise UsageError(f"{NAME}: shard_buckets=True has no meaning inside elastic.run, which divides for itself")
        left = {id(param) for param in self.parameters()}
        known = [[param for param in bucket if id(param) in left] for bucket in buckets]
        left -= {id(param) for bucket in known for param in bucket}
        rest = [param for param in self.parameters() if id(param) in left]
        self._rows, self._gatherings, self._unchecked = [], [], []
        self._owned = LocalOptimizer(self._optimizer_class, self._user_defaults, self._rank)
        self._take(self.param_groups, [params for params in (*known, rest) if params])

    def update_early(self, params: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
        """Update this rank's pieces of `params` from gradients that are final. Any thread, one at a time."""
        self._update_own({id(param): grad for param, grad in zip(params, gradients, strict=True)})

    def finish_early(self, written: Sequence[Tensor]) -> None:
        """All updates of this backward are done here: gather what the others have updated."""
        self._publish(written)
        self._opt_called = True


class _StepWithOthers(JoinHook):
    """A rank without data: the same step as the others'. Steps of ranks that train are as many as their iterations."""

    def __init__(self, optimizer: ZeroRedundancyOptimizer) -> None:
        self._optimizer = optimizer

    def main_hook(self) -> None:
        """See JoinHook."""
        self._optimizer.advance_with_others()
