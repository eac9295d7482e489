"""Profiles of hypothesis: 25 fixed examples for `make test`, 100 random ones for `make soak`.

`HYPOTHESIS_PROFILE=soak` selects the second one. No profile has a deadline: machines differ.
"""

import os

from hypothesis import settings

settings.register_profile("test", max_examples=25, deadline=None, derandomize=True)
settings.register_profile("soak", max_examples=100, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "test"))
