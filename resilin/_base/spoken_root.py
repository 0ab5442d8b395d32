"""The package that values name when they are shown: PyTorch's in programs that `resilin.as_torch` runs."""

from __future__ import annotations

root = "resilin"  # as_torch.install() writes it, before the program runs
