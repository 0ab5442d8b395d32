"""resilin.distributed.optim.functional_adagrad. Written by scripts/type_stubs.py."""

from resilin.rpc.optim.functional import _FunctionalAdagrad as _FunctionalAdagrad
