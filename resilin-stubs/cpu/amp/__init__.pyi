"""resilin.cpu.amp. Written by scripts/type_stubs.py."""

from resilin.amp.older import CpuAutocast as _CpuAutocast
from resilin.amp import GradScaler as GradScaler
autocast = _CpuAutocast
from resilin.cpu.amp import autocast_mode as autocast_mode
from resilin.cpu.amp import grad_scaler as grad_scaler
