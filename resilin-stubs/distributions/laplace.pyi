"""resilin.distributions.laplace. Written by scripts/type_stubs.py."""

from resilin.distributions.cauchy import Laplace as Laplace
