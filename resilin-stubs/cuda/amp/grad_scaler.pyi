"""resilin.cuda.amp.grad_scaler. Written by scripts/type_stubs.py."""

from resilin.amp import GradScaler as GradScaler
