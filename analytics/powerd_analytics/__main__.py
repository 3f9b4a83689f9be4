"""`python -m powerd_analytics` is `joules`."""

from powerd_analytics.cli import main

main()
