"""Imports grpc so that it says nothing on standard error: what it has to say comes as an error, and is told from there.

Its C core would print lines of its own for what is no trouble here: a port that another agent took a moment earlier, a
connection that an etcd closes after it was frozen. GRPC_VERBOSITY in the environment brings them back.
"""

from resilin._base import env

env.set_for_c("GRPC_VERBOSITY", "NONE")

import grpc  # noqa: E402 - it reads the variable while it is imported

__all__ = ["grpc"]
