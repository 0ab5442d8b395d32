"""What the op registry claims and proves, counted. `python -m resilin.testing.coverage` prints it."""

from __future__ import annotations

import functools
import importlib
import pkgutil
import sys
from collections.abc import Callable
from dataclasses import dataclass

from resilin.core import ops as op_modules
from resilin.core.ops.registry import OPS, Op
from resilin.testing import check_dtypes, check_ops, references

# Differentiable ops that have no complex form, in PyTorch neither; whatever is missing here and has no complex
# gradients counts as a gap.
REAL_ONLY = {
    "order": """amax amin clip_to fmod hardshrink hardsigmoid hardswish hardtanh leaky_relu
        max_pool2d max_pool2d_scatter maximum minimum prelu relu remainder softshrink
        threshold elu scatter_extreme""",
    "steps": "ceil floor floor_divide rint sign trunc trunc_divide",
    "functions of real numbers": """arctan2 bessel_j0 bessel_j1 bessel_k0 bessel_k0e bessel_k1 bessel_k1e bessel_y0
        bessel_y1 digamma entr erf erfc erfcx erfinv gammainc gammaincc gammaln hypot i0 i0e i1 i1e log_ndtr logit ndtr
        ndtri polygamma zeta""",
    "of complex numbers a loop of logaddexp": "logcumsumexp",
    "from real to complex": "fft_r2c fft_real make_complex view_as_complex",
    "layers and losses of real numbers": """attention avg_pool2d avg_pool2d_spread batch_norm batch_norm_fixed
        bce_with_logits binary_cross_entropy cross_entropy embedding embedding_bags embedding_bags_grad embedding_grad
        gelu layer_norm log_sigmoid log_softmax mish silu scale_channels smooth_absolute softmax softplus
        ctc_loss ctc_loss_grad euclidean_distances gated row_distances weighted_points""",
    "sizes": "norm_of",
}
# Differentiable ops whose derivatives finite differences cannot show: (of first order, of second order).
NOT_FIRST = {
    "the conversion rounds": "astype",
    "has no derivative, in PyTorch neither: its rule raises": "ctc_loss_grad",
}
NOT_SECOND = {
    **NOT_FIRST,
    "has no second derivative, in PyTorch neither": "ctc_loss",
    "the first derivative is constant between steps": """ceil floor floor_divide fmod remainder rint
        scatter_extreme sign trunc trunc_divide""",
}


def named(reasons: dict[str, str]) -> frozenset[str]:
    """All ops of a table from reasons to names."""
    return frozenset(name for names in reasons.values() for name in names.split())


@dataclass(frozen=True, kw_only=True)
class Share:
    """Part of a whole, with the names of what is missing."""

    what: str
    have: int
    of: int
    missing: tuple[str, ...]

    @property
    def percent(self) -> float:
        """0 to 100; 100 of nothing."""
        return 100 * self.have / self.of if self.of else 100.0

    def __str__(self) -> str:
        rest = f"; without: {', '.join(self.missing)}" if self.missing else ""
        return f"{self.what}: {self.have} of {self.of} ({self.percent:.1f} %){rest}"


def load() -> dict[str, Op]:
    """All declared ops, by name, whatever was imported before."""
    for module in pkgutil.iter_modules(op_modules.__path__):
        importlib.import_module(f"{op_modules.__name__}.{module.name}")
    return dict(sorted(OPS.items()))


def complex_makes_sense(name: str, op: Op) -> bool:
    """Whether PyTorch has, or could have, a gradient of this op for complex numbers."""
    return op.differentiable and name not in named(REAL_ONLY)


def shares(ops: dict[str, Op]) -> list[Share]:
    """The coverage figures."""
    graded = {name: op for name, op in ops.items() if op.differentiable}
    able = {name: op for name, op in graded.items() if complex_makes_sense(name, op)}
    first = {name: op for name, op in graded.items() if name not in named(NOT_FIRST)}
    second = {name: op for name, op in graded.items() if name not in named(NOT_SECOND)}
    known = references.names()
    return [
        _share("ops with samples", ops, lambda name, op: bool(check_ops.samples(op))),
        _share(
            "forward against numpy, scipy or a reference of its own",
            ops,
            lambda name, op: name in known or bool(op.reference),
        ),
        _share("every dtype computed as the reference does, or refused", ops, lambda name, op: _dtypes_hold(name)),
        _share("first derivatives, of the ops that have some", first, lambda name, op: _checked(op, 1)),
        _share("second derivatives, of the ops that have some", second, lambda name, op: _checked(op, 2)),
        _share(
            "complex gradients, of the ops for which they make sense",
            able,
            lambda name, op: op.complex,
        ),
    ]


@functools.cache
def _dtypes_hold(name: str) -> bool:
    try:
        for number in range(len(check_ops.samples(OPS[name]))):
            for dtype in check_dtypes.TOLERANCES:
                check_dtypes.check_dtype(name, number, dtype)
    except AssertionError:
        return False
    return True


def _checked(op: Op, order: int) -> bool:
    return op.order >= order and bool(check_ops.samples(op))


def _share(what: str, ops: dict[str, Op], holds: Callable[[str, Op], bool]) -> Share:
    missing = tuple(name for name, op in ops.items() if not holds(name, op))
    return Share(what=what, have=len(ops) - len(missing), of=len(ops), missing=missing)


def main() -> int:
    """The command line."""
    ops = load()
    print(f"{len(ops)} ops")
    for share in shares(ops):
        print(share)
    return 0


if __name__ == "__main__":
    sys.exit(main())
