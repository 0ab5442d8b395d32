"""resilin.distributed.optim.functional_adamw. Written by scripts/type_stubs.py."""

from resilin.rpc.optim.functional import _FunctionalAdamW as _FunctionalAdamW
