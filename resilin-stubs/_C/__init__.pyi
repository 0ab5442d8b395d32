"""resilin._C. Written by scripts/type_stubs.py."""

from resilin.core.public.dispatch import disabled as _disabled
from resilin.overrides import DisableTorchFunction as DisableTorchFunction
from resilin.overrides import DisableTorchFunctionSubclass as DisableTorchFunctionSubclass
_disabled_torch_function_impl = _disabled
from resilin._C import _profiler as _profiler
