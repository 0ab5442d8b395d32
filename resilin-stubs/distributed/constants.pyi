"""resilin.distributed.constants. Written by scripts/type_stubs.py."""

from resilin.distributed import default_pg_timeout as default_pg_timeout
