"""Makes the helpers in ``support`` and the daemon's simulated hardware importable."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
for folder in (HERE / "support", HERE.parent / "daemon" / "support"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
