"""Checkpoints: state cut in ranges over the ranks that write it, loaded by any number of ranks."""

from resilin.checkpoint.sliced import Sliced
from resilin.checkpoint.torch_files import import_torch
from resilin.checkpoint.weights import load_safetensors, save_safetensors

__all__ = ["Sliced", "import_torch", "load_safetensors", "save_safetensors"]
