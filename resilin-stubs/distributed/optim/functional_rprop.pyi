"""resilin.distributed.optim.functional_rprop. Written by scripts/type_stubs.py."""

from resilin.rpc.optim.functional import _FunctionalRprop as _FunctionalRprop
