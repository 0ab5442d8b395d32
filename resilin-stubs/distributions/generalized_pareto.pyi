"""resilin.distributions.generalized_pareto. Written by scripts/type_stubs.py."""

from resilin.distributions.exponential import GeneralizedPareto as GeneralizedPareto
