"""`vjp`, `jvp`, `jacobian`, `hessian`: the names of torch.autograd.functional."""

from resilin.core.autograd.functional import hessian, hvp, jacobian, jvp, vhp, vjp

__all__ = ["hessian", "hvp", "jacobian", "jvp", "vhp", "vjp"]
