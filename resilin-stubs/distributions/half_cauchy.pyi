"""resilin.distributions.half_cauchy. Written by scripts/type_stubs.py."""

from resilin.distributions.cauchy import HalfCauchy as HalfCauchy
