"""resilin.distributions.weibull. Written by scripts/type_stubs.py."""

from resilin.distributions.exponential import Weibull as Weibull
