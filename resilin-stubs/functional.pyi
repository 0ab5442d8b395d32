"""resilin.functional. Written by scripts/type_stubs.py."""

from typing import Any as _Any
def atleast_1d(*tensors: _Any) -> _Any: ...
def atleast_2d(*tensors: _Any) -> _Any: ...
def atleast_3d(*tensors: _Any) -> _Any: ...
from resilin.core.api.manipulation.rearranging import block_diag as block_diag
from resilin.core.api.manipulation.shaping import broadcast_shapes as broadcast_shapes
from resilin.core.api.manipulation.rearranging import broadcast_tensors as broadcast_tensors
from resilin.core.api.manipulation.rearranging import cartesian_prod as cartesian_prod
from resilin.core.api.mathematics.distances import cdist as cdist
from resilin.core.api.mathematics.linear_algebra import chain_matmul as chain_matmul
from resilin.core.api.mathematics.einsum import einsum as einsum
from resilin.core.api.mathematics.spectral import istft as istft
from resilin.linalg.older import lu as lu
from resilin.core.api.manipulation.rearranging import meshgrid as meshgrid
from resilin.core.api.mathematics.reducing import norm as norm
from resilin.linalg.older import pca_lowrank as pca_lowrank
from resilin.core.api.manipulation.joining import split as split
from resilin.core.api.mathematics.spectral import stft as stft
from resilin.linalg.older import svd_lowrank as svd_lowrank
from resilin.core.api.mathematics.linear_algebra import tensordot as tensordot
from resilin.core.api.manipulation.uniques import unique as unique
from resilin.core.api.manipulation.uniques import unique_consecutive as unique_consecutive
from resilin.core.api.manipulation.rearranging import unravel_index as unravel_index
