"""What tests of resilin, and of programs that use it, need: comparison of tensors by torch.testing's names, a clock to
own, real etcd members, conformance suites.

At the top of the floors: nothing in the library imports it, and it may import everything.
"""

from resilin.testing.comparing import assert_allclose, assert_close
from resilin.testing.making import make_tensor

__all__ = ["assert_allclose", "assert_close", "make_tensor"]
