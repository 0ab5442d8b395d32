"""Hooks that are wrong: the error names hook, rank and bucket, all ranks hear of it, and none waits for ever."""

from __future__ import annotations

import re
import threading
from functools import partial
from typing import Annotated, Any, Protocol

import numpy as np
import pytest
from hooked import Given, gradients_of

from resilin import distributed as dist
from resilin import nn
from resilin.core.tensor import Tensor
from resilin.ddp import DistributedDataParallel as DDP
from resilin.ddp import GradBucket
from resilin.ddp.comm_hooks.default_hooks import (
    allreduce_hook,
    bf16_compress_wrapper,
    fp16_compress_hook,
    fp16_compress_wrapper,
)
from resilin.ddp.comm_hooks.hook_type import DDPCommHookType, register_ddp_comm_hook
from resilin.ddp.comm_hooks.onebit_hook import OneBitState, onebit_hook
from resilin.ddp.comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from resilin.ddp.comm_hooks.quantization_hooks import quantization_pertensor_hook
from resilin.ddp.comm_hooks.topk_hook import TopKState, topk_hook
from resilin.distributed.work.future import Future
from resilin.errors import CollectiveMismatch, CollectiveTimeout, DistBackendError, PeerLost, UsageError
from resilin.testing.faults import FaultPlan
from resilin.testing.ranks import Outcome, run_ranks


def done(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future


def train(hook: Any, other: Any = allreduce_hook, timeout_s: float = 20.0) -> Outcome:
    """Two ranks; `hook` on rank 0, the `other` on rank 1. Nobody else ends the group for them."""

    def work(rank: int) -> None:
        model = DDP(Given(), bucket_cap_mb=1e-4)
        model.register_comm_hook(None, other if rank else hook)
        model(gradients_of(0, rank)).backward()
        dist.barrier()

    return run_ranks(2, work, abort=False, timeout_s=timeout_s)


def raising(state: Any, bucket: GradBucket) -> Future[Tensor]:
    raise ZeroDivisionError("no rate")


def raising_later(state: Any, bucket: GradBucket) -> Future[Tensor]:
    def failing(future: Future[Tensor]) -> Tensor:
        raise ZeroDivisionError("no rate")

    return allreduce_hook(state, bucket).then(failing)


@pytest.mark.parametrize("hook", [raising, raising_later])
def test_what_a_hook_raises_is_raised_there_and_told_the_others(hook: Any) -> None:
    outcome = train(hook)
    mine, theirs = outcome.errors[0], outcome.errors[1]
    assert isinstance(mine, ZeroDivisionError)
    assert f"rank 0, hook {hook.__name__}, bucket 0" in "".join(mine.__notes__)
    assert isinstance(theirs, DistBackendError)
    assert "no rate" in str(theirs)
    assert f"hook {hook.__name__}, bucket 0" in str(theirs)


@pytest.mark.parametrize("wrapper", [lambda hook: hook, fp16_compress_wrapper, bf16_compress_wrapper])
@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (lambda bucket: bucket.buffer(), "it must return a Future of the reduced tensor, got Tensor"),
        (lambda bucket: None, "it must return a Future of the reduced tensor, got NoneType"),
        (
            lambda bucket: dist.all_reduce(bucket.buffer(), async_op=True),
            r"got Work; call get_future\(\) of the Work",
        ),
        (lambda bucket: done(None), "its future must give a Tensor, got NoneType"),
        (
            lambda bucket: done(Tensor._wrap(np.zeros((2, 999), np.float32))),
            r"has the shape \[\d+\], the result \[2, 999\]: return the reduced gradients, flat",
        ),
        (lambda bucket: done(bucket.buffer().reshape(1, -1)), r"has the shape \[\d+\], the result \[1, \d+\]"),
        (lambda bucket: done(bucket.buffer().sum()), r"has the shape \[\d+\], the result \[\]"),
        (lambda bucket: bucket.set_buffer(None), "set_buffer: expected a Tensor, got NoneType"),
        (
            lambda bucket: done(Tensor._wrap(bucket.buffer().numpy().astype(np.int64))),
            "of float32, the result of int64",
        ),
        (lambda bucket: done(Tensor._wrap(bucket.buffer().numpy() * 1j)), "of float32, the result of complex"),
    ],
)
def test_a_result_that_does_not_fit_is_refused_and_told_the_others(returned: Any, said: str, wrapper: Any) -> None:
    def wrong(state: Any, bucket: GradBucket) -> Any:
        return returned(bucket) if dist.get_rank() == 1 else allreduce_hook(state, bucket)

    hook = wrapper(wrong)
    outcome = train(hook, hook)
    assert isinstance(outcome.errors[1], UsageError)
    with pytest.raises(UsageError, match=rf"(?s)^.*{said}.*rank 1, hook {re.escape(hook.__name__)}, bucket 0: "):
        raise outcome.errors[1]
    assert f"hook {hook.__name__}, bucket 0" in str(outcome.errors[0])


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_inside_a_hook_is_told_the_others_at_once(interrupt: type[BaseException]) -> None:
    heard = threading.Event()

    def interrupted(state: Any, bucket: GradBucket) -> Future[Tensor]:
        raise interrupt

    def work(rank: int) -> None:
        model = DDP(Given(), bucket_cap_mb=1e-4)
        model.register_comm_hook(None, allreduce_hook if rank else interrupted)
        with pytest.raises(DistBackendError if rank else interrupt) as caught:
            model(gradients_of(0, rank)).backward()
        if rank == 0:
            assert heard.wait(10)  # its own end would tell the other, too
            return
        assert f"rank 0 aborted the group: {interrupt.__name__}: " in str(caught.value)
        assert "rank 0, hook interrupted, bucket 0" in str(caught.value)
        heard.set()

    run_ranks(2, work, abort=False, timeout_s=20.0).results()


