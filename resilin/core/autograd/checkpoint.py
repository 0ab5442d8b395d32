"""Checkpointing: keep a function's inputs instead of its intermediate results, and run it again in backward."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from resilin.core import rng
from resilin.core.autocast import state as autocast
from resilin.core.autograd import engine
from resilin.core.autograd.function import Function
from resilin.core.autograd.grad_mode import enable_grad, mode
from resilin.core.autograd.tape import CheckpointError, next_seq
from resilin.core.batching.levels import current
from resilin.core.state.versions import count_of
from resilin.core.state.write_log import Log
from resilin.core.tensor import Tensor, wrap
from resilin.core.trees import flatten

Surroundings = Callable[[], contextlib.AbstractContextManager[Any]]


class _Around(threading.local):
    now: tuple[Surroundings, ...] = ()


_around = _Around()


@contextlib.contextmanager
def around(*surroundings: Surroundings) -> Iterator[None]:
    """Enter them, and have the second run of every checkpoint inside happen inside of them, too."""
    before = _around.now
    _around.now = (*before, *surroundings)
    try:
        with contextlib.ExitStack() as stack:
            for make in surroundings:
                stack.enter_context(make())
            yield
    finally:
        _around.now = before


def surroundings() -> tuple[Surroundings, ...]:
    """Return what second runs of this thread's checkpoints happen inside of just now; autocast is among it."""
    return (*_around.now, autocast.carried())


class _Checkpoint(Function):
    @staticmethod
    def forward(ctx: Any, fn: Any, keep_rng: bool, *args: Any) -> Any:
        ctx.around = surroundings()
        ctx.fn, ctx.state = fn, rng.default_generator().clone_state() if keep_rng else None
        ctx.places = [i for i, a in enumerate(args) if isinstance(a, Tensor)]
        ctx.args = [None if isinstance(a, Tensor) else a for a in args]
        ctx.save_for_backward(*(args[i] for i in ctx.places))
        ctx.log = Log(next_seq())
        with ctx.log.kept():
            results = fn(*args)
        ctx.log.forget_results(_tensors(results))
        return results

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        args = list(ctx.args)
        for place, tensor in zip(ctx.places, ctx.saved_tensors, strict=True):
            args[place] = tensor.detach().requires_grad_(tensor.requires_grad)
        made = _Twins(0, early_stop=False)
        with _rng_as(ctx.state), around(*ctx.around), enable_grad(), _as_before(ctx.log, made), _running(made):
            outputs = ctx.fn(*args)
        outs = outputs if isinstance(outputs, tuple) else (outputs,)
        pairs = [(o, g) for o, g in zip(outs, grads, strict=True) if isinstance(o, Tensor) and o.requires_grad]
        if pairs:
            engine.backward([o for o, _ in pairs], [g for _, g in pairs])
        return (None, None, *(a.grad if isinstance(a, Tensor) else None for a in args))


@contextlib.contextmanager
def _as_before(log: Log, made: _Twins) -> Iterator[None]:
    """Inside, the second run finds the state that the first began with (`log`); afterwards all is as it was."""
    again = Log(next_seq())
    with log.undone():
        try:
            with again.kept():
                yield
            _keep_apart(made.made, {id(count): (count, back) for count, back in (*again.counts(), *log.counts())})
        finally:
            again.exchange(True)


def _keep_apart(nodes: list[Any], counts: dict[int, tuple[list[Any], int]]) -> None:
    """Copy what nodes saved of memory that is about to be put back to another number of writes."""
    moving = {key for key, (count, back) in counts.items() if count[0] != back}
    for node in nodes if moving else ():
        if isinstance(node, _Frame):
            continue
        holder, field = (node.ctx, "_saved") if hasattr(node, "ctx") else (node, "saved")
        saved = list(getattr(holder, field))
        for place, value in enumerate(saved):
            if isinstance(value, Tensor) and id(value._vc) in moving and value._node is None:
                saved[place] = made = wrap(value._array.copy(), value._dev)
                made._vc = [count_of(value)]
        setattr(holder, field, tuple(saved))


def _tensors(results: Any) -> list[Tensor]:
    return [leaf for leaf in flatten(results)[0] if isinstance(leaf, Tensor)]


class _How(NamedTuple):
    early_stop: bool
    check: bool


