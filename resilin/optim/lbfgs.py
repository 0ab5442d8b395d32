"""L-BFGS: steps along a direction made from the last gradients, with a line search on request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from resilin.core.argument_checks import whole
from resilin.core.autograd.grad_mode import enable_grad, no_grad
from resilin.core.kernels.common import Array, array_namespace
from resilin.core.kernels.gemm import matmul
from resilin.core.ops.errstate import is_half, put_rounded, widened
from resilin.core.tensor import Tensor
from resilin.errors import UsageError, UsageTypeError
from resilin.optim import state_checks
from resilin.optim.line_search import Point, strong_wolfe
from resilin.optim.optimizer import Closure, Group, Optimizer, Params

_COUNTS = ("func_evals", "n_iter")
_MEMORY = ("old_dirs", "old_stps", "ro")
_RESULTS = ("d", "t", "prev_flat_grad", *_MEMORY, "H_diag")
"""What a step leaves to the next, but for the counts. `prev_loss` is for the user alone."""
MIN_CURVATURE = 1e-10  # pairs with less curvature than this do not enter the memory: PyTorch's bound


class LBFGS(Optimizer):
    """L-BFGS (Liu and Nocedal, 1989), with PyTorch's formulas, bounds and counts. One parameter group only.

    lr:                factor of each step; the first guess of the line search.
    max_iter:          iterations of one step(). max_eval: calls of the closure (5/4 of max_iter when not given).
    tolerance_grad:    stop when no element of the gradient is larger.
    tolerance_change:  stop when neither the parameters nor the loss change by more.
    history_size:      pairs of changes remembered: each costs two vectors of all parameters.
    line_search_fn:    "strong_wolfe" or None (steps of length lr).

    step(closure) needs a closure that clears the gradients, computes the loss, calls backward and returns the loss.
    A parameter without gradient counts as having a zero one; a complex one is its real and imaginary parts.
    State, kept for the first parameter under PyTorch's names: `func_evals`, `n_iter`, `d`, `t`, `old_dirs`, `old_stps`,
    `ro`, `H_diag`, `prev_flat_grad`, `prev_loss`.
    """

    _starts_whole = False  # the first gradient may be small enough

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1,
        max_iter: int = 20,
        max_eval: int | None = None,
        tolerance_grad: float = 1e-7,
        tolerance_change: float = 1e-9,
        history_size: int = 100,
        line_search_fn: str | None = None,
    ) -> None:
        defaults = {
            "lr": lr,
            "max_iter": max_iter,
            "max_eval": max_iter * 5 // 4 if max_eval is None else max_eval,
            "tolerance_grad": tolerance_grad,
            "tolerance_change": tolerance_change,
            "history_size": history_size,
            "line_search_fn": line_search_fn,
        }
        super().__init__(params, defaults)

    def add_param_group(self, param_group: Group) -> None:
        """See Optimizer. UsageError for a second group."""
        if self.param_groups:
            raise UsageError("LBFGS: there can be one parameter group only; use one optimizer for each")
        super().add_param_group(param_group)

    def _moment_shapes(self, group: Group, param: Tensor) -> dict[str, tuple[int, ...] | None]:
        params = self.param_groups[0]["params"]
        if param is not params[0]:  # which has the state of all
            return {}
        shapes = [state_checks.shape_of(each) for each in params]
        flat = None if None in shapes else (sum(_elements(each) for each in params),)
        return dict.fromkeys(("d", "prev_flat_grad"), flat)

    def _check_entry(self, where: str, entry: Mapping[str, Any], param: Tensor) -> None:
        """One that a step cannot go on from: in part of another model, or with names left out."""
        params = self.param_groups[0]["params"]
        if param is not params[0]:
            if misplaced := [name for name in entry if name in (*_COUNTS, *_RESULTS)]:
                raise UsageError(
                    f"{where} there is {', '.join(misplaced)}: LBFGS keeps what it remembers of all parameters with "
                    "the first, so the state was saved with another model"
                )
            return
        for name in _COUNTS:
            if entry.get(name) is not None:
                state_checks.check_value(f"{where}, {name}", entry[name], None)
        begun = [name for name in (*_COUNTS[1:], *_RESULTS) if entry.get(name) is not None]
        if not begun or (begun == ["n_iter"] and state_checks.is_zero(entry["n_iter"])):
            return
        if missing := [name for name in ("n_iter", *_RESULTS) if entry.get(name) is None]:
            raise UsageError(
                f"{where} there is {', '.join(begun)}, and no {', '.join(missing)}: an LBFGS that has begun goes on "
                "from all of them; was a part of the state left out?"
            )
        for name in ("t", "H_diag"):
            state_checks.check_value(f"{where}, {name}", entry[name], None)
        shape = self._moment_shapes(self.param_groups[0], param)["d"]
        for name in _MEMORY:
            if not isinstance(entry[name], list | tuple):
                raise UsageTypeError(f"{where}, {name} must be a list, got {entry[name]!r:.80}")
            for place, value in enumerate(entry[name]):
                of = None if name == "ro" else param
                state_checks.check_value(f"{where}, {name}[{place}]", value, of)
                if of is not None:
                    state_checks.check_shape(f"{where}, {name}[{place}]", value, shape, param)
        counts = {name: len(entry[name]) for name in _MEMORY}
        if len(set(counts.values())) > 1:
            told = ", ".join(f"{count} in {name}" for name, count in counts.items())
            raise UsageError(f"{where} each remembered change needs a value in all three lists, got {told}")

    def _check_group(self, group: Group) -> None:
        self._check_not_negative(group, "lr")
        self._check_numbers(group, "tolerance_grad", "tolerance_change", "max_eval")
        for name in ("max_iter", "history_size"):
            whole(f"LBFGS: {name}", group[name])
        if group["line_search_fn"] not in (None, "strong_wolfe"):
            raise UsageError(f"LBFGS: line_search_fn must be 'strong_wolfe' or None, got {group['line_search_fn']!r}")

    def step(self, closure: Closure | None = None) -> Any:
        """See the class: `closure` is needed. Returns the loss of its first call."""
        if closure is None:
            raise TypeError("LBFGS.step needs a closure that clears the gradients, computes the loss and its backward")
        group = self.param_groups[0]
        state = self.state[group["params"][0]]
        state.setdefault("func_evals", 0)
        state.setdefault("n_iter", 0)
        wanted = np.geterr()

        def evaluate() -> Any:
            with enable_grad(), np.errstate(**wanted):
                return closure()

        first_loss = evaluate()
        state["func_evals"] += 1
        with no_grad(), np.errstate(all="ignore"):  # infinities and NaN go their way silently
            here = Point(0.0, float(first_loss), self._gradient())
            if not _largest(here.grad) <= group["tolerance_grad"]:  # NaN goes into the parameters, as in PyTorch
                self._iterate(group, state, evaluate, here)
        return first_loss

    def _iterate(self, group: Group, state: dict[str, Any], closure: Closure, here: Point) -> None:
        evals = 1
        for iteration in range(1, group["max_iter"] + 1):
            state["n_iter"] += 1
            d = _direction(state, here.grad, group["history_size"])
            t = float(group["lr"])
            if state["n_iter"] == 1:
                t *= min(1.0, 1.0 / float(np.sum(np.abs(here.grad))))
            slope = dot(here.grad, d)
            state.update(d=Tensor._wrap(d), t=t, prev_flat_grad=Tensor._wrap(here.grad.copy()), prev_loss=here.loss)
            if slope > -group["tolerance_change"]:
                break
            is_last = iteration == group["max_iter"]
            before, (here, spent) = here, self._move(group, closure, here, d, t, slope, evals, is_last)
            state["t"] = here.t
            evals += spent
            state["func_evals"] += spent
            if is_last or evals >= group["max_eval"] or _largest(here.grad) <= group["tolerance_grad"]:
                break
            if _largest(d) * here.t <= group["tolerance_change"]:
                break
            if abs(here.loss - before.loss) < group["tolerance_change"]:
                break

    def _move(
        self,
        group: Group,
        closure: Closure,
        here: Point,
        d: Array,
        t: float,
        slope: float,
        evals: int,
        is_last: bool,
    ) -> tuple[Point, int]:
        """Go along `d`. Returns where that led and the number of calls of the closure."""
        if group["line_search_fn"] is None:
            self._add(t, d)
            if is_last:  # the next step begins with a call anyway
                return Point(t, here.loss, here.grad), 0
            return self._evaluate(closure, t), 1
        start = [p._array.copy() for p in group["params"]]

        def at(length: float) -> Point:
            self._add(length, d)
            point = self._evaluate(closure, length)
            for p, values in zip(group["params"], start, strict=True):
                p._array[...] = values
                p._bump()
            return point._replace(slope=dot(point.grad, d))

        limit = group["max_eval"] - evals
        origin = Point(0.0, here.loss, here.grad, slope)
        found, spent = strong_wolfe(at, origin, t, _largest(d), group["tolerance_change"], limit)
        self._add(found.t, d)
        return found, spent

    def _evaluate(self, closure: Closure, t: float) -> Point:
        return Point(t, float(closure()), self._gradient())

    def _gradient(self) -> Array:
        """The gradients of all parameters in one vector."""
        parameters = self.param_groups[0]["params"]
        return np.concatenate(
            [_flat(np.zeros(p._array.shape, p._array.dtype) if p._grad is None else p._grad._array) for p in parameters]
        )

    def _add(self, t: float, d: Array) -> None:
        """parameters += t * d"""
        begin = 0
        for p in self.param_groups[0]["params"]:
            size = p._array.size * (2 if p.is_complex() else 1)
            piece = d[begin : begin + size] * d.dtype.type(t)
            if is_half(p._array):
                put_rounded(p._array, widened(p._array) + p._dev.xp.asarray(piece.reshape(p._array.shape)))
            else:
                p._array += p._dev.xp.asarray(piece.view(p._array.dtype).reshape(p._array.shape))
            p._bump()
            begin += size


def _elements(param: Tensor) -> int:
    """How many numbers a parameter has among those of all: a complex one counts twice."""
    return int(param.numel()) * (2 if param.is_complex() else 1)


def dot(a: Array, b: Array) -> float:
    """The product of two vectors; its bits do not depend on the number of threads."""
    return float(matmul(a.reshape(1, -1), b.reshape(-1, 1))[0, 0])


def _largest(x: Array) -> float:
    return float(np.max(np.abs(x), initial=0.0))


def _flat(array: Array) -> Array:
    """A vector of an array's elements, on the host; of complex ones, the real and imaginary parts in turn.

    16-bit floats as float32: the search is made in it, and only the parameters it finds are rounded.
    """
    flat: Array = widened(np.ascontiguousarray(array_namespace(array).to_host(array)).reshape(-1))
    return flat.view(flat.real.dtype) if flat.dtype.kind == "c" else flat


def _direction(state: dict[str, Any], grad: Array, history: int) -> Array:
    """Minus the approximate inverse Hessian times the gradient (two loops over the remembered pairs)."""
    if state["n_iter"] == 1:
        state.update(old_dirs=[], old_stps=[], ro=[], H_diag=1)
        return -grad
    _remember(state, grad, history)
    gradients, steps = ([pair._array for pair in state[name]] for name in ("old_dirs", "old_stps"))
    inverses = [float(value) for value in state["ro"]]
    shares = [0.0] * len(steps)
    d = -grad
    for i in reversed(range(len(steps))):
        shares[i] = dot(steps[i], d) * inverses[i]
        d -= gradients[i] * d.dtype.type(shares[i])
    d *= d.dtype.type(float(state["H_diag"]))
    for i in range(len(steps)):
        share = shares[i] - dot(gradients[i], d) * inverses[i]
        d += steps[i] * d.dtype.type(share)
    return d


def _remember(state: dict[str, Any], grad: Array, history: int) -> None:
    """Enter the last step and the change of the gradient over it, if there was curvature."""
    change = grad - state["prev_flat_grad"]._array
    step = state["d"]._array * grad.dtype.type(float(state["t"]))
    curvature = dot(change, step)
    if not curvature > MIN_CURVATURE:
        return
    for name, value in (("old_dirs", change), ("old_stps", step), ("ro", np.asarray(1 / curvature, grad.dtype))):
        kept = [*state[name], Tensor._wrap(value)]
        state[name] = kept[max(0, len(kept) - history) :]  # a loaded one may be longer, or a tuple
    state["H_diag"] = Tensor._wrap(np.asarray(curvature / dot(change, change), grad.dtype))
