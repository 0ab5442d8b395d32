"""resilin._dynamo. Written by scripts/type_stubs.py."""

from resilin.compiler.dynamo import *
from resilin._dynamo import config as config
