"""Checkpoints: state cut in ranges over the ranks that write it, loaded by any number of ranks."""

from typing import TYPE_CHECKING

from resilin.checkpoint.folder import Found, latest, list_checkpoints
from resilin.checkpoint.loading import Loaded, load
from resilin.checkpoint.saving import SaveHandle, save, save_async
from resilin.checkpoint.sliced import Sliced
from resilin.checkpoint.torch_files import import_torch
from resilin.checkpoint.verifying import Problem, verify
from resilin.checkpoint.weights import load_safetensors, save_safetensors

if TYPE_CHECKING:  # what the table of places adds; written by scripts/type_stubs.py
    from resilin.distributed.checkpoint import state_dict_loader as state_dict_loader
    from resilin.distributed.checkpoint import state_dict_saver as state_dict_saver

__all__ = [
    "Found",
    "Loaded",
    "Problem",
    "SaveHandle",
    "Sliced",
    "import_torch",
    "latest",
    "list_checkpoints",
    "load",
    "load_safetensors",
    "save",
    "save_async",
    "save_safetensors",
    "verify",
]
