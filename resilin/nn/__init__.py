"""Modules with the names and semantics of torch.nn."""

from resilin.core.tensor import Parameter
from resilin.nn import functional, init, utils
from resilin.nn.modules.activation import (
    ELU,
    GELU,
    Dropout,
    Flatten,
    LeakyReLU,
    LogSoftmax,
    ReLU,
    Sigmoid,
    SiLU,
    Softmax,
    Softplus,
    Tanh,
)
from resilin.nn.modules.attention import MultiheadAttention
from resilin.nn.modules.container import ModuleDict, ModuleList, ParameterList, Sequential
from resilin.nn.modules.conv import Conv1d, Conv2d
from resilin.nn.modules.embedding import Embedding
from resilin.nn.modules.linear import Identity, Linear
from resilin.nn.modules.loss import (
    BCELoss,
    BCEWithLogitsLoss,
    CrossEntropyLoss,
    KLDivLoss,
    L1Loss,
    MSELoss,
    NLLLoss,
    SmoothL1Loss,
)
from resilin.nn.modules.module import Module
from resilin.nn.modules.normalization import BatchNorm1d, BatchNorm2d, GroupNorm, LayerNorm, RMSNorm
from resilin.nn.modules.pooling import AdaptiveAvgPool2d, AvgPool2d, MaxPool2d

__all__ = [
    "ELU",
    "GELU",
    "AdaptiveAvgPool2d",
    "AvgPool2d",
    "BCELoss",
    "BCEWithLogitsLoss",
    "BatchNorm1d",
    "BatchNorm2d",
    "Conv1d",
    "Conv2d",
    "CrossEntropyLoss",
    "Dropout",
    "Embedding",
    "Flatten",
    "GroupNorm",
    "Identity",
    "KLDivLoss",
    "L1Loss",
    "LayerNorm",
    "LeakyReLU",
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
    "RMSNorm",
    "ReLU",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "SmoothL1Loss",
    "Softmax",
    "Softplus",
    "Tanh",
    "functional",
    "init",
    "utils",
]
