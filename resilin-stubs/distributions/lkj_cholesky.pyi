"""resilin.distributions.lkj_cholesky. Written by scripts/type_stubs.py."""

from resilin.distributions.wishart import LKJCholesky as LKJCholesky
