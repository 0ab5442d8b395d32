"""resilin.distributed.optim.functional_adamax. Written by scripts/type_stubs.py."""

from resilin.rpc.optim.functional import _FunctionalAdamax as _FunctionalAdamax
