"""resilin.nn.utils.weight_norm. Written by scripts/type_stubs.py."""

from resilin.nn.utils.norm_hooks import _WeightNormHook as __WeightNormHook
WeightNorm = __WeightNormHook
from resilin.nn.utils import remove_weight_norm as remove_weight_norm
from resilin.nn.utils import weight_norm as weight_norm