class _Frame:
    """One checkpoint: its nodes keep nothing until backward asks the first of them for what it saved.

    Nodes hold their frame, and the frame refers to them weakly: what nobody will walk back is not kept alive.
    """

    __slots__ = (
        "__weakref__",
        "again",
        "around",
        "call",
        "frame",
        "how",
        "log",
        "nodes",
        "ran",
        "rng_state",
        "versions",
    )

    def __init__(
        self, call: tuple[Any, tuple[Any, ...], dict[str, Any]], keep_rng: bool, again: Any, how: _How
    ) -> None:
        self.again, self.how = again, how  # the context of the second run, if there is one
        self.around = surroundings()
        self.call: Any = call  # (function, args, kwargs)
        self.versions = _versions(call)
        self.rng_state = rng.default_generator().clone_state() if keep_rng else None
        self.nodes: list[weakref.ref[Any]] = []
        self.frame: Any = None  # the checkpoint around this one, while it has the arguments
        self.log = Log(next_seq())  # the state that its run begins with
        self.ran = False  # the function came to its end

    def recorded(self, node: Any) -> None:
        """A node (or a checkpoint inside this one) was made: it keeps nothing."""
        node.strip(self)
        self.nodes.append(weakref.ref(node))

    def strip(self, frame: Any) -> None:
        """Do not keep the arguments: they are results inside `frame`, which will bring them back."""
        self.call, self.frame = None, frame

    def check_twin(self, twin: Any) -> None:
        """CheckpointError unless `twin` is a checkpoint, too."""
        if not isinstance(twin, _Frame):
            raise CheckpointError(f"checkpoint: forward began a checkpoint where the second run did {twin.name()}")

    def take(self, twin: _Frame) -> None:
        """Have the arguments that the same checkpoint had when it ran again.

        The state that it began with is that of the first run where the second was ended before this one's began.
        """
        self.call, self.versions, self.frame = twin.call, twin.versions, None
        self.log = twin.log if twin.ran else self.log

    def recompute(self) -> None:
        """Run the function again and give every node what its twin saved. Once: the nodes keep it from then on."""
        if self.frame is not None:
            self.frame.recompute()
        function, args, kwargs = self.call
        if _versions(self.call) != self.versions:
            raise RuntimeError(
                "checkpoint: an argument has been modified by an inplace operation before backward, which needs it to "
                "run the function again: use the out-of-place operation"
            )
        twins = _Twins(len(self.nodes), self.how.early_stop)
        context = self.again or contextlib.nullcontext()
        outside, inside = around(*self.around), contextlib.suppress(_Enough)
        state = _as_before(self.log, twins)
        with _rng_as(self.rng_state), outside, context, enable_grad(), state, _running(twins), inside:
            function(*args, **kwargs)
        if len(twins.made) < len(self.nodes):
            raise CheckpointError(
                f"checkpoint: the function recorded {len(self.nodes)} operations in forward, but {len(twins.made)} "
                "when it ran again. It must depend on nothing but its arguments and random numbers"
            )
        for node, twin in zip(self.nodes, twins.made, strict=False):
            waiting = node()
            if waiting is not None:
                if self.how.check:
                    waiting.check_twin(twin)
                waiting.take(twin)
        self.call, self.log = None, Log(0)


class _Enough(BaseException):
    """Ends a function that runs again once all that is needed was recorded; not for its `except Exception`."""


class _Twins:
    """Collects the nodes of a function that runs again."""

    def __init__(self, count: int, early_stop: bool) -> None:
        self.made: list[Any] = []
        self._count, self._early_stop = count, early_stop

    def recorded(self, node: Any) -> None:
        """Keep the node; end the run with the last."""
        self.made.append(node)
        if self._early_stop and len(self.made) == self._count:
            raise _Enough


def _versions(call: Any) -> list[int]:
    return [count_of(value) for value in (*call[1], *call[2].values()) if isinstance(value, Tensor)]


@contextlib.contextmanager
def _running(frame: Any) -> Iterator[None]:
    """Nodes made inside are told to `frame`."""
    before, mode.frame = mode.frame, frame
    try:
        yield
    finally:
        mode.frame = before


@contextlib.contextmanager
def _rng_as(state: Any) -> Iterator[None]:
    """Random numbers as they were at `state`, and afterwards as before; None leaves them alone."""
    if state is None:
        yield
        return
    with rng.using(state.clone_state()):
        yield


def noop_context_fn() -> tuple[Any, Any]:
    """The `context_fn` of a checkpoint without any: two context managers that do nothing."""
    return contextlib.nullcontext(), contextlib.nullcontext()


