"""What a node is called: PyTorch's name of the operation's backward, where PyTorch has that operation. Pure.

Operations that PyTorch makes of several, or does not have, are named after themselves in the same way. Where PyTorch
numbers variants (of a sum, with or without dimensions), so is the number here.
"""

from __future__ import annotations

import re
from typing import Any

# Op names whose words are not PyTorch's.
_OTHER = {
    "absolute": "Abs",
    "arccos": "Acos",
    "arccosh": "Acosh",
    "arcsin": "Asin",
    "arcsinh": "Asinh",
    "arctan": "Atan",
    "arctan2": "Atan2",
    "arctanh": "Atanh",
    "ascontiguous": "Clone",
    "astype": "ToCopy",
    "attention": "ScaledDotProductAttention",
    "avg_pool2d": "AvgPool2D",
    "batch_norm": "NativeBatchNorm",
    "bce_with_logits": "BinaryCrossEntropyWithLogits",
    "broadcast_to": "Expand",
    "cholesky": "LinalgCholeskyEx",
    "concat": "Cat",
    "conv2d": "Convolution",
    "copy": "Clone",
    "cross_entropy": "NllLoss",
    "det": "LinalgDet",
    "divide": "Div",
    "eig": "LinalgEig",
    "eigh": "LinalgEigh",
    "einsum_terms": "Einsum",
    "expand_dims": "Unsqueeze",
    "gammaln": "Lgamma",
    "inv": "LinalgInvEx",
    "laid_out": "Clone",
    "layer_norm": "NativeLayerNorm",
    "lstsq": "LinalgLstsq",
    "make_complex": "Complex",
    "matrix_exp": "LinalgMatrixExp",
    "max_pool2d": "MaxPool2DWithIndices",
    "multiply": "Mul",
    "negative": "Neg",
    "norm2": "LinalgVectorNorm",
    "norm_of": "LinalgVectorNorm",
    "pad_constant": "ConstantPadNd",
    "permute_dims": "Permute",
    "pinv": "LinalgPinv",
    "prelu": "PreluKernel",
    "qr": "LinalgQr",
    "rearrange": "PixelShuffle",
    "recurrent": "Lstm",
    "rint": "Round",
    "scatter_extreme": "ScatterReduce",
    "scatter_product": "ScatterReduce",
    "slogdet": "LinalgSlogdet",
    "solve": "LinalgSolveEx",
    "solve_triangular": "LinalgSolveTriangular",
    "split_parts": "SplitWithSizes",
    "square": "Pow",
    "subtract": "Sub",
    "sum_rows": "Sum",
    "svd": "LinalgSvd",
    "svdvals": "LinalgSvd",
    "swapaxes": "Transpose",
    "take_along_axis": "Gather",
    "tile": "Repeat",
    "where_else": "Where",
}


def of(name: str, params: tuple[Any, ...], edges: Any, metas: Any) -> str:
    """E.g. "MulBackward0" for an op's name, its parameters, and the edges and (shape, dtype) of its inputs."""
    variant = _VARIANTS.get(name)
    if variant is not None:
        found: str = variant(params, edges, metas)
        return found
    word = _OTHER.get(name) or "".join(part.capitalize() for part in name.split("_"))
    return f"{word}Backward0"


def varies(name: str) -> bool:
    """Whether nodes of the op `name` are called by their parameters, too."""
    return name in _VARIANTS


def varies_by_more(name: str) -> bool:
    """Whether nodes of the op `name` are called by more than which edges, and whether a first parameter, they have."""
    return name in _BY_MORE


def traced(name: str) -> str:
    """What an op is called in traces, e.g. "aten::mul" for "multiply"."""
    if name in _TRACED:
        return f"aten::{_TRACED[name]}"
    word = _OTHER.get(name)
    return f"aten::{name if word is None else _SNAKE.sub('_', word).lower()}"


_SNAKE = re.compile(r"(?<=[a-z])(?=[A-Z])(?<!Qr)|(?<=\dD)(?=[A-Z])")
_TRACED = {
    "astype": "_to_copy",
    "clip_to": "clamp",
    "cross_entropy": "cross_entropy_loss",
    "einsum_terms": "einsum",
    "getitem": "index",
    "index_put": "index_put",
    "maximum": "maximum",
    "power": "pow",
    "prelu": "prelu",
    "recurrent": "lstm",
    "avg_pool2d": "avg_pool2d",
    "max_pool2d": "max_pool2d",
    "where_else": "where",
}


def _reduced(word: str) -> Any:
    return lambda params, edges, metas: f"{word}Backward{int(params[0] is not None)}"


def _ranks(metas: Any) -> list[int]:
    return [len(meta[0]) for meta in metas if meta is not None]


def _product(params: Any, edges: Any, metas: Any) -> str:
    ranks = _ranks(metas)
    if max(ranks) > 2:
        return "BmmBackward0"
    return {(1, 1): "DotBackward0", (2, 1): "MvBackward0"}.get((ranks[0], ranks[-1]), "MmBackward0")


def _linear(params: Any, edges: Any, metas: Any) -> str:
    return "AddmmBackward0" if edges[2] is not None else "MmBackward0"


def _indexed(params: Any, edges: Any, metas: Any) -> str:
    parts = params[0] if isinstance(params[0], tuple) else (params[0],)
    if any(hasattr(part, "dtype") or isinstance(part, list) for part in parts):
        return "IndexBackward0"
    last = next((part for part in reversed(parts) if part is not Ellipsis), slice(None))
    return "UnsqueezeBackward0" if last is None else f"{'Slice' if isinstance(last, slice) else 'Select'}Backward0"


def _written(params: Any, edges: Any, metas: Any) -> str:
    return "IndexPutBackward0" if _indexed(params, edges, metas) == "IndexBackward0" else "CopySlices"


_VARIANTS = {
    "sum": _reduced("Sum"),
    "mean": _reduced("Mean"),
    "prod": _reduced("Prod"),
    "squeeze": _reduced("Squeeze"),
    "power": lambda params, edges, metas: f"PowBackward{int(edges[1] is not None)}",
    "maximum": lambda params, edges, metas: "MaximumBackward0",
    "clip_to": lambda params, edges, metas: "ClampBackward1",
    "reshape": lambda params, edges, metas: "ViewBackward0",
    "splice": lambda params, edges, metas: "CopySlices",
    "matmul": _product,
    "linear": _linear,
    "getitem": _indexed,
    "index_put": _written,
}
_BY_MORE = frozenset({"matmul", "getitem", "index_put"})
