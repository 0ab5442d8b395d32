"""resilin.distributions.chi2. Written by scripts/type_stubs.py."""

from resilin.distributions.gamma import Chi2 as Chi2
