"""State that is there and state of a checkpoint, side by side: what goes where, and what does not fit.

Tensors of the same shape and dtype are filled where they lie; where there is none yet (an optimizer before its first
step), new ones are made. Objects get their part by their own method, once it is filled. Plain values are replaced in
their dict or list, whose keys and lengths are compared as names of tensors are.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from resilin.checkpoint.flat import Flat, is_writable
from resilin.checkpoint.flatten_state import Held, opened
from resilin.checkpoint.manifest import Logical, Manifest
from resilin.checkpoint.reading import Reader, Stored
from resilin.checkpoint.sliced import Sliced
from resilin.core import rng, typed_json
from resilin.core.autograd.grad_mode import no_grad
from resilin.core.tensor import Tensor, wrap
from resilin.errors import CheckpointError, CheckpointMismatch, CorruptFile, ResilinError, UsageError
from resilin.nn import Module
from resilin.nn.parameter import is_lazy
from resilin.optim import Optimizer

_SHOWN = 20  # paths of one kind in a message
_OF_TREES = (KeyError, IndexError, TypeError, ValueError, AttributeError)  # of who finds another tree than it made
_VALUES = bool | int | float | str | bytes | complex | np.generic | None


@dataclass(frozen=True, slots=True)
class Ref:
    """Tensor `number` of a checkpoint, in the place of the tensor, or of numpy's array."""

    number: int
    is_array: bool


def stored_tree(manifest: Manifest, path: str) -> Any:
    """The tree of a checkpoint with a Ref for each tensor. CorruptFile when it is none."""

    def ref(number: Any, is_array: bool) -> Ref:
        if type(number) is not int or not 0 <= number < len(manifest.tensors):
            raise ValueError(f"there is no tensor number {number!r:.100}")
        return Ref(number, is_array)

    leaves = {"tensor": lambda number: ref(number, False), "array": lambda number: ref(number, True)}
    try:
        return typed_json.decode(manifest.tree, leaves)
    except (KeyError, TypeError, IndexError, ValueError, RecursionError) as error:
        raise CorruptFile(f"{path}: the tree of its manifest is damaged: {error!r:.200}", path) from None
    except RuntimeError as error:  # of a machine with other devices
        raise CheckpointError(f"{path}: a device in the state is not here: {error}; save str(device) instead") from None


