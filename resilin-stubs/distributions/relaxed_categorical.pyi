"""resilin.distributions.relaxed_categorical. Written by scripts/type_stubs.py."""

from resilin.distributions.relaxed import ExpRelaxedCategorical as ExpRelaxedCategorical
from resilin.distributions.relaxed import RelaxedOneHotCategorical as RelaxedOneHotCategorical
