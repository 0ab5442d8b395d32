"""resilin.distributions.relaxed_bernoulli. Written by scripts/type_stubs.py."""

from resilin.distributions.relaxed import LogitRelaxedBernoulli as LogitRelaxedBernoulli
from resilin.distributions.relaxed import RelaxedBernoulli as RelaxedBernoulli
