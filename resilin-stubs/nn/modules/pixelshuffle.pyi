"""resilin.nn.modules.pixelshuffle. Written by scripts/type_stubs.py."""

from resilin.nn import PixelShuffle as PixelShuffle
from resilin.nn import PixelUnshuffle as PixelUnshuffle
