"""What holds for every test."""

from hypothesis import settings

# How long an example takes says what else runs on the machine.
settings.register_profile("shared", deadline=None)
settings.load_profile("shared")
