"""resilin.distributions.negative_binomial. Written by scripts/type_stubs.py."""

from resilin.distributions.bernoulli import NegativeBinomial as NegativeBinomial
