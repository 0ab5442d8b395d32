"""The functions of torch.special that have no other name in resilin: ops under PyTorch's names."""

from __future__ import annotations

from resilin.core.api.mathematics import special
from resilin.core.ops import special as special_ops  # declares the ops named below
from resilin.core.ops.registry import OPS
from resilin.core.tensor import Tensor

psi = special.digamma
entr, erfcx, log_ndtr, ndtr, ndtri = (OPS[name].call for name in ("entr", "erfcx", "log_ndtr", "ndtr", "ndtri"))
i0e, i1, i1e = special_ops.i0e.call, special_ops.i1.call, special_ops.i1e.call
modified_bessel_i0, modified_bessel_i1 = special_ops.i0.call, special_ops.i1.call
modified_bessel_k0, modified_bessel_k1 = special_ops.k0.call, special_ops.k1.call
scaled_modified_bessel_k0, scaled_modified_bessel_k1 = special_ops.k0e.call, special_ops.k1e.call
bessel_j0, bessel_j1 = special_ops.j0.call, special_ops.j1.call
bessel_y0, bessel_y1 = special_ops.y0.call, special_ops.y1.call
zeta = special_ops.zeta.call
chebyshev_polynomial_t, chebyshev_polynomial_u, chebyshev_polynomial_v, chebyshev_polynomial_w = (
    OPS[f"chebyshev_{kind}"].call for kind in "tuvw"
)
shifted_chebyshev_polynomial_t, shifted_chebyshev_polynomial_u = (OPS[f"shifted_chebyshev_{k}"].call for k in "tu")
shifted_chebyshev_polynomial_v, shifted_chebyshev_polynomial_w = (OPS[f"shifted_chebyshev_{k}"].call for k in "vw")
hermite_polynomial_h, hermite_polynomial_he = OPS["hermite_h"].call, OPS["hermite_he"].call
laguerre_polynomial_l, legendre_polynomial_p = OPS["laguerre_l"].call, OPS["legendre_p"].call


def spherical_bessel_j0(input: Tensor) -> Tensor:
    """sin(x) / x, 1 at 0, 0 at infinity."""
    if input._array.dtype.kind in "biu":
        input = input * 1.0
    zero = input == 0
    safe = input.masked_fill(zero, 1)
    return (safe.sin() / safe).masked_fill(zero, 1).masked_fill(input.isinf(), 0)
