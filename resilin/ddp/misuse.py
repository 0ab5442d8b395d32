"""How both reducers end a backward that cannot be completed: the same words, and no rank left waiting."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import resilin.dist as dist
from resilin.ddp.flat import Array
from resilin.errors import DistError, UsageError

_NAMES_SHOWN = 8


def refuse(group: dist.ProcessGroup, where: str, what: str) -> NoReturn:
    """Raise UsageError, and abort `group` with it: the other ranks would wait for this one's gradients for ever."""
    error = UsageError(f"DistributedDataParallel, rank {group.rank()}{where}: {what}")
    group.abort(error)
    raise error


def refuse_unused(group: dist.ProcessGroup, where: str, names: Sequence[str], missing: Collection[int]) -> NoReturn:
    """`refuse` because the parameters with the numbers `missing`, of all those with `names`, got no gradient."""
    chosen = [names[number] for number in sorted(missing)]
    shown = ", ".join(chosen[:_NAMES_SHOWN]) + (", ..." if len(chosen) > _NAMES_SHOWN else "")
    refuse(
        group,
        where,
        f"{len(chosen)} of {len(names)} parameters got no gradient in this backward: {shown}. Use them in the loss, "
        "set requires_grad=False before wrapping, or construct with find_unused_parameters=True",
    )


def check_fits(gradient: Array, view: Array, group: dist.ProcessGroup, name: str) -> None:
    """`refuse` when the parameter `name` is no longer the one that its place in a bucket was made for."""
    if gradient.dtype != view.dtype or gradient.shape != view.shape:
        refuse(
            group,
            "",
            f"the gradient of {name} has shape {gradient.shape} and dtype {gradient.dtype}, but when the module was "
            f"wrapped {name} had shape {view.shape} and dtype {view.dtype}. Convert parameters before wrapping, or "
            "wrap again",
        )


@contextmanager
def of_a_hook(group: dist.ProcessGroup, hook: Any, index: int) -> Iterator[None]:
    """Say which hook failed at which bucket, and abort `group`: other ranks may wait for what the hook would send.

    What the hook itself raised goes on as it is, with a note.
    """
    where = f"DistributedDataParallel, rank {group.rank()}, hook {hook_name(hook)}, bucket {index}"
    try:
        yield
    except UsageError as error:
        refusal = UsageError(f"{where}: {error}")
        group.abort(refusal)
        raise refusal from error
    except Exception as error:
        error.add_note(f"{where}: the group is aborted, so that no rank waits for this one")
        group.abort(error if isinstance(error, DistError) else UsageError(f"{where}: {error!r}"))
        raise


def hook_name(hook: Any) -> str:
    """How messages call a hook."""
    return str(getattr(hook, "__name__", repr(hook)))
