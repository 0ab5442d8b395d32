"""resilin.distributed.optim.functional_adadelta. Written by scripts/type_stubs.py."""

from resilin.rpc.optim.functional import _FunctionalAdadelta as _FunctionalAdadelta
