"""resilin.distributed.optim.functional_adam. Written by scripts/type_stubs.py."""

from resilin.rpc.optim.functional import _FunctionalAdam as _FunctionalAdam
