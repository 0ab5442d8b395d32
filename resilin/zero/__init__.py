"""ZeRO: the state of training divided among the ranks that train. See README.md beside this file."""

from resilin.zero.optimizer import ZeroRedundancyOptimizer

__all__ = ["ZeroRedundancyOptimizer"]
