"""Python's pool of processes, whose arguments and results share tensors, too."""

from multiprocessing.pool import Pool

__all__ = ["Pool"]
