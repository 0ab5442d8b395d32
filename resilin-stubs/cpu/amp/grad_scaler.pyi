"""resilin.cpu.amp.grad_scaler. Written by scripts/type_stubs.py."""

from resilin.amp import GradScaler as GradScaler
