"""`joules` inside the test's process."""

import pytest

from powerd_analytics import cli


def joules(capsys, *arguments):
    """Exit status, what it printed, and what it said on stderr."""
    with pytest.raises(SystemExit) as stopped:
        cli.main([str(a) for a in arguments])
    out, err = capsys.readouterr()
    return stopped.value.code, out, err


def refused(capsys, *arguments):
    """The one line of a refusal."""
    code, out, err = joules(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("joules: ")
    assert err.count("\n") == 1
    return err
