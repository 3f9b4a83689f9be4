import sys

from powerd_control.helper import main

sys.exit(main())
