"""How one bucket is averaged: beside backward by the group's worker thread, at its end, or by a hook."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import resilin.distributed as dist
from resilin._base import host
from resilin.core.machine.threads import get_num_threads
from resilin.core.tensor import Tensor
from resilin.ddp import buckets, errors
from resilin.ddp.comm_hooks.state import HookState
from resilin.ddp.flat_buffer import Flat
from resilin.ddp.grad_bucket import GradBucket, Hook, checked_future, limit_s, take_result
from resilin.ddp.timings import Timings, now
from resilin.ddp.traffic import Traffic
from resilin.distributed.agreement.compare import Facts, Groups
from resilin.distributed.work.future import Future
from resilin.errors import CollectiveMismatch

_HOOKS = "resilin.ddp.comm_hooks."
_NO_HOOK, _OWN_HOOK = "none", "one of the program's"
_ALIKE = "all ranks must register the same"


def overlaps(group: dist.ProcessGroup) -> bool:
    """Whether it pays to reduce buckets by the group's worker thread while backward runs.

    Between hosts always: messages take time more than cores. On one host the sums are the work: where every core runs
    a rank's backward already, the worker threads would interrupt it, and the other ranks wait for them.
    """
    hosts = group.topology.hosts()
    return len(hosts) > 1 or host.cpu_count() > len(hosts[0]) * get_num_threads()


class _HookFacts(Facts):
    """Which hook a rank has. One of the program's may do what another rank's does, as one around that which logs.

    refused: why this rank has refused another one since, if it has.
    """

    def __init__(self, name: str, state: str, refused: str | None) -> None:
        told = {"the comm hook's state": state, "the comm hook": name}
        refusal = {} if refused is None else {"refused": refused}
        super().__init__("DistributedDataParallel", [("", told), ("", refusal)], _ALIKE)

    def check(self, everybody: Sequence[Groups]) -> None:
        """See Facts."""
        refusals = {rank: groups[1][1]["refused"] for rank, groups in enumerate(everybody) if groups[1][1]}
        if refusals and len(refusals) < len(everybody):
            rank, why = next(iter(refusals.items()))
            raise CollectiveMismatch(f"{self.about}: rank {rank} refused its comm hook: {why}; {_ALIKE}")
        told = [dict(groups[0][1]) for groups in everybody]
        names = [each["the comm hook"] for each in told]
        if _NO_HOOK in names:
            told = [{"the comm hook": name} for name in names]
        else:
            known = next((each for each in told if each["the comm hook"] != _OWN_HOOK), told[0])
            told = [known if each["the comm hook"] == _OWN_HOOK else each for each in told]
        super().check([[("", each)] for each in told])


def _name(hook: Hook | None) -> str:
    if hook is None:
        return _NO_HOOK
    return errors.hook_name(hook) if getattr(hook, "__module__", "").startswith(_HOOKS) else _OWN_HOOK


class Averaging:
    """Averages the buckets of one wrapper, in the order in which they are launched; `beside` backward or at its end."""

    def __init__(self, group: dist.ProcessGroup, params: Sequence[Tensor], beside: bool) -> None:
        self.traffic = Traffic()
        self.timings = Timings()
        self.hook: Hook | None = None
        self._state: Any = None
        self._refused: str | None = None
        self._agreed = (-1, 0)  # the generation in which ranks have compared the hook's state, and its phase since then
        self._group = group
        self._params = params
        self._beside = beside
        self._pending: list[tuple[Flat, Future[Any] | None]] = []

    def use(self, state: Any, hook: Hook) -> None:
        """Use `hook` instead of the averaging all-reduce."""
        self.hook, self._state, self._refused = hook, state, None

    def refuse(self, why: str) -> None:
        """A hook is not used, and the program may go on without: the others hear it where ranks compare their hooks."""
        self._refused = why

    def lone_bytes(self) -> int | None:
        """From which size a gradient has a bucket of its own; None where a hook may go by what is in one bucket."""
        if self.hook is not None:
            return None
        return buckets.LONE_BYTES_BESIDE if self._beside else buckets.LONE_BYTES

    def start(self) -> None:
        """A backward begins."""
        self._pending = []
        self.timings.start()

    def launch(self, flat: Flat, last: bool) -> None:
        """The gradients of a bucket are all there."""
        if self.hook is None and not self._beside:
            self._pending.append((flat, None))
            return
        if self.hook is None:
            self.traffic.all_reduce(flat.spec.nbytes, self._group.size())
            work = dist.all_reduce(flat.tensor, op=dist.ReduceOp.AVG, group=self._group, async_op=True)
            assert work is not None, "async_op gives a Work"
            future = work.get_future()
        else:
            self._agree()
            bucket = GradBucket(flat, self._params, last, self.traffic)
            with errors.abort_on_error_of(self.hook, bucket.index(), self._group):
                future = checked_future(self.hook(self._state, bucket))
        self.timings.launch(future)
        self._pending.append((flat, future))

    def facts(self) -> Facts:
        """Of the hook: ranks with different ones reduce other tensors."""
        state = self._state
        kind = type(state).__name__ if isinstance(state, HookState) else "none of its own"
        return _HookFacts(_name(self.hook), kind, self._refused)

    def _agree(self) -> None:
        """Before the first bucket of a hook: no rank is to wait for one with other options, or be told other means.

        Again in another world, and when the count of steps is not the one that the last step left.
        """
        state, group = self._state, self._group
        if isinstance(state, HookState) and group.size() > 1 and self._agreed != (group.generation, state.phase()):
            state.agree(group)
            self._agreed = (group.generation, state.phase())

    def settle(self, scale: float) -> None:
        """Backward has ended: wait for all buckets, and multiply the means by `scale`."""
        pending, self._pending = self._pending, []
        for flat, future in pending:
            if future is None:
                self._reduce(flat)
            elif self.hook is None:
                future.wait()
            else:
                with errors.abort_on_error_of(self.hook, flat.spec.index, self._group):
                    take_result(future.wait(limit_s(self._group)), flat.tensor, self.traffic)
            if scale != 1:
                flat.scale(scale)
        if isinstance(self._state, HookState):
            self._agreed = (self._agreed[0], self._state.phase())

    def _reduce(self, flat: Flat) -> None:
        begin = now()
        self.traffic.all_reduce(flat.spec.nbytes, self._group.size())
        dist.all_reduce(flat.tensor, op=dist.ReduceOp.AVG, group=self._group)
        self.timings.reduced(begin)

    def stats(self) -> dict[str, Any]:
        """Times and traffic."""
        beside = self._beside or self.hook is not None
        return {"beside_backward": beside, **self.timings.stats(), "traffic": self.traffic.stats()}
