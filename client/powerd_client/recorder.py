"""The recorder: a process beside the training that receives, journals, and at the end writes the run file.

It is started by `powerd_client.recording` with a JSON object on its standard input, answers with JSON objects on its
standard output, one a line, and ends when it is told to stop or when its parent is gone.
"""

from __future__ import annotations

import signal
import sys

from powerd_client.guardian import guard
from powerd_client.job import read_job


def main() -> int:
    """Entry of the recorder process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    job = read_job()
    return 2 if job is None else guard(job)


if __name__ == "__main__":
    sys.exit(main())
