"""resilin.cuda.amp.autocast_mode. Written by scripts/type_stubs.py."""

from resilin.amp.older import CudaAutocast as _CudaAutocast
autocast = _CudaAutocast
from resilin.amp.older import custom_bwd as custom_bwd
from resilin.amp.older import custom_fwd as custom_fwd
