"""resilin.distributions.fishersnedecor. Written by scripts/type_stubs.py."""

from resilin.distributions.gamma import FisherSnedecor as FisherSnedecor
