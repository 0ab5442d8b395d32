"""resilin.distributed.launcher. Written by scripts/type_stubs.py."""

from resilin.launcher.api import LaunchConfig as LaunchConfig
from resilin.launcher.api import elastic_launch as elastic_launch
from resilin.launcher.api import launch_agent as launch_agent
from resilin.distributed.launcher import api as api
