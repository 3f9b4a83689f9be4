"""``python -m powerd_daemon`` is `powerd`."""

import sys

from powerd_daemon.cli import main

if __name__ == "__main__":
    sys.exit(main())
