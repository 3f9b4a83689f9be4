"""Settings of every test."""

from hypothesis import HealthCheck, settings

# How long an example takes says how busy the machine is. What else is set (on CI: the same examples every time) stays.
settings.register_profile("powerd", parent=settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("powerd")
