"""resilin.distributions.inverse_gamma. Written by scripts/type_stubs.py."""

from resilin.distributions.gamma import InverseGamma as InverseGamma
