"""Layers that stash tensors for later layers: `skippable`, `stash`, `pop`, and the check that they fit together."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, ClassVar

from resilin.core.tensor import Tensor
from resilin.errors import UsageError, UsageTypeError
from resilin.nn.modules.module import Module
from resilin.pipeline.sync.skip.namespace import Namespace, SkipName
from resilin.pipeline.sync.skip.tracker import current_skip_tracker


class stash:
    """Command of a skippable layer: `yield stash("name", tensor)`. The tensor may be None."""

    __slots__ = ("name", "tensor")

    def __init__(self, name: str, tensor: Tensor | None) -> None:
        self.name, self.tensor = name, tensor


class pop:
    """Command of a skippable layer: `tensor = yield pop("name")`."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


class Skippable(Module):
    """Run a layer whose forward yields `stash` and `pop`. Made by `skippable`."""

    module_cls: ClassVar[type[Module]]
    stashable_names: ClassVar[frozenset[str]] = frozenset()
    poppable_names: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        self.module = type(self).module_cls(*args, **kwargs)
        self.namespaces: dict[str, Namespace] = {}

    def __repr__(self) -> str:
        return f"@skippable({self.module})"

    def namespaced(self, name: str) -> SkipName:
        """Return `name` in its namespace."""
        return SkipName(self.namespaces.get(name), name)

    def stashable(self) -> Iterator[SkipName]:
        """Yield what this layer stashes."""
        return map(self.namespaced, sorted(self.stashable_names))

    def poppable(self) -> Iterator[SkipName]:
        """Yield what this layer pops."""
        return map(self.namespaced, sorted(self.poppable_names))

    def isolate(self, ns: Namespace, *, only: Iterable[str] | None = None) -> Skippable:
        """Put the names of this layer (`only`: of these) into a namespace, and return the layer.

        In one Sequential a name may be stashed once for each namespace.
        """
        declared = self.stashable_names | self.poppable_names
        chosen = declared if only is None else set(only)
        if not chosen <= declared:
            raise UsageError(f"isolate: {_listed(chosen - declared)} not declared by {self}")
        self.namespaces.update(dict.fromkeys(chosen, ns))
        return self

    def dispatch(
        self,
        inputs: tuple[Any, ...],
        handle_stash: Callable[[str, Tensor | None], None],
        handle_pop: Callable[[str], Tensor | None],
    ) -> Any:
        """Return what the layer returns, its commands answered by the handlers."""
        commands = self.module(*inputs)
        if not isinstance(commands, Generator):
            return commands
        answer = None
        while True:
            try:
                command = commands.send(answer)
            except StopIteration as end:
                return end.value
            answer = None
            if isinstance(command, stash):
                handle_stash(command.name, command.tensor)
            elif isinstance(command, pop):
                answer = handle_pop(command.name)
            else:
                raise UsageTypeError(f"{command!r:.80} is not a command from @skippable: yield stash(...) or pop(...)")

    def forward(self, *inputs: Any) -> Any:
        """Run the layer; RuntimeError where it does not stash and pop just what it has declared."""
        tracker = current_skip_tracker()
        waiting = {name.name: _loaded(tracker, name) for name in self.poppable()}
        stashed: dict[str, Tensor | None] = {}

        def handle_stash(name: str, tensor: Tensor | None) -> None:
            if name not in self.stashable_names:
                raise UsageError(f"'{name}' has not been declared as stashable")
            stashed[name] = tensor

        def handle_pop(name: str) -> Tensor | None:
            if name not in self.poppable_names:
                raise UsageError(f"'{name}' has not been declared as poppable")
            if name not in waiting:
                raise UsageError(f"'{name}' has been popped already")
            return waiting.pop(name)

        output = self.dispatch(inputs, handle_stash, handle_pop)
        if missing := self.stashable_names - stashed.keys():
            raise UsageError(f"{_listed(missing)} must be stashed but have not")
        if waiting:
            raise UsageError(f"{_listed(waiting)} must be popped but have not")
        for name in self.stashable():
            tracker.save(name, stashed[name.name])
        return output


def _loaded(tracker: Any, name: SkipName) -> Tensor | None:
    try:
        found: Tensor | None = tracker.load(name)
    except KeyError:
        raise UsageError(f"'{name.name}' has not been stashed") from None
    return found


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in sorted(names))


def skippable(stash: Iterable[str] = (), pop: Iterable[str] = ()) -> Callable[[type[Module]], type[Skippable]]:
    """Declare a class of layers that stash and pop tensors under these names; its forward yields the commands.

    ```python
    @skippable(stash=["1to3"])
    class Layer1(nn.Module):
        def forward(self, input):
            yield stash("1to3", input)
            return f1(input)
    ```
    """
    if isinstance(stash, str) or isinstance(pop, str):
        raise UsageTypeError(f"skippable: expected lists of names, got stash={stash!r}, pop={pop!r}")
    names = {"stashable_names": frozenset(stash), "poppable_names": frozenset(pop)}

    def extend(module_cls: type[Module]) -> type[Skippable]:
        kept = {name: getattr(module_cls, name) for name in ("__doc__", "__module__", "__qualname__")}
        return type(module_cls.__name__, (Skippable,), {"module_cls": module_cls, **kept, **names})

    return extend


def skippables_of(module: Module, prefix: str = "") -> Iterator[tuple[str, Skippable]]:
    """Yield the skippable layers in `module`, with their names, in the order in which a Sequential runs them."""
    if isinstance(module, Skippable):
        yield prefix, module
        return
    for name, child in module.named_children():
        yield from skippables_of(child, f"{prefix}.{name}" if prefix else name)


def verify_skippables(module: Module) -> None:
    """Refuse a Sequential whose layers do not stash each skip tensor once, before the one layer that pops it.

    A TypeError lists all that does not match. Names that several layers stash are kept apart by `isolate`.
    """
    stashed: set[SkipName] = set()
    popped: set[SkipName] = set()
    faults = []
    for layer_name, layer in skippables_of(module):
        both = layer.stashable_names & layer.poppable_names
        faults += [f"'{layer_name}' declared '{name}' both as stashable and as poppable" for name in sorted(both)]
        for name in (each for each in layer.stashable() if each.name not in both):
            if name in stashed:
                faults.append(f"'{layer_name}' redeclared '{name.name}' as stashable but not isolated by namespace")
            stashed.add(name)
        for name in (each for each in layer.poppable() if each.name not in both):
            if name in popped:
                faults.append(f"'{layer_name}' redeclared '{name.name}' as poppable but not isolated by namespace")
            elif name not in stashed:
                faults.append(f"'{layer_name}' declared '{name.name}' as poppable but it was not stashed")
            else:
                popped.add(name)
    left = sorted({name.name for name in stashed - popped})
    faults += [f"no module declared '{name}' as poppable but stashed" for name in left]
    if faults:
        listed = "\n".join(f"* {fault}" for fault in faults)
        raise UsageTypeError(f"one or more pairs of stash and pop do not match:\n\n{listed}")