class Matching:
    """One walk through both. Nothing is changed but by `prepare` and `apply`.

    targets: where to fill each tensor, by its number. slices: the same for what ranks hold in parts, filled locally.
    """

    def __init__(self, reader: Reader, strict: bool) -> None:
        self.targets: dict[int, list[Flat]] = {}
        self.slices: list[tuple[int, Sliced]] = []
        self.missing: list[str] = []
        self.unexpected: list[str] = []
        self.different: list[str] = []
        self._dtypes = 0  # of these, tensors that differ in nothing but their dtype
        self._bare: list[tuple[Callable[[Any], Any], Any]] = []
        self._after: list[Callable[[], Any]] = []
        self._fresh: dict[int, Tensor] = {}
        self._reader, self._strict = reader, strict

    # -- what comes of it

    def check(self, path: str) -> None:
        """CheckpointMismatch unless the checkpoint at `path` fits; not strict: what is missing may be."""
        lists = [("different", self.different)]
        if self._strict:
            lists = [("missing in it", self.missing), ("unexpected in it", self.unexpected), *lists]
        if any(found for _, found in lists):
            parts = [f"{kind}: {_listed(found)}" for kind, found in lists if found]
            hint = "; strict=False loads what fits" if not self.different else ""
            if self.different and len(self.different) == self._dtypes:
                hint = "; strict=False converts dtypes"
            if {_unwrapped(one) for one in self.missing} & {_unwrapped(one) for one in self.unexpected}:
                hint = "; one of both is a model under DistributedDataParallel, which adds 'module.': give its .module"
            raise CheckpointMismatch(
                f"{path} is the checkpoint of another state; {'; '.join(parts)}{hint}. Nothing was changed",
                self.missing, self.unexpected, self.different,
            )  # fmt: skip

    def prepare(self) -> bool:
        """Let optimizers without state make some, to be filled in place. Whether any did: then match again."""
        for take, skeleton in self._bare:
            take(skeleton)
        return bool(self._bare)

    def apply(self) -> None:
        """Give objects and containers what is theirs; the targets are filled."""
        for each in self._after:
            each()

    # -- the walk

    def value(self, stored: Any) -> Any:
        """`stored` with new tensors for its Refs, on the CPU."""
        if isinstance(stored, Ref):
            tensor = self._new(stored.number)
            return tensor.numpy() if stored.is_array else tensor
        if isinstance(stored, dict):
            return _like(stored, ((key, self.value(one)) for key, one in stored.items()))
        if type(stored) in (list, tuple):
            return type(stored)(self.value(one) for one in stored)
        return stored

    def match(self, have: Any, stored: Any, path: str = "") -> Any:
        """What stands in the place of `have`, which is the same object wherever it can be filled in place."""
        if isinstance(have, Tensor | np.ndarray):
            return self._tensor(have, stored, path)
        if isinstance(have, Sliced):
            return self._sliced(have, stored, path)
        if isinstance(have, dict):
            return self._filled(have, stored, path) if _takes_any(have) else self._dict(have, stored, path)
        if isinstance(have, list) and _is_plain(have):
            return self._filled(have, stored, path) if not have else self._values(have, stored, path)
        if isinstance(have, list | tuple) and not _is_plain(have):
            return self._sequence(have, stored, path)
        held = None if _is_plain(have) else opened(have, f"load: {path or 'the state'}")
        return self._value_for(have, stored, path) if held is None else self._object(held, stored, path)

    def match_root(self, have: Any, stored: Any) -> None:
        """`match` for the whole state, in whose place nothing else can stand."""
        if not isinstance(have, dict | list) and _is_plain(have):
            raise UsageError(
                f"load: the state is a {type(have).__name__} without tensors or objects, which cannot be filled; give "
                "a dict or a list, or no state: load(path) returns what the checkpoint has"
            )
        if self.match(have, stored) is None:
            self._differs("", stored, have)

    def _new(self, number: int) -> Tensor:
        if number not in self._fresh:
            logical = self._reader.manifest.tensors[number]
            self._fresh[number] = wrap(np.empty(logical.shape, logical.dtype.np))
            self._aim(number, self._fresh[number])
        return self._fresh[number]

    def _aim(self, number: int, tensor: Tensor) -> None:
        self.targets.setdefault(number, []).append(Flat(tensor))

    def _tensor(self, have: Any, stored: Any, path: str) -> Any:
        if not isinstance(stored, Ref):
            self._differs(path, stored, have)
            return have
        logical = self._reader.manifest.tensors[stored.number]
        tensor = wrap(have) if isinstance(have, np.ndarray) else have
        if is_lazy(tensor):
            return self._new(stored.number)
        if not is_writable(tensor):
            what = "a read-only array" if isinstance(have, np.ndarray) else "expanded or read-only memory"
            raise UsageError(f"load: {path or 'the state'} is {what}, which cannot be filled; give a copy of it")
        if tuple(tensor.shape) != logical.shape or (self._strict and tensor.dtype is not logical.dtype):
            self._dtypes += tuple(tensor.shape) == logical.shape
            self._differs(path, stored, tensor)
        elif tensor.dtype is logical.dtype:
            self._aim(stored.number, tensor)
        else:
            source = self._new(stored.number)
            self._after.append(lambda: _convert(source, tensor))
        return have

    def _sliced(self, have: Sliced, stored: Any, path: str) -> Any:
        logical = self._reader.manifest.tensors[stored.number] if isinstance(stored, Ref) else None
        if logical is None or logical.shape != have.shape or logical.dtype is not have.dtype:
            self._differs(path, stored, have)
        else:
            self.slices.append((stored.number, have))
        return have

    def _value_for(self, have: Any, stored: Any, path: str) -> Any:
        """A plain value, or a tuple of some: another one, of whatever kind. What is no container here is none there."""
        fits = have is None or not isinstance(stored, dict | list) or (isinstance(have, tuple) and type(stored) is list)
        if not fits:
            self._differs(path, stored, have)
        return self.value(stored) if fits else have

    def _filled(self, have: Any, stored: Any, path: str) -> Any:
        """A container that says nothing of what it holds: all that is stored."""
        if stored is None:
            return None
        if not isinstance(stored, dict if isinstance(have, dict) else list | tuple):
            self._differs(path, stored, have)
        else:
            self._after.append(_replacement(have, self.value(stored)))
        return have

    def _values(self, have: list[Any], stored: Any, path: str) -> Any:
        """A list of plain values: those whose places are in both."""
        if stored is None:
            return None
        if type(stored) not in (list, tuple):
            self._differs(path, stored, have)
            return have
        self.missing += [_join(path, place) for place in range(len(stored), len(have))]
        self.unexpected += [_join(path, place) for place in range(len(have), len(stored))]
        made = [
            other if isinstance(one, _VALUES) and isinstance(other, _VALUES) else self.match(one, other, _join(path, n))
            for n, (one, other) in enumerate(zip(have, stored, strict=False))
        ]
        self._after.append(lambda: have.__setitem__(slice(len(made)), made))
        return have

    def _dict(self, have: dict[Any, Any], stored: Any, path: str) -> Any:
        if stored is None and _is_plain(have):
            return None
        if not isinstance(stored, dict):
            self._differs(path, stored, have)
            return have
        self._compare_keys(have, stored, path)
        for key in have.keys() & stored.keys():
            made = self.match(have[key], stored[key], _join(path, key))
            if made is not have[key]:
                self._after.append(_setter(have, key, made))
        return have

    def _sequence(self, have: Any, stored: Any, path: str) -> Any:
        if type(stored) not in (list, tuple) or len(stored) != len(have):
            self._differs(path, stored, have)
            return have
        pairs = enumerate(zip(have, stored, strict=True))
        made = [self.match(one, other, _join(path, place)) for place, (one, other) in pairs]
        if isinstance(have, list):
            for place, one in enumerate(made):
                if one is not have[place]:
                    self._after.append(_setter(have, place, one))
            return have
        same = all(one is other for one, other in zip(made, have, strict=True))
        return have if same else type(have)(*made) if hasattr(have, "_fields") else tuple(made)

    def _object(self, held: Held, stored: Any, path: str) -> Any:
        thing = held.thing
        self._ask(thing, stored, path)
        take = _taking(thing, held.by, path)
        if isinstance(held.tree, dict) and not isinstance(stored, dict):
            self._differs(path, stored, thing)
        elif held.by == "set_state":
            if not isinstance(stored, Ref):
                self._differs(path, stored, thing)
                return thing
            state = self._new(stored.number)
            self._after.append(lambda: take(state))
        elif isinstance(thing, Module) and held.by == "load_state_dict":
            self._module(thing, held.tree, stored, path)
        elif held.by == "load_sharded_state_dict":
            made = self._part(held.tree, stored, path, names="param_groups" not in held.tree, lazy=True)
            self._after.append(lambda: take(made))
        else:
            made = self._part(held.tree, stored, path, names=False, lazy=False)
            self._after.append(lambda: take(made))
            skeleton = self._skeleton(thing, held.tree, stored)
            if skeleton is not None:
                self._bare.append((take, skeleton))
        return thing

    def _ask(self, thing: Any, stored: Any, path: str) -> None:
        """Let an object say now, before anything is changed, that it could not take over what is stored."""
        check = getattr(thing, "check_loadable", None)
        if check is not None and isinstance(stored, dict):
            try:
                check(self._described(stored))
            except UsageError as error:
                self.different.append(f"{path or 'the state'}: {error}")
            except _OF_TREES as error:
                self.different.append(f"{path or 'the state'}: no state of {type(thing).__name__}: {error!r:.200}")

    def _described(self, stored: Any) -> Any:
        """`stored` with what the manifest says of a tensor in its place: dtype and shape."""
        if isinstance(stored, Ref):
            return self._reader.manifest.tensors[stored.number]
        if isinstance(stored, dict):
            return _like(stored, ((key, self._described(one)) for key, one in stored.items()))
        if type(stored) in (list, tuple):
            return type(stored)(map(self._described, stored))
        return stored

    def _module(self, module: Module, tree: Any, stored: Any, path: str) -> None:
        if not isinstance(stored, dict):
            self._differs(path, stored, module)
            return
        self._compare_keys(tree, stored, path)
        pairs = (
            (key, self.value(one) if _is_plain(tree[key]) else self.match(tree[key], one, _join(path, key)))
            for key, one in stored.items()
            if key in tree
        )
        made, take = _like(stored, pairs), _taking(module, "load_state_dict", path)
        self._after.append(lambda: take(made, strict=self._strict))

    def _part(self, have: Any, stored: Any, path: str, names: bool, lazy: bool) -> Any:
        """What an object's method gets: the stored tree, with the object's own tensors wherever they can be filled.

        names: whether keys must agree. lazy: other tensors are read when the object asks for them, but for scalars.
        """
        if _is_object(have):
            return self.match(have, stored, path)
        if isinstance(stored, Ref):
            logical = self._reader.manifest.tensors[stored.number]
            if _fits(have, logical):
                return self.match(have, stored, path)
            if names and isinstance(have, Tensor | Sliced):
                self._differs(path, stored, have)
            return Stored(self._reader, stored.number) if lazy and logical.shape else self.value(stored)
        if isinstance(stored, dict):
            below = have if isinstance(have, dict) else {}
            if names and below and not _is_plain(below):
                self._compare_keys(below, stored, path)
            pairs = (
                (key, self._part(below.get(key), one, _join(path, key), names, lazy)) for key, one in stored.items()
            )
            return _like(stored, pairs)
        if type(stored) in (list, tuple):
            parts = _beside(have, stored)
            return type(stored)(self._part(a, b, path, names, lazy) for a, b in zip(parts, stored, strict=True))
        return stored

    def _skeleton(self, thing: Any, tree: Any, stored: Any) -> Any:
        """What makes an optimizer have state like the stored one, in tensors without memory; None: it has it already.

        Loading tensors that are to stay would copy them, and need memory twice.
        """
        if not isinstance(thing, Optimizer) or not isinstance(stored, dict):
            return None
        made = False

        def visit(have: Any, one: Any) -> Any:
            nonlocal made
            if isinstance(one, Ref):
                logical = self._reader.manifest.tensors[one.number]
                if _fits(have, logical):
                    return have
                made = True
                return wrap(np.broadcast_to(np.zeros((), logical.dtype.np), logical.shape))
            if isinstance(one, dict):
                below = have if isinstance(have, dict) else {}
                return _like(one, ((key, visit(below.get(key), part)) for key, part in one.items()))
            if type(one) in (list, tuple):
                return type(one)(visit(a, b) for a, b in zip(_beside(have, one), one, strict=True))
            return one

        skeleton = visit(tree, stored)
        return skeleton if made else None

    # -- what does not fit

    def _compare_keys(self, have: Any, stored: Any, path: str) -> None:
        missing = [key for key in have if key not in stored]
        unexpected = [key for key in stored if key not in have]
        twins = {str(key) for key in missing} & {str(key) for key in unexpected}  # 1 and "1"
        for paths, keys in ((self.missing, missing), (self.unexpected, unexpected)):
            paths += [_join(path, repr(key) if str(key) in twins else key) for key in keys]

    def _differs(self, path: str, stored: Any, have: Any) -> None:
        sides = f"{self._shown(stored)} in the checkpoint, {self._shown(have)} here"
        self.different.append(f"{path or 'the state'}: {sides}")

    def _shown(self, thing: Any) -> str:
        if isinstance(thing, Ref):
            thing = self._reader.manifest.tensors[thing.number]
        if hasattr(thing, "shape") and hasattr(thing, "dtype"):
            return f"{str(thing.dtype).rpartition('.')[2]}{list(thing.shape)}"
        if isinstance(thing, list | tuple):
            return f"a {type(thing).__name__} of {len(thing)}"
        if isinstance(thing, int) and thing.bit_length() > 128:  # Python writes no decimals of thousands of digits
            return f"an int of {thing.bit_length()} bits"
        return f"{thing!r:.40}" if isinstance(thing, int | float | str | None) else f"a {type(thing).__name__}"


