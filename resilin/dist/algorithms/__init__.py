"""torch.distributed.algorithms: `join`, training with uneven inputs. Communication hooks are in `resilin.ddp`."""

from resilin.dist.algorithms.join import Join, Joinable, JoinHook

__all__ = ["Join", "JoinHook", "Joinable"]
