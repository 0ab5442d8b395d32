"""resilin.distributions.gumbel. Written by scripts/type_stubs.py."""

from resilin.distributions.uniform import Gumbel as Gumbel
