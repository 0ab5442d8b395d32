"""How tensors are pickled for another process."""

from resilin.core.state import shared_pickles, sharing

__all__ = ["init_reductions"]


def init_reductions() -> None:
    """Have multiprocessing share tensors, from now on."""
    shared_pickles.register(sharing.share)
