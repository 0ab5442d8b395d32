"""The functions of torch.nn.functional. All are core's; here they have PyTorch's place and arguments."""

from __future__ import annotations

from typing import Any

from resilin.core.api import neural
from resilin.core.api.activations import (
    celu,
    celu_,
    elu,
    elu_,
    glu,
    gumbel_softmax,
    hardshrink,
    hardsigmoid,
    hardswish,
    hardtanh,
    hardtanh_,
    leaky_relu,
    leaky_relu_,
    logsigmoid,
    mish,
    prelu,
    relu6,
    relu_,
    rrelu,
    rrelu_,
    selu,
    selu_,
    silu,
    softmin,
    softshrink,
    softsign,
    tanhshrink,
    threshold,
    threshold_,
)
from resilin.core.api.distances import (
    cosine_similarity,
    pairwise_distance,
    pdist,
)
from resilin.core.api.losses import (
    binary_cross_entropy,
    binary_cross_entropy_with_logits,
    cross_entropy,
    kl_div,
    l1_loss,
    mse_loss,
    nll_loss,
    smooth_l1_loss,
)
from resilin.core.api.neural import (
    dropout,
    gelu,
    linear,
    log_softmax,
    normalize,
    one_hot,
    pad,
    relu,
    scaled_dot_product_attention,
    sigmoid,
    softmax,
    softplus,
)
from resilin.core.api.normalizing import batch_norm, group_norm, instance_norm, layer_norm, rms_norm
from resilin.core.api.windows import (
    adaptive_avg_pool2d,
    avg_pool2d,
    conv1d,
    conv2d,
    max_pool2d,
)
from resilin.core.tensor import Tensor

__all__ = [
    "adaptive_avg_pool2d",
    "avg_pool2d",
    "batch_norm",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "celu",
    "celu_",
    "conv1d",
    "conv2d",
    "cosine_similarity",
    "cross_entropy",
    "dropout",
    "elu",
    "elu_",
    "embedding",
    "gelu",
    "glu",
    "group_norm",
    "gumbel_softmax",
    "hardshrink",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "hardtanh_",
    "instance_norm",
    "kl_div",
    "l1_loss",
    "layer_norm",
    "leaky_relu",
    "leaky_relu_",
    "linear",
    "log_softmax",
    "logsigmoid",
    "max_pool2d",
    "mish",
    "mse_loss",
    "nll_loss",
    "normalize",
    "one_hot",
    "pad",
    "pairwise_distance",
    "pdist",
    "prelu",
    "relu",
    "relu6",
    "relu_",
    "rms_norm",
    "rrelu",
    "rrelu_",
    "scaled_dot_product_attention",
    "selu",
    "selu_",
    "sigmoid",
    "silu",
    "smooth_l1_loss",
    "softmax",
    "softmin",
    "softplus",
    "softshrink",
    "softsign",
    "tanh",
    "tanhshrink",
    "threshold",
    "threshold_",
]


def embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """The rows of `weight` (num, D) at the integers `input`; row `padding_idx` gets no gradient."""
    return neural.embedding(input, weight, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse)


def tanh(input: Tensor) -> Tensor:
    """The hyperbolic tangent."""
    result: Any = input.tanh()
    return result  # type: ignore[no-any-return]
