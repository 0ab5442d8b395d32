"""How tensors are pickled for another process."""

from resilin.core.state.shared_pickles import register as init_reductions

__all__ = ["init_reductions"]
