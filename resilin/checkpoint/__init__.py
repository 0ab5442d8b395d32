"""Checkpoints: state cut in ranges over the ranks that write it, loaded by any number of ranks."""

from resilin.checkpoint.sliced import Sliced

__all__ = ["Sliced"]
