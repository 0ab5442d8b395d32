"""resilin.distributions.kumaraswamy. Written by scripts/type_stubs.py."""

from resilin.distributions.dirichlet import Kumaraswamy as Kumaraswamy
