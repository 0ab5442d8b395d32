"""resilin.distributed.optim.functional_rmsprop. Written by scripts/type_stubs.py."""

from resilin.rpc.optim.functional import _FunctionalRMSprop as _FunctionalRMSprop
