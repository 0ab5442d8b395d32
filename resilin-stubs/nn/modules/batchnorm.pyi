"""resilin.nn.modules.batchnorm. Written by scripts/type_stubs.py."""

from resilin.nn.modules.lazy_layers import _LazyNorm as __LazyNorm
from resilin.nn.modules.normalization import NormWithStatistics as _NormWithStatistics
from resilin.nn import BatchNorm1d as BatchNorm1d
from resilin.nn import BatchNorm2d as BatchNorm2d
from resilin.nn import BatchNorm3d as BatchNorm3d
from resilin.nn import LazyBatchNorm1d as LazyBatchNorm1d
from resilin.nn import LazyBatchNorm2d as LazyBatchNorm2d
from resilin.nn import LazyBatchNorm3d as LazyBatchNorm3d
from resilin.nn import SyncBatchNorm as SyncBatchNorm
from resilin.nn.modules.normalization import _BatchNorm as _BatchNorm
_LazyNormBase = __LazyNorm
_NormBase = _NormWithStatistics
