"""resilin.distributions.pareto. Written by scripts/type_stubs.py."""

from resilin.distributions.exponential import Pareto as Pareto