def test_what_is_raised_in_this_library_for_a_hook_names_it_all_the_same() -> None:
    """Where the error is told in other words, as of any function that is given what is no tensor."""

    def wrong(state: Any, bucket: GradBucket) -> Any:
        return allreduce_hook(state, None)  # type: ignore[arg-type]

    raised = train(wrong).errors[0]
    assert "rank 0, hook wrong, bucket 0" in "".join(raised.__notes__)


def test_a_group_that_this_rank_is_not_in_is_named() -> None:
    outcome = train(lambda state, bucket: allreduce_hook(dist.GroupMember.NON_GROUP_MEMBER, bucket))
    assert "its state is a process group that this rank is not in" in str(outcome.errors[0])
    assert "bucket 0: the group is aborted" in "".join(outcome.errors[0].__notes__)


def test_a_future_that_never_comes_is_given_up_at_the_limit_of_the_group() -> None:
    outcome = train(lambda state, bucket: Future(), timeout_s=1.0)
    assert isinstance(outcome.errors[0], CollectiveTimeout)
    assert outcome.errors.keys() == {0, 1}
    with pytest.raises(CollectiveTimeout, match="rank 0 did not arrive"):  # not that a wait was too long
        raise outcome.errors[1]


def test_ranks_with_different_hooks_are_told_so_by_the_collectives() -> None:
    def halved(state: Any, bucket: GradBucket) -> Future[Tensor]:
        half = Tensor._wrap(bucket.buffer().numpy().astype(np.float16))
        return dist.all_reduce(half, async_op=True).get_future().then(lambda future: bucket.buffer())

    outcome = train(halved)
    assert outcome.errors.keys() == {0, 1}
    kinds = [type(error) for error in outcome.errors.values()]
    assert CollectiveMismatch in kinds
    for error in outcome.errors.values():  # or the other rank's abort came first, and says why
        assert isinstance(error, CollectiveMismatch) or "CollectiveMismatch" in str(error)


def test_results_of_another_floating_type_are_converted() -> None:
    def other(state: Any, bucket: GradBucket) -> Future[Tensor]:
        return done([Tensor._wrap(bucket.buffer().numpy().astype(np.float64))])

    def work(rank: int) -> str:
        model = DDP(Given())
        model.register_comm_hook(None, other)
        model(gradients_of(0, rank)).backward()
        first = next(model.parameters()).grad.numpy()
        assert np.array_equal(first, gradients_of(0, rank)[0])
        return first.dtype.name

    assert run_ranks(1, work).results() == ["float32"]


class Callable3:
    def __call__(self, state: Any, bucket: GradBucket, more: int) -> Future[Tensor]:
        raise NotImplementedError

    def method(self, bucket: GradBucket) -> Future[Tensor]:
        raise NotImplementedError


@pytest.mark.parametrize(
    "hook", [lambda: None, lambda a, b, c: None, lambda *, state, bucket: None, Callable3(), Callable3().method]
)
def test_hooks_that_cannot_be_called_with_state_and_bucket_are_refused(hook: Any) -> None:
    def work(rank: int) -> None:
        with pytest.raises(UsageError, match=r"must take \(state, bucket\), it takes \d arguments: \("):
            DDP(Given()).register_comm_hook(None, hook)
        with pytest.raises(UsageError, match=r"fp16_compress_wrapper: .*must take \(state, bucket\), it takes "):
            fp16_compress_wrapper(hook)
        with pytest.raises(UsageError, match=r"bf16_compress_wrapper: .*must take \(state, bucket\), it takes "):
            bf16_compress_wrapper(hook)

    run_ranks(1, work).results()


