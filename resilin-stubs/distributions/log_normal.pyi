"""resilin.distributions.log_normal. Written by scripts/type_stubs.py."""

from resilin.distributions.normal import LogNormal as LogNormal
