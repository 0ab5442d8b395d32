"""resilin.distributions.studentT. Written by scripts/type_stubs.py."""

from resilin.distributions.gamma import StudentT as StudentT
