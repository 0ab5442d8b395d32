"""Gradients averaged over all ranks at first, later over a few only, with model averaging after the step."""

from __future__ import annotations

from typing import Any

import resilin.distributed as dist
from resilin.core.tensor import Tensor
from resilin.ddp.comm_hooks.exchange import Group, at_once, mean, members
from resilin.ddp.comm_hooks.state import HookState, remembers
from resilin.ddp.grad_bucket import GradBucket
from resilin.distributed.work.future import Future


class PostLocalSGDState(HookState):
    """State of `post_localSGD_hook`.

    process_group:        all ranks; None: the default group at each step.
    subgroup:             the ranks to average with from step `start_localSGD_iter` on; None: those of the host, in a
                          group that the first such step makes, and makes anew for another process group.
    post_local_gradient_allreduce:  False: from then on no gradients are averaged at all.
    """

    def __init__(
        self,
        process_group: Group,
        subgroup: Group,
        start_localSGD_iter: int,
        post_local_gradient_allreduce: bool = True,
    ) -> None:
        super().__init__(process_group)
        self.subgroup = subgroup
        self.start_localSGD_iter = self._whole("start_localSGD_iter", start_localSGD_iter)
        self.post_local_gradient_allreduce = self._flag("post_local_gradient_allreduce", post_local_gradient_allreduce)
        self._made: tuple[dist.ProcessGroup, Any] | None = None  # (of which group, the subgroup of this host)

    def local_group(self, group: dist.ProcessGroup) -> dist.ProcessGroup:
        """The ranks to average with; a collective of `group` when there was no subgroup of it yet."""
        if self.subgroup is not None:
            return self.subgroup
        if self._made is None or self._made[0] is not group:
            self._made = (group, dist.new_subgroups(group=group)[0])
        made: dist.ProcessGroup = self._made[1]
        return made

    def _options(self) -> tuple[str, ...]:
        return ("start_localSGD_iter", "post_local_gradient_allreduce")

    def phase(self) -> int:
        """Steps until it averages within subgroups; then each rank counts for itself."""
        return min(self.iter, self.start_localSGD_iter)

    def _unsaved(self) -> tuple[str, ...]:
        return (*super()._unsaved(), "subgroup", "_made")

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.subgroup, self._made = None, None
        super().__setstate__(state)


@remembers(PostLocalSGDState)
def post_localSGD_hook(state: PostLocalSGDState, bucket: GradBucket) -> Future[Tensor]:
    """Average over `process_group` before step `start_localSGD_iter`, over `subgroup` from then on.

    Averages of the parameters over all ranks are the business of `resilin.ddp.model_averaging`. Bytes: those of an
    all-reduce of the bucket, within the host from `start_localSGD_iter` on.
    """
    group, local = members(state.process_group), state.iter >= state.start_localSGD_iter
    state.count(bucket)
    if not local:
        return mean(group, bucket, bucket.buffer())
    if not state.post_local_gradient_allreduce:
        return at_once(bucket.buffer())
    return mean(state.local_group(group), bucket, bucket.buffer())
