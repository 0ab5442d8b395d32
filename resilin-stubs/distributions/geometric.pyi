"""resilin.distributions.geometric. Written by scripts/type_stubs.py."""

from resilin.distributions.bernoulli import Geometric as Geometric
