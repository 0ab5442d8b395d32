from collections.abc import Callable

import pytest

from resilin.rpc.channels.inline import InlineChannel
from resilin.testing.check_tensor_channel import TensorChannelConformance


class TestInline(TensorChannelConformance):
    @pytest.fixture
    def make(self) -> Callable[..., InlineChannel]:
        return InlineChannel
