"""resilin.distributed.optim.functional_sgd. Written by scripts/type_stubs.py."""

from resilin.rpc.optim.functional import _FunctionalSGD as _FunctionalSGD
