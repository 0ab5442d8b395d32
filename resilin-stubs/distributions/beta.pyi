"""resilin.distributions.beta. Written by scripts/type_stubs.py."""

from resilin.distributions.dirichlet import Beta as Beta
