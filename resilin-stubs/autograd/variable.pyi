"""resilin.autograd.variable. Written by scripts/type_stubs.py."""

from resilin.autograd import Variable as Variable
