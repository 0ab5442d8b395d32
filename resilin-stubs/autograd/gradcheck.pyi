"""resilin.autograd.gradcheck. Written by scripts/type_stubs.py."""

from resilin.core.autograd.gradcheck import GradcheckError as GradcheckError
from resilin.core.autograd.gradcheck import gradcheck as gradcheck
from resilin.core.autograd.gradcheck import gradgradcheck as gradgradcheck