def _is_plain(value: Any) -> bool:
    """Whether there is neither a tensor nor an object with a state in it."""
    if isinstance(value, dict):
        return all(map(_is_plain, value.values()))
    if isinstance(value, list | tuple | set | frozenset):
        return all(map(_is_plain, value))
    if isinstance(value, _VALUES):
        return True
    return not isinstance(value, Tensor | np.ndarray | Sliced) and not _is_object(value)


def _takes_any(have: dict[Any, Any]) -> bool:
    """Whether its keys say nothing of what it will hold: it is empty, or one that makes its keys of what it is told."""
    return not have or (isinstance(have, Counter | defaultdict) and _is_plain(have))


def _is_object(value: Any) -> bool:
    """Whether it is no container of state but has some; see `gathered.opened`."""
    if isinstance(value, Tensor | np.ndarray | type):
        return False
    return hasattr(value, "state_dict") or hasattr(value, "sharded_state_dict") or isinstance(value, rng.Generator)


def _fits(have: Any, logical: Logical) -> bool:
    """Whether a leaf can be filled where it lies."""
    if not isinstance(have, Tensor | Sliced) or is_lazy(have):
        return False
    writable = isinstance(have, Sliced) or is_writable(have)
    return writable and tuple(have.shape) == logical.shape and have.dtype is logical.dtype


