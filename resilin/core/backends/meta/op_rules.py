"""What shape and dtype those ops give that `operations.py` lists. Reached as `xp.rules` of the meta device."""

from __future__ import annotations

from typing import Any

import numpy as np

from resilin.core.backends.meta.array import MetaArray, fresh
from resilin.core.backends.meta.products import LINALG
from resilin.core.dtype import default_np

eig, eigvals = LINALG.eig, LINALG.eigvals


def alike(x: Any, *_: Any) -> MetaArray:
    """One array of the shape and dtype of the first."""
    return fresh(x.shape, x.dtype)


def broadcast(*args: Any) -> MetaArray:
    """What numpy broadcasts and promotes to; integers become floats."""
    arrays = [x for x in args if isinstance(x, MetaArray | np.ndarray)]
    kind = np.result_type(*(x.dtype for x in arrays))
    return fresh(np.broadcast_shapes(*(x.shape for x in arrays)), default_np() if kind.kind in "iub" else kind)


def lu_packed(x: Any, pivot: bool = True) -> Any:
    """Both factors in one matrix, the pivots, and one number for each matrix: whether it went well."""
    return (
        fresh(x.shape, x.dtype),
        fresh((*x.shape[:-2], min(x.shape[-2:])), np.int32),
        fresh(x.shape[:-2], np.int32),
    )


def eigvalsh(x: Any, uplo: str = "L") -> Any:
    """Eigenvalues alone, as `eigh` gives them."""
    return LINALG.eigh(x)[0]


def svdvals(x: Any) -> Any:
    """Singular values alone, as `svd` gives them."""
    return LINALG.svd(x)[1]


def embedding(weight: Any, index: Any, *_: Any) -> Any:
    """A row of the weight for each index."""
    return fresh((*index.shape, weight.shape[1]), weight.dtype)


def embedding_grad(g: Any, index: Any = None, num: int = 0, padding_idx: Any = None) -> Any:
    """A gradient for each of `num` rows."""
    return fresh((num, g.shape[-1]), g.dtype)


def embedding_bags(weight: Any, index: Any, starts: Any, *_: Any) -> Any:
    """A row for each bag."""
    return fresh((*starts.shape, weight.shape[1]), weight.dtype)


def embedding_bags_grad(g: Any, index: Any = None, starts: Any = None, mean: bool = False, num: int = 0) -> Any:
    """A gradient for each of `num` rows."""
    return fresh((num, g.shape[-1]), g.dtype)


def cross_entropy(
    logits: Any, target: Any = None, weight: Any = None, ignore: int = -100, smoothing: float = 0.0, count: Any = None
) -> Any:
    """A loss for each sample, which are along the first axis, or with `count` their mean."""
    return fresh(logits.shape[:1] if count is None else (), logits.dtype)


def max_pool2d_scatter(g: Any, index: Any = None, shape: Any = ()) -> Any:
    """The gradient of what was pooled, whose shape is given."""
    return fresh(shape, g.dtype)


def ctc_loss(log_probs: Any, *_: Any) -> Any:
    """A loss for each sample, which are along the second axis."""
    return fresh(log_probs.shape[1:2], log_probs.dtype)


def ctc_loss_grad(g: Any, losses: Any, log_probs: Any, *_: Any) -> Any:
    """The gradient of the log probabilities."""
    return fresh(log_probs.shape, log_probs.dtype)


def eigh(x: Any, uplo: str = "L") -> Any:
    """Eigenvalues and eigenvectors, whichever half of `x` counts."""
    return LINALG.eigh(x)


def svd(x: Any, full: bool = False) -> Any:
    """The decomposition, thin unless `full`."""
    return LINALG.svd(x, full)
