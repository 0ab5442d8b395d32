"""Helpers around parameters and gradients."""

from typing import TYPE_CHECKING

from resilin.nn.utils import parametrizations, parametrize, prune, rnn, stateless
from resilin.nn.utils.clip_grad import (
    clip_grad_norm,
    clip_grad_norm_,
    clip_grad_value_,
    clip_grads_with_norm_,
    get_total_norm,
)
from resilin.nn.utils.convert_parameters import parameters_to_vector, vector_to_parameters
from resilin.nn.utils.fusion import fuse_conv_bn_eval, fuse_conv_bn_weights, fuse_linear_bn_eval, fuse_linear_bn_weights
from resilin.nn.utils.norm_hooks import remove_spectral_norm, remove_weight_norm, spectral_norm, weight_norm
from resilin.nn.utils.skip_init import skip_init

if TYPE_CHECKING:  # what the table of places adds; written by scripts/type_stubs.py
    from resilin.nn.utils import init as init

__all__ = [
    "clip_grad_norm",
    "clip_grad_norm_",
    "clip_grad_value_",
    "clip_grads_with_norm_",
    "fuse_conv_bn_eval",
    "fuse_conv_bn_weights",
    "fuse_linear_bn_eval",
    "fuse_linear_bn_weights",
    "get_total_norm",
    "parameters_to_vector",
    "parametrizations",
    "parametrize",
    "prune",
    "remove_spectral_norm",
    "remove_weight_norm",
    "rnn",
    "skip_init",
    "spectral_norm",
    "stateless",
    "vector_to_parameters",
    "weight_norm",
]
