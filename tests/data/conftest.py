"""Settings of the data tests."""

from hypothesis import settings

# no deadline: a busy machine is not a counterexample
settings.register_profile("resilin", deadline=None)
settings.load_profile("resilin")