def checkpoint(
    function: Callable[..., Any],
    *args: Any,
    use_reentrant: bool | None = None,
    preserve_rng_state: bool = True,
    context_fn: Callable[[], tuple[Any, Any]] = noop_context_fn,
    determinism_check: str = "default",
    debug: bool = False,
    early_stop: bool = True,
    **kwargs: Any,
) -> Any:
    """`function(*args, **kwargs)` whose intermediate results are not kept: backward runs it again, with the same
    random numbers (unless `preserve_rng_state` is False).

    It may take and return anything, and is differentiated as if it were called plainly: any order, hooks, `grad` with
    respect to parameters it uses. use_reentrant=None is False here, what PyTorch recommends. True nests a backward in
    the backward, as PyTorch's older form does: then parameters accumulate in `.grad` whatever was asked for, keyword
    arguments are a ValueError, and only first derivatives of tensors that `function` returns (or of a tuple) are given.

    State that the function writes moves once, whatever follows the write and whether the second run ends early: buffers
    (statistics and counters of norms, averages, observers' ranges), any other tensor written in place, and attributes
    of modules. The second run finds them as the first one did, so that gradients are those of the plain call, and
    leaves them as they are; copies of what was written wait with the graph. (PyTorch's second run moves them once more
    and reads what came of the first.) Other Python objects, and writes through numpy, are beyond that: a list that is
    appended to grows in both runs.

    Inside vmap the function is called plainly: what it computes there ends with the vmap, and could not be run again.
    context_fn: gives two context managers, for the run in forward and the one in backward.
    determinism_check: "default" compares shapes and dtypes of both runs, "none" does not. early_stop: end the second
        run once all that is needed is there. debug: accepted; errors always name the operations.
    Raises: CheckpointError (a RuntimeError) in backward when the function did other operations there, RuntimeError when
    an argument was modified in place, ValueError for another determinism_check.
    """
    if determinism_check not in ("default", "none"):
        raise ValueError(f'checkpoint: determinism_check must be "default" or "none", got {determinism_check!r}')
    if use_reentrant and (context_fn is not noop_context_fn or debug):
        raise ValueError("Passing `context_fn` or `debug` is only supported when use_reentrant=False.")
    if use_reentrant:
        if kwargs:
            raise ValueError(f"checkpoint: unexpected keyword arguments with use_reentrant=True: {', '.join(kwargs)}")
        if not any(isinstance(a, Tensor) and a.requires_grad for a in args):
            return function(*args)
        return _Checkpoint.apply(function, preserve_rng_state, *args)
    if not mode.grad or current():
        return function(*args, **kwargs)
    first, again = context_fn()
    stops = early_stop if _stopping.early is None else _stopping.early
    frame = _Frame((function, args, kwargs), preserve_rng_state, again, _How(stops, determinism_check != "none"))
    if mode.frame is not None:
        mode.frame.recorded(frame)
    with first, _running(frame), frame.log.kept():
        results = function(*args, **kwargs)
    frame.ran = True
    frame.log.forget_results([each for each in _tensors(results) if each._node is not None])
    return results


class _Stopping(threading.local):
    early: bool | None = None  # what set_checkpoint_early_stop says


_stopping = _Stopping()


@contextlib.contextmanager
def set_checkpoint_early_stop(enable: bool) -> Iterator[None]:
    """Inside, checkpoints end their second run early or do not, whatever `early_stop` says."""
    before, _stopping.early = _stopping.early, enable
    try:
        yield
    finally:
        _stopping.early = before


@contextlib.contextmanager
def set_checkpoint_debug_enabled(enabled: bool | None) -> Iterator[None]:
    """Accepted as in PyTorch: errors of checkpoints name the operations with or without it."""
    yield


def checkpoint_sequential(
    functions: Any,
    segments: int,
    input: Any,
    use_reentrant: bool | None = None,
    preserve_rng_state: bool = True,
) -> Any:
    """The functions (or modules of a Sequential) one after the other, in `segments` parts of equal numbers, each a
    checkpoint but the last, which keeps its results. ValueError for more segments than functions."""
    steps = list(functions)  # not its children(), where a layer that is named twice is found once
    if not 1 <= segments <= len(steps):
        raise ValueError(f"checkpoint_sequential: segments must be between 1 and {len(steps)}, got {segments}")

    def run(begin: int, end: int) -> Callable[[Any], Any]:
        def part(value: Any) -> Any:
            for step in steps[begin:end]:
                value = step(value)
            return value

        return part

    size = len(steps) // segments
    for begin in range(0, size * (segments - 1), size):
        part = run(begin, begin + size)
        input = checkpoint(part, input, use_reentrant=use_reentrant, preserve_rng_state=preserve_rng_state)
    return run(size * (segments - 1), len(steps))(input)