@pytest.mark.parametrize("hook", [lambda *all: None, lambda a, b, c=1: None, partial(lambda c, a, b: None, 1)])
def test_hooks_that_can_be_called_so_are_taken(hook: Any) -> None:
    run_ranks(1, lambda rank: DDP(Given()).register_comm_hook(None, hook)).results()


def of_int(state: Any, bucket: int) -> Future[Tensor]:
    raise NotImplementedError


def to_int(state: Any, bucket: GradBucket) -> int:
    raise NotImplementedError


def to_none(state: Any, bucket: Any) -> None:
    raise NotImplementedError


def to_tensor(state: Any, bucket: GradBucket) -> Tensor:
    raise NotImplementedError


@pytest.mark.parametrize(
    ("hook", "words"),
    [
        (of_int, "of_int says that its argument bucket is int; it is given a GradBucket"),
        (to_int, "to_int says that it returns int; it must return a Future of the reduced tensor"),
        (to_none, "to_none says that it returns None"),
        (to_tensor, "to_tensor says that it returns Tensor"),
    ],
)
def test_a_hook_that_says_other_types_is_refused(hook: Any, words: str) -> None:
    def work(rank: int) -> None:
        with pytest.raises(UsageError, match=f"register_comm_hook: {words}"):
            DDP(Given()).register_comm_hook(None, hook)

    run_ranks(1, work).results()


def of_anything(state: object, grads: object) -> object:
    raise NotImplementedError


def of_unions(state: None, bucket: GradBucket | None) -> Future[Tensor] | None:
    raise NotImplementedError


def of_unknown(state: Any, bucket: Unknown) -> Unknown:  # noqa: F821
    raise NotImplementedError


def of_several(*given: int) -> Future[Any]:
    raise NotImplementedError


class Buffered(Protocol):
    def buffer(self) -> Tensor: ...


class Own(Future[Any]):
    pass


def of_protocol(state: Any, bucket: Buffered) -> Own:
    raise NotImplementedError


def of_annotated(state: Any, bucket: Annotated[GradBucket, "flat"]) -> Annotated[Future[Tensor], "flat"]:
    raise NotImplementedError


HOOKS = [of_anything, of_unions, of_unknown, of_several, of_protocol, of_annotated]


@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_whose_types_may_be_those_of_a_hook_is_taken(hook: Any) -> None:
    run_ranks(1, lambda rank: DDP(Given()).register_comm_hook(None, hook)).results()


def test_a_second_hook_and_a_hook_with_shards_are_refused() -> None:
    def work(rank: int) -> None:
        model = DDP(Given())
        model.register_comm_hook(None, allreduce_hook)
        with pytest.raises(UsageError, match="a hook is registered already"):
            model.register_comm_hook(None, allreduce_hook)
        with pytest.raises(UsageError, match="fixed-shard mode sums along its own tree; use shards=None"):
            DDP(Given(), shards=2).register_comm_hook(None, allreduce_hook)

    run_ranks(2, work).results()


@pytest.mark.parametrize("find_unused", [False, True])
def test_a_hook_after_the_first_backward_is_refused_and_changes_nothing(find_unused: bool) -> None:
    def work(rank: int) -> Any:
        model = DDP(Given(), find_unused_parameters=find_unused)
        with model.no_sync():
            model(gradients_of(0, rank)).backward()
        model(gradients_of(0, rank)).backward()
        if rank == 1:
            with pytest.raises(UsageError, match=r"register_comm_hook: a backward of this model has reduced .* before"):
                model.register_comm_hook(None, lambda state, bucket: done(bucket.buffer() * 3))
        model.zero_grad()
        model(gradients_of(1, rank)).backward()
        return [param.grad.tolist() for param in model.parameters()]

    first, second = run_ranks(2, work).results()
    assert first == second


def too_few(bucket: GradBucket) -> Future[Tensor]:
    raise NotImplementedError


REFUSED: dict[str, tuple[list[Any], str]] = {
    "wrong signature": ([too_few], "too_few must take (state, bucket), it takes 1 arguments: (bucket"),
    "no function": ([3], "expected a function (state, bucket), got int"),
    "twice": ([allreduce_hook, fp16_compress_hook], "a hook is registered already; it can be set once"),
}


