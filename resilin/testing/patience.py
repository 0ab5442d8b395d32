"""How long tests wait for what must happen.

Such a limit is no part of what a test proves, so a machine with ten times its work must not reach it; it only ends a
test that hangs, with what that test has to say, before pytest's own limit does. Where time is what a test is about, it
names a limit of its own, and why load cannot break it.
"""

PATIENCE_S = 100.0
