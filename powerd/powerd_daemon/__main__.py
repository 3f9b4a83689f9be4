"""``python -m powerd_daemon`` is `powerd`."""

import sys

from powerd_daemon.cli import main

sys.exit(main())
