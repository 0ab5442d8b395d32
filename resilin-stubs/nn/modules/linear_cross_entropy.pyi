"""resilin.nn.modules.linear_cross_entropy. Written by scripts/type_stubs.py."""

from resilin.nn import LinearCrossEntropyLoss as LinearCrossEntropyLoss
