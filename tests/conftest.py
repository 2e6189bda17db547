"""What all tests share: the Hypothesis profiles, in this one place.

``HYPOTHESIS_PROFILE`` chooses: ``quick`` (the default, for every run),
``ci`` (the pure core's tests, once per CI run), ``nightly`` (hours).
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# No deadline and no complaint about slowness: a test must not depend on the
# speed of the machine.  A failure prints the blob that replays it anywhere.
EVERY = settings(
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)

settings.register_profile("quick", EVERY, max_examples=50, stateful_step_count=40)
settings.register_profile("ci", EVERY, max_examples=200, stateful_step_count=60)
settings.register_profile("nightly", EVERY, max_examples=20_000, stateful_step_count=150)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))
