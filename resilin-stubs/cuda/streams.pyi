"""resilin.cuda.streams. Written by scripts/type_stubs.py."""

from resilin.cuda import Event as Event
from resilin.cuda import ExternalStream as ExternalStream
from resilin.cuda import Stream as Stream
