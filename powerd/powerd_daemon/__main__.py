"""``python -m powerd_daemon`` is `powerd`."""

import sys

from powerd_daemon.start import main

sys.exit(main())
