"""resilin.nn.modules.channelshuffle. Written by scripts/type_stubs.py."""

from resilin.nn import ChannelShuffle as ChannelShuffle
