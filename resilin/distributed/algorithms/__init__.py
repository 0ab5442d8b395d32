"""Provide torch.distributed.algorithms: `join`, training with uneven inputs. Communication hooks: `resilin.ddp`."""

from typing import TYPE_CHECKING

from resilin.distributed.algorithms.join import Join, Joinable, JoinHook

if TYPE_CHECKING:  # what the table of places adds; written by scripts/type_stubs.py
    from resilin.distributed.algorithms import ddp_comm_hooks as ddp_comm_hooks
    from resilin.distributed.algorithms import model_averaging as model_averaging

__all__ = ["Join", "JoinHook", "Joinable"]
