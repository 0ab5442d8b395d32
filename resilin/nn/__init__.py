"""Modules with the names and semantics of torch.nn."""

from resilin.core.tensor import Parameter
from resilin.nn import functional, init, utils
from resilin.nn.modules.activation import (
    GELU,
    Dropout,
    Flatten,
    LogSoftmax,
    ReLU,
    Sigmoid,
    SiLU,
    Softmax,
    Tanh,
)
from resilin.nn.modules.attention import MultiheadAttention
from resilin.nn.modules.container import ModuleDict, ModuleList, ParameterList, Sequential
from resilin.nn.modules.conv import Conv2d
from resilin.nn.modules.embedding import Embedding
from resilin.nn.modules.linear import Identity, Linear
from resilin.nn.modules.loss import BCEWithLogitsLoss, CrossEntropyLoss, L1Loss, MSELoss, NLLLoss
from resilin.nn.modules.module import Module
from resilin.nn.modules.normalization import BatchNorm1d, BatchNorm2d, LayerNorm
from resilin.nn.modules.pooling import AdaptiveAvgPool2d, AvgPool2d, MaxPool2d

__all__ = [
    "GELU",
    "AdaptiveAvgPool2d",
    "AvgPool2d",
    "BCEWithLogitsLoss",
    "BatchNorm1d",
    "BatchNorm2d",
    "Conv2d",
    "CrossEntropyLoss",
    "Dropout",
    "Embedding",
    "Flatten",
    "Identity",
    "L1Loss",
    "LayerNorm",
    "Linear",
    "LogSoftmax",
    "MSELoss",
    "MaxPool2d",
    "Module",
    "ModuleDict",
    "ModuleList",
    "MultiheadAttention",
    "NLLLoss",
    "Parameter",
    "ParameterList",
    "ReLU",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "Tanh",
    "functional",
    "init",
    "utils",
]
