"""resilin.distributions.multinomial. Written by scripts/type_stubs.py."""

from resilin.distributions.categorical import Multinomial as Multinomial
