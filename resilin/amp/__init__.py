"""Training in half precision: torch.amp's regions of lower precision and its loss scaler. See README.md beside this."""

from resilin.amp.autocast_mode import autocast, custom_bwd, custom_fwd, is_autocast_available
from resilin.amp.grad_scaler import GradScaler

__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd", "is_autocast_available"]
