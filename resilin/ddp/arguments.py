"""What the constructor of DistributedDataParallel and `register_comm_hook` are given: checked, and what is refused."""

from __future__ import annotations

import inspect
import types
import typing
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import resilin.distributed as dist
from resilin.core import shard_metadata
from resilin.core.argument_checks import flag, mebibytes
from resilin.core.tensor import Tensor
from resilin.ddp import buckets, errors, flat_buffer
from resilin.ddp.grad_bucket import GradBucket
from resilin.distributed.group import default_group
from resilin.distributed.work.future import Future
from resilin.errors import UsageError, UsageTypeError
from resilin.nn import Module
from resilin.nn.parameter import is_lazy

_NAME = "DistributedDataParallel"
_MEGABYTE = 1 << 20
Named = Sequence[tuple[str, Tensor]]
_OPEN = (inspect.Signature.empty, Any, typing.Annotated, types.UnionType)  # annotations of which nothing is concluded


@dataclass(frozen=True, kw_only=True)
class DDPOptions:
    """How gradients are reduced: the constructor's arguments, checked."""

    caps: tuple[int, ...]
    """Bytes of each bucket, see `buckets.assign`."""
    as_view: bool = True
    find_unused: bool = False
    static: bool = False
    skip_unused: bool = False
    late: frozenset[int] = frozenset()
    """Numbers of the parameters that are reduced after the one with number `until`."""
    until: int = -1


def check(module: Any, dim: int, device_mesh: Any, batched_grad_copy: bool) -> None:
    """UsageError for what has no meaning here."""
    if not isinstance(module, Module):
        raise UsageError(f"{_NAME}: expected an nn.Module, got {type(module).__name__}")
    if dim != 0:
        raise UsageError(f"{_NAME}: dim must be 0, got {dim}: inputs are not scattered, each rank brings its own")
    if device_mesh is not None:
        raise UsageError(
            f"{_NAME}: device_mesh is not supported: there are no device meshes; pass process_group, such as "
            "new_group() gives"
        )
    if batched_grad_copy:
        raise UsageError(
            f"{_NAME}: batched_grad_copy is not supported: there are no copies to batch, backward itself writes "
            "gradients into the flat arrays"
        )


@dataclass(frozen=True, kw_only=True)
class Flags:
    """The constructor's flags as bools. UsageTypeError for what is no flag; those about buffers may be None."""

    broadcast_buffers: bool | None
    init_sync: bool
    find_unused_parameters: bool
    check_reduction: bool
    gradient_as_bucket_view: bool
    static_graph: bool
    skip_all_reduce_unused_params: bool
    batched_grad_copy: bool
    forward_sync_buffers: bool | None
    lazy_bucket_allocation: bool

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None or name not in ("broadcast_buffers", "forward_sync_buffers"):
                object.__setattr__(self, name, flag(f"{_NAME}: {name}", value))


def warn_of(flags: Flags) -> None:
    """FutureWarning for arguments that change nothing, as PyTorch gives."""
    broadcast_buffers, forward_sync_buffers = flags.broadcast_buffers, flags.forward_sync_buffers
    if flags.check_reduction:
        warnings.warn(f"{_NAME}: check_reduction is deprecated and changes nothing", FutureWarning, stacklevel=3)
    if None not in (broadcast_buffers, forward_sync_buffers) and broadcast_buffers != forward_sync_buffers:
        warnings.warn(
            f"{_NAME}: broadcast_buffers={broadcast_buffers} is ignored, forward_sync_buffers={forward_sync_buffers} "
            "holds",
            FutureWarning,
            stacklevel=3,
        )


def trained(module: Module, wrapper: type[Module]) -> Named:
    """The parameters that are trained, by name. UsageError when there are none, or when they cannot be wrapped."""
    for name, part in module.named_modules():
        if isinstance(part, wrapper):
            where = f"its submodule {name}" if name else "the module"
            raise UsageError(
                f"{_NAME}: {where} is a {_NAME} already, which averages its gradients; wrap the module inside of it "
                f"({name + '.' if name else ''}module), or only the whole"
            )
    shard_metadata.refuse(
        _NAME, module.named_parameters(), "and its module averages gradients itself: use that as it is"
    )
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if is_lazy(tensor):
            raise UsageError(f"{_NAME}: {name} is uninitialized; call the module with an input before wrapping it")
    named = [(name, param) for name, param in module.named_parameters() if param.requires_grad]
    if not named:
        raise UsageError(f"{_NAME}: the module has no parameter that requires a gradient; call it directly")
    for name, param in named:
        if flat_buffer.listeners(param):
            raise UsageError(
                f"{_NAME}: the gradient of {name} is averaged by another {_NAME}, around a module that holds "
                f"{name.rpartition('.')[2]}, too; drop that wrapper first, or call its detach()"
            )
    return named


