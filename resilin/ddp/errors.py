"""How both reducers end a backward that cannot be completed: the same words, and no rank left waiting."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NoReturn

import resilin.distributed as dist
from resilin.core.tensor import Tensor
from resilin.distributed.agreement.guard import abort_group_on_error
from resilin.distributed.agreement.refuse import refuse as refuse_and_abort

_NAMES_SHOWN = 8
_STATE_CHECK = "check_state"  # the attribute of a hook that holds its StateCheck
_NAME = "DistributedDataParallel"


def refuse(group: dist.ProcessGroup, where: str, what: str) -> NoReturn:
    """Raise UsageError, and abort `group` with it: the other ranks would wait for this one's gradients for ever."""
    refuse_and_abort(group, _NAME, what, where)


def refuse_unused(
    group: dist.ProcessGroup, where: str, named: Sequence[tuple[str, Tensor]], missing: Collection[int]
) -> NoReturn:
    """`refuse` because the parameters with the numbers `missing`, of all `named`, got no gradient."""
    frozen = [named[number][0] for number in sorted(missing) if not named[number][1]._rg]
    if frozen:
        refuse(
            group,
            where,
            f"requires_grad of {_listed(frozen)} was switched off after wrapping; wrap again, so that they are left "
            "out, or construct with find_unused_parameters=True",
        )
    refuse(
        group,
        where,
        f"{len(missing)} of {len(named)} parameters got no gradient in this backward: "
        f"{_listed([named[number][0] for number in sorted(missing)])}. Use them in the loss, "
        "set requires_grad=False before wrapping, or construct with find_unused_parameters=True",
    )


def refuse_second(group: dist.ProcessGroup, name: str) -> NoReturn:
    """`refuse` because a gradient came when its bucket could be on its way already."""
    refuse(
        group,
        "",
        f"parameter {name} got a second gradient in one backward, or one although the graph of the outputs did not "
        "hold it (with static_graph=True: other than in the first backward). Its bucket may be on its way. Use "
        "parameters inside forward() only; checkpoint a layer that runs several times with use_reentrant=False, or "
        "construct with static_graph=True where the graph never changes",
    )


def refuse_again(group: dist.ProcessGroup) -> NoReturn:
    """`refuse` because a forward inside join() has a second backward, which ranks without data take no part in."""
    refuse(
        group,
        "",
        "inside join() a second backward began after one forward. Ranks without data take part in one reduction for "
        "each forward: add up the losses and run one backward of the sum, or run each other forward with its backward "
        "inside no_sync()",
    )


def refuse_unfrozen(group: dist.ProcessGroup, frozen: Sequence[tuple[str, Tensor]]) -> NoReturn:
    """`refuse` because some of the parameters that were `frozen` when the module was wrapped are trained now."""
    names = _listed([name for name, param in frozen if param._rg])
    refuse(
        group,
        "",
        f"{names} did not require a gradient when the module was wrapped, and do now: ranks would train them apart. "
        "Wrap the module again after changing requires_grad",
    )


def check_gradient(
    grad: Tensor | None, shape: tuple[int, ...], dtype: Any, group: dist.ProcessGroup, name: str
) -> None:
    """`refuse` when the parameter `name` is no longer the one that was wrapped, or its gradient is part of a graph."""
    if grad is None:
        return
    array = grad._array
    if array.dtype != dtype or array.shape != shape:
        refuse(
            group,
            "",
            f"the gradient of {name} has shape {array.shape} and dtype {array.dtype}, but when the module was "
            f"wrapped {name} had shape {shape} and dtype {dtype}. Convert parameters before wrapping, or "
            "wrap again",
        )
    if grad._node is not None:
        refuse(
            group,
            "",
            f"backward(create_graph=True) gave {name} a gradient that can be differentiated, which the mean over ranks "
            "cannot: take the inner derivative by autograd.grad(..., create_graph=True), and call backward() of what "
            "is made of it, or accumulate inside no_sync()",
        )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMES_SHOWN]) + (", ..." if len(names) > _NAMES_SHOWN else "")


def abort_on_error_of(hook: Any, index: int, group: dist.ProcessGroup) -> AbstractContextManager[None]:
    """Abort `group` if `hook` fails at the bucket `index`: other ranks may wait for what the hook would send."""
    where = f"{_NAME}, rank {group.rank()}, hook {hook_name(hook)}, bucket {index}"
    return abort_group_on_error(group, where, always=True)


StateCheck = Callable[[str, Any], None]
"""Given the name of a hook and a state: raises UsageTypeError for one that is none of the hook's."""


def set_state_check(hook: Any, check: StateCheck | None) -> None:
    """Have `check` look at the states that `hook` is registered with; None: nobody does."""
    setattr(hook, _STATE_CHECK, check)


def state_check(hook: Any) -> StateCheck | None:
    """What looks at the states of `hook`, which may be one with further arguments bound by name."""
    while isinstance(hook, partial) and not hook.args:
        hook = hook.func
    check: StateCheck | None = getattr(hook, _STATE_CHECK, None)
    return check


def hook_name(hook: Any) -> str:
    """How messages call a hook."""
    return str(getattr(hook, "__name__", repr(hook)))
