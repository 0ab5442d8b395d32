"""resilin.distributions.one_hot_categorical. Written by scripts/type_stubs.py."""

from resilin.distributions.categorical import OneHotCategorical as OneHotCategorical
from resilin.distributions.categorical import OneHotCategoricalStraightThrough as OneHotCategoricalStraightThrough
