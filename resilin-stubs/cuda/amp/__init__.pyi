"""resilin.cuda.amp. Written by scripts/type_stubs.py."""

from resilin.amp import GradScaler as GradScaler
from resilin.cuda.amp import grad_scaler as grad_scaler
