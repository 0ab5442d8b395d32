"""resilin.nn.modules.instancenorm. Written by scripts/type_stubs.py."""

from resilin.nn import InstanceNorm1d as InstanceNorm1d
from resilin.nn import InstanceNorm2d as InstanceNorm2d
from resilin.nn import InstanceNorm3d as InstanceNorm3d
from resilin.nn import LazyInstanceNorm1d as LazyInstanceNorm1d
from resilin.nn import LazyInstanceNorm2d as LazyInstanceNorm2d
from resilin.nn import LazyInstanceNorm3d as LazyInstanceNorm3d
from resilin.nn.modules.normalization_instance import _InstanceNorm as _InstanceNorm
