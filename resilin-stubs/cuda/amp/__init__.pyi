"""resilin.cuda.amp. Written by scripts/type_stubs.py."""

from resilin.amp.older import CudaAutocast as _CudaAutocast
from resilin.amp import GradScaler as GradScaler
from resilin.amp.older import amp_definitely_not_available as amp_definitely_not_available
autocast = _CudaAutocast
from resilin.amp.older import custom_bwd as custom_bwd
from resilin.amp.older import custom_fwd as custom_fwd
from resilin.cuda.amp import autocast_mode as autocast_mode
from resilin.cuda.amp import common as common
from resilin.cuda.amp import grad_scaler as grad_scaler