def register(model: DDP, hooks: list[Any]) -> str:
    """Why the last of them was refused."""
    for hook in hooks[:-1]:
        model.register_comm_hook(None, hook)
    with pytest.raises(UsageError) as caught:
        model.register_comm_hook(None, hooks[-1])
    return str(caught.value)


@pytest.mark.parametrize("find_unused", [False, True])
@pytest.mark.parametrize("others", [None, allreduce_hook])
@pytest.mark.parametrize("case", REFUSED)
def test_a_hook_that_one_rank_refuses_and_goes_on_is_told_on_all_in_the_first_backward(
    case: str, others: Any, find_unused: bool
) -> None:
    def work(rank: int) -> tuple[str, str]:
        model, own = DDP(Given(), find_unused_parameters=find_unused), ""
        if rank == 1:
            own = register(model, REFUSED[case][0])
        elif others is not None:
            model.register_comm_hook(None, others)
        for _ in range(2):
            with pytest.raises(CollectiveMismatch) as caught:
                model(gradients_of(0, rank)).backward()
        again = DDP(model.module)
        again(gradients_of(0, rank)).backward()
        return own, str(caught.value)

    results = run_ranks(3, work).results()
    own = results[1][0]
    assert REFUSED[case][1] in own
    for _, said in results:
        assert (
            f": DistributedDataParallel: rank 1 refused its comm hook: {own}; all ranks must register the same" in said
        )


@pytest.mark.parametrize("case", REFUSED)
def test_hooks_that_all_ranks_refuse_or_replace_by_one_that_they_take_change_nothing(case: str) -> None:
    def work(rank: int) -> None:
        model = DDP(Given())
        register(model, REFUSED[case][0])
        model(gradients_of(0, rank)).backward()
        if case == "twice":
            return
        model = DDP(model.module)
        if rank == 1:
            register(model, REFUSED[case][0])
        model.register_comm_hook(None, allreduce_hook)
        model(gradients_of(1, rank)).backward()

    run_ranks(2, work).results()


def test_a_hook_after_a_backward_that_reduced_nothing_is_taken() -> None:
    def work(rank: int) -> None:
        model = DDP(Given())
        with model.no_sync():
            model(gradients_of(0, rank)).backward()
        model.register_comm_hook(None, allreduce_hook)
        model(gradients_of(0, rank)).backward()

    run_ranks(2, work).results()


def test_a_buffer_of_another_size_is_refused() -> None:
    def shrinking(state: Any, bucket: GradBucket) -> Future[Tensor]:
        bucket.set_buffer(Tensor._wrap(np.zeros(3, np.float32)))
        return done(bucket.buffer())

    outcome = train(shrinking)
    assert "GradBucket.set_buffer: expected" in str(outcome.errors[0])


@pytest.mark.parametrize("name", ["powersgd", "8 bits", "top-k", "1 bit"])
@pytest.mark.parametrize("call", [8, 9, 10, 11])
def test_a_rank_that_dies_in_a_hook_is_named_on_the_others(name: str, call: int) -> None:
    """Four steps of two buckets or more: the calls come from hooks and from their callbacks."""
    hook, make_state, kind = {
        "powersgd": (powerSGD_hook, lambda: PowerSGDState(None, 2, 2), "all_reduce"),
        "8 bits": (quantization_pertensor_hook, lambda: None, "all_gather"),
        "top-k": (topk_hook, lambda: TopKState(None, 0.1), "all_gather"),
        "1 bit": (onebit_hook, lambda: OneBitState(None, 0), "all_gather"),
    }[name]

    def work(rank: int) -> None:
        model = DDP(Given(), bucket_cap_mb=5e-4)
        model.register_comm_hook(make_state(), hook)
        for step in range(12):
            model.zero_grad()
            model(gradients_of(step, rank)).backward()

    faults = FaultPlan().kill(rank=2, at=kind, call=call)
    outcome = run_ranks(3, work, abort=False, faults=faults)
    assert faults.all_fired()
    assert outcome.errors.keys() == {0, 1}
    for error in outcome.errors.values():
        assert isinstance(error, PeerLost)
        assert error.ranks == {2}


def test_a_model_that_is_not_wrapped_is_named_by_the_registration_by_type() -> None:
    with pytest.raises(UsageError, match="register_ddp_comm_hook: model must be a DistributedDataParallel, got Linear"):
        register_ddp_comm_hook(DDPCommHookType.NOOP, nn.Linear(2, 2))
