"""Training in half precision: the loss scaler of torch.amp. See README.md beside this file."""

from resilin.amp.grad_scaler import GradScaler

__all__ = ["GradScaler"]
