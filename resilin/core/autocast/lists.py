"""Which functions autocast has run in the lower precision, in float32, or in the widest dtype of their arguments.

PyTorch's lists, by device type. Its names of operations are the last parts of public functions' names here. A function
that PyTorch makes of operations on a list is on that list, too: `einsum` of `bmm`, multi-head attention of `linear`.
Everything else runs in the dtypes of its arguments. Pure data: nothing is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

LOWER, FLOAT32, PROMOTE = "lower precision", "float32", "promote"

_PRODUCTS = (
    "conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d linear matmul mm bmm addmm "
    "addbmm baddbmm vecdot prelu scaled_dot_product_attention"
)
_LOSSES = (
    "cosine_embedding_loss hinge_embedding_loss huber_loss kl_div l1_loss margin_ranking_loss mse_loss "
    "multi_margin_loss multilabel_margin_loss nll_loss poisson_nll_loss smooth_l1_loss soft_margin_loss "
    "triplet_margin_loss binary_cross_entropy_with_logits cross_entropy"
)
_CPU: dict[str, str] = {
    LOWER: f"{_PRODUCTS} __matmul__ __rmatmul__ einsum tensordot inner chain_matmul multi_dot "
    "multi_head_attention_forward layers lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell",
    FLOAT32: f"{_LOSSES} binary_cross_entropy ctc_loss adaptive_avg_pool3d adaptive_max_pool3d avg_pool3d "
    "fractional_max_pool2d fractional_max_pool3d max_pool3d max_unpool1d max_unpool2d max_unpool3d pad grid_sample "
    "cdist prod quantile nanquantile trace polar view_as_complex stft "
    "fft ifft fft2 ifft2 fftn ifftn rfft irfft rfft2 irfft2 rfftn irfftn hfft ihfft "
    "cholesky cholesky_ex cholesky_inverse cholesky_solve inverse inv inv_ex pinverse solve lu lu_solve "
    "triangular_solve orgqr householder_product qr svd svdvals eig eigh eigvals eigvalsh cond matrix_rank "
    "lstsq tensorinv tensorsolve pinv matrix_power matrix_exp cov corrcoef svd_lowrank pca_lowrank",
    PROMOTE: "stack cat concat concatenate hstack vstack dstack column_stack row_stack index_copy",
}
_CUDA: dict[str, str] = {
    LOWER: f"{_PRODUCTS} __matmul__ __rmatmul__ mv addmv addr einsum chain_matmul multi_dot "
    "multi_head_attention_forward layers lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell",
    FLOAT32: f"{_LOSSES} acos arccos asin arcsin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan "
    "pow __pow__ __rpow__ softplus layer_norm rms_norm group_norm cosine_similarity dist pdist cdist renorm logsumexp "
    "prod softmax log_softmax cumprod cumsum vector_norm matrix_norm norm sum",
    PROMOTE: "addcdiv addcmul atan2 arctan2 bilinear cross dot vdot grid_sample index_put tensordot scatter_add",
}


def _by_function(lists: Mapping[str, str]) -> dict[str, str]:
    return {name: policy for policy, names in lists.items() for name in names.split()}


POLICIES: dict[str, dict[str, str]] = {"cpu": _by_function(_CPU), "cuda": _by_function(_CUDA)}
LISTED = frozenset().union(*POLICIES.values())

_CANNOT_BE_CAST = (
    "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.\n"
    "Many models use a sigmoid layer right before the binary cross entropy layer.\n"
    "In this case, combine the two layers using torch.nn.functional.binary_cross_entropy_with_logits\n"
    "or torch.nn.BCEWithLogitsLoss.  binary_cross_entropy_with_logits and BCEWithLogits are\nsafe to autocast."
)
REFUSED: dict[str, dict[str, str]] = {"cuda": {"binary_cross_entropy": _CANNOT_BE_CAST}}


def _pads_from_elements(*args: Any, **kwargs: Any) -> bool:
    """Whether `pad` is one of PyTorch's operations on the list: reflection in 1 or 2 dimensions, or replication."""
    mode = kwargs.get("mode", args[2] if len(args) > 2 else "constant")
    pad = kwargs.get("pad", args[1] if len(args) > 1 else ())
    return mode == "replicate" or (mode == "reflect" and isinstance(pad, list | tuple) and len(pad) <= 4)


def _pools_alone(*args: Any, **kwargs: Any) -> bool:
    """Whether a pooling is asked for its values alone; those that give indices, too, are on no list."""
    return not kwargs.get("return_indices", len(args) > 6 and args[6])


def einsum_terms(*args: Any, **kwargs: Any) -> tuple[list[set[Any]], set[Any]]:
    """The letters of each operand of an `einsum`, and those of its result."""
    equation = kwargs.get("equation", args[0] if args else "")
    if isinstance(equation, str):
        left, arrow, right = equation.replace(" ", "").replace("...", "").partition("->")
        terms, out = [set(term) for term in left.split(",")], set(right) if arrow else None
    else:
        terms = [{number for number in each if number is not ...} for each in args if isinstance(each, list | tuple)]
        out = terms.pop() if len(args) % 2 and terms else None
    if out is None:
        out = {letter for term in terms for letter in term if sum(letter in each for each in terms) == 1}
    return terms, out


def sums_products(terms: list[set[Any]], out: set[Any], last: int) -> bool:
    """Whether operand `last` of an `einsum` ends a letter that it shares with one before: a matrix product."""
    before = set().union(*terms[:last])
    return bool(terms[last] & before - out.union(*terms[last + 1 :]))


def _has_products(*args: Any, **kwargs: Any) -> bool:
    terms, out = einsum_terms(*args, **kwargs)
    return any(sums_products(terms, out, last) for last in range(1, len(terms)))


def _is_of_matrices(*args: Any, **kwargs: Any) -> bool:
    """Whether an `inner` is no inner product of two vectors, which is on no list."""
    return any(getattr(each, "ndim", 0) > 1 for each in (*args, *kwargs.values()))


def _leaves_dimensions(*args: Any, **kwargs: Any) -> bool:
    """Whether a `tensordot` is no inner product of all elements, which is on no list."""
    dims = kwargs.get("dims", args[2] if len(args) > 2 else 2)
    summed = dims if isinstance(dims, int) else len(dims[0]) if isinstance(dims, list | tuple) and dims else 0
    return any(getattr(each, "ndim", 0) > summed for each in (*args[:2], *kwargs.values()))


# Of functions that are on the list for some of their arguments: whether these are such. By device type and name.
WHEN: dict[str, dict[str, Callable[..., bool]]] = {
    "cpu": {
        "einsum": _has_products,
        "inner": _is_of_matrices,
        "max_pool3d": _pools_alone,
        "pad": _pads_from_elements,
        "tensordot": _leaves_dimensions,
    }
}


def policy(device_type: str, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    """How function `name` treats tensors of `device_type` for these arguments; None: as without autocast.

    RuntimeError for a function that gives wrong results in lower precision and has no other form.
    """
    found = POLICIES[device_type].get(name)
    if found is None and name in REFUSED.get(device_type, ()):
        raise RuntimeError(REFUSED[device_type][name])
    holds = WHEN.get(device_type, {}).get(name)
    return found if holds is None or found is None or holds(*args, **kwargs) else None
