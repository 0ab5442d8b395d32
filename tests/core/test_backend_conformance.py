"""The simulated devices pass the conformance suite of backends, which those from outside the tree use, too."""

import pytest

from resilin.testing.check_backend import BackendConformance


class TestSim(BackendConformance):
    @pytest.fixture
    def where(self):
        return "sim:1"
