"""Settings of the whole suite."""

from hypothesis import settings

# The same examples at every run: a failure that shows is one that shows again.
settings.register_profile("headway", derandomize=True, deadline=None)
settings.load_profile("headway")
