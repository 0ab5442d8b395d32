"""Give resilin as `torch` to a process that was started by one in which `resilin.as_torch` is installed."""

from resilin.as_torch import install

install()
