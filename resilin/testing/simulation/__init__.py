"""Membership and recovery under simulated time: thousands of fault schedules a minute, each replayed from its seed.

python -m resilin.testing.simulation --seed 17 --trace
"""

from resilin.testing.simulation.schedule import FAULTS, HALVES, KINDS, LEAVERS, LINKS, FaultSet, Result, run
from resilin.testing.simulation.universe import Broken

__all__ = ["FAULTS", "HALVES", "KINDS", "LEAVERS", "LINKS", "Broken", "FaultSet", "Result", "run"]
