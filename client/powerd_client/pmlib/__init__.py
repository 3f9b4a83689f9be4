"""pmlib's way of working, with counters and lines, on powerd. docs/howto/pmlib.md has the old calls beside the new."""

from powerd_client.pmlib.counters import *  # noqa: F403
from powerd_client.pmlib.counters import __all__ as __all__
