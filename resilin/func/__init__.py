"""Functions of functions: the names of torch.func."""

from resilin.core.autograd.transforms import grad, grad_and_value, hessian, jacfwd, jacrev, jvp, linearize, vjp
from resilin.core.autograd.vmap import vmap
from resilin.func.modules import replace_all_batch_norm_modules_, stack_module_state
from resilin.nn.utils.stateless import functional_call

__all__ = [
    "functional_call",
    "grad",
    "grad_and_value",
    "hessian",
    "jacfwd",
    "jacrev",
    "jvp",
    "linearize",
    "replace_all_batch_norm_modules_",
    "stack_module_state",
    "vjp",
    "vmap",
]
