"""resilin.distributions.logistic_normal. Written by scripts/type_stubs.py."""

from resilin.distributions.normal import LogisticNormal as LogisticNormal
