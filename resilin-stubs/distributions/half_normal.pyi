"""resilin.distributions.half_normal. Written by scripts/type_stubs.py."""

from resilin.distributions.normal import HalfNormal as HalfNormal
