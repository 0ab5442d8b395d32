"""resilin.distributions.binomial. Written by scripts/type_stubs.py."""

from resilin.distributions.bernoulli import Binomial as Binomial
