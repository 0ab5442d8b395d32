"""resilin.cuda.graphs. Written by scripts/type_stubs.py."""

from resilin.cuda import is_current_stream_capturing as is_current_stream_capturing