def _beside(have: Any, stored: Any) -> Any:
    """The parts of `have` to go with those of the list or tuple `stored`; Nones when it has not as many."""
    fits = isinstance(have, list | tuple) and len(have) == len(stored)
    return have if fits else [None] * len(stored)


def _like(stored: dict[Any, Any], pairs: Any) -> Any:
    """A dict of the kind of `stored`, with these entries."""
    made: Any = OrderedDict(pairs) if isinstance(stored, OrderedDict) else type(stored)(dict(pairs))
    if hasattr(stored, "_metadata"):
        made._metadata = stored._metadata
    return made


def _replacement(have: Any, made: Any) -> Callable[[], None]:
    def replace() -> None:
        have.clear()
        have.update(made) if isinstance(have, dict) else have.extend(made)

    return replace


def _taking(thing: Any, by: str, path: str) -> Callable[..., Any]:
    """The method of `thing` that takes its state back; what it cannot read there is an error that says where.

    What else it raises goes on as it is, with a note that says where.
    """
    take = getattr(thing, by)
    whose = f"load: {path or 'the state'} is a {type(thing).__name__}"

    def taking(*args: Any, **kwargs: Any) -> None:
        try:
            take(*args, **kwargs)
        except BaseException as error:
            if isinstance(error, _OF_TREES) and not isinstance(error, ResilinError):
                raise CheckpointError(
                    f"{whose}, which cannot take what the checkpoint has for it: {error!r:.200}; load another "
                    "checkpoint before going on"
                ) from error
            error.add_note(
                f"{whose}, whose {by} raised this; what was filled before stays filled, load another checkpoint before "
                "going on"
            )
            raise

    return taking


def _setter(container: Any, key: Any, value: Any) -> Callable[[], None]:
    return lambda: container.__setitem__(key, value)


def _convert(source: Tensor, target: Tensor) -> None:
    with no_grad():
        target.detach().copy_(source)


def _unwrapped(path: str) -> str:
    """A path without what wrappers of modules add to names."""
    return path.replace("/module.", "/").removeprefix("module.")


def _join(path: str, key: Any) -> str:
    return f"{path}/{key}" if path else str(key)


def _listed(paths: list[str]) -> str:
    more = f", and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
    return ", ".join(paths[:_SHOWN]) + more