def caps(bucket_cap_mb: float | None, bucket_cap_mb_list: Sequence[float] | None) -> tuple[int, ...]:
    """Bytes of each bucket. Of equally large ones the first is small, so that communication starts early."""
    if bucket_cap_mb_list is not None and not isinstance(bucket_cap_mb_list, list | tuple):
        raise UsageTypeError(
            f"{_NAME}: bucket_cap_mb_list must be a list of numbers of MiB, got {bucket_cap_mb_list!r:.80}"
        )
    if bucket_cap_mb_list is not None and not bucket_cap_mb_list:
        raise UsageError(f"{_NAME}: bucket_cap_mb_list must have at least one number of MiB, got none")
    if bucket_cap_mb_list:
        return tuple(
            _bytes(f"{_NAME}: bucket_cap_mb_list[{place}]", cap) for place, cap in enumerate(bucket_cap_mb_list)
        )
    cap = buckets.DEFAULT_BUCKET_BYTES if bucket_cap_mb is None else _bytes(f"{_NAME}: bucket_cap_mb", bucket_cap_mb)
    return min(buckets.FIRST_BUCKET_BYTES, cap), cap


def _bytes(name: str, cap: Any) -> int:
    return int(mebibytes(name, cap) * _MEGABYTE)


def delayed(named: Named, late: Sequence[tuple[str, Tensor]] | None, until: Tensor | None) -> dict[str, Any]:
    """`late` and `until` of Options from delay_all_reduce_named_params and param_to_hook_all_reduce."""
    if late is None and until is None:
        return {}
    if late is None or until is None:
        raise UsageError(
            f"{_NAME}: delay_all_reduce_named_params and param_to_hook_all_reduce need to be set at the same time"
        )
    numbers = {id(param): number for number, (_, param) in enumerate(named)}
    for name, param in [*late, ("param_to_hook_all_reduce", until)]:
        if id(param) not in numbers:
            raise UsageError(f"{_NAME}: {name} is no parameter of the module that requires a gradient")
    chosen = frozenset(numbers[id(param)] for _, param in late)
    if numbers[id(until)] in chosen:
        raise UsageError(f"{_NAME}: param_to_hook_all_reduce is among the parameters that wait for it")
    return {"late": chosen, "until": numbers[id(until)]}


def buffer_syncs(flags: Flags) -> tuple[bool, bool]:
    """Whether buffers are made equal when the module is wrapped, and before each forward."""
    if flags.forward_sync_buffers is None:
        return flags.broadcast_buffers is not False, flags.broadcast_buffers is not False
    return True, flags.forward_sync_buffers


def group_of(process_group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    """`process_group`, or the default group. UsageError when there is none, UsageTypeError for what is no group."""
    if process_group is not None:
        group = default_group.resolve(process_group, _NAME)
        if group is None:
            raise UsageError(f"{_NAME}: this rank is not in process_group; wrap the module on its members only")
        return group
    if dist.is_initialized():
        return dist.default_group()
    raise UsageError(
        f"{_NAME}: there is no process group; call resilin.distributed.init_process_group() first, run inside "
        "elastic.run, or "
        "pass process_group"
    )


def check_hook(where: str, hook: Any) -> None:
    """UsageError, which begins with `where`, unless `hook` can be called with (state, bucket), and when its annotations
    say other types than those of a hook, as in PyTorch."""
    if not callable(hook):
        raise UsageError(f"{where}: expected a function (state, bucket), got {type(hook).__name__}")
    try:
        signature = inspect.signature(hook)
    except (TypeError, ValueError):  # of native code: it is found out when it is called
        return
    try:
        signature.bind(None, None)
    except TypeError:
        takes = len(signature.parameters)
        raise UsageError(
            f"{where}: {errors.hook_name(hook)} must take (state, bucket), it takes {takes} arguments: {signature}"
        ) from None
    _check_annotations(where, hook)


def _check_annotations(where: str, hook: Any) -> None:
    """UsageError where a hook itself says that it takes no bucket, or returns no future."""
    try:
        signature = inspect.signature(hook, eval_str=True)
    except (NameError, AttributeError, TypeError, ValueError, SyntaxError):  # of names that only type checkers see
        return
    bucket = object()
    taken = [name for name, value in signature.bind(None, bucket).arguments.items() if value is bucket]
    for name in taken:  # none where `*args` takes it
        if _excludes(signature.parameters[name].annotation, GradBucket):
            raise UsageError(
                f"{where}: {errors.hook_name(hook)} says that its argument {name} is "
                f"{_spelled(signature.parameters[name].annotation)}; it is given a GradBucket"
            )
    if _excludes(signature.return_annotation, Future):
        raise UsageError(
            f"{where}: {errors.hook_name(hook)} says that it returns "
            f"{_spelled(signature.return_annotation)}; it must return a Future of the reduced tensor"
        )


def _excludes(annotation: Any, kind: type) -> bool:
    """Whether what is annotated so can be no `kind`. That is concluded of None and of plain classes only."""
    known = typing.get_origin(annotation) or annotation
    if known is None:
        return True
    plain = isinstance(known, type) and known not in _OPEN and not getattr(known, "_is_protocol", False)
    return plain and not issubclass(kind, known) and not issubclass(known, kind)


def _spelled(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


def check_state(where: str, hook: Any, state: Any) -> None:
    """UsageTypeError, which begins with `where`, for a state of another class than `hook` says."""
    check = errors.state_check(hook)
    try:
        if check is not None:
            check(errors.hook_name(hook), state)
    except UsageTypeError as error:
        raise UsageTypeError(f"{where}: {error}") from None
