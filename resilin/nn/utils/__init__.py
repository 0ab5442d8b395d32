"""Helpers around parameters and gradients."""

from resilin.nn.utils import parametrizations, parametrize, rnn
from resilin.nn.utils.clip_grad import clip_grad_norm_, clip_grad_value_, get_total_norm
from resilin.nn.utils.convert_parameters import parameters_to_vector, vector_to_parameters

__all__ = [
    "clip_grad_norm_",
    "clip_grad_value_",
    "get_total_norm",
    "parameters_to_vector",
    "parametrizations",
    "parametrize",
    "rnn",
    "vector_to_parameters",
]
