"""`joules completion`: what a shell needs to complete commands and options."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import Parameter

from powerd_analytics.cli.common import put_out


def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], Parameter(help="The shell that is to complete.")],
    /,
) -> None:
    """Print a script that lets the shell complete commands, options and their choices by the tab key.

    For example, in ~/.bashrc:

      source <(joules completion bash)
    """
    from powerd_analytics.cli.app import app

    put_out(app.generate_completion(shell=shell), None, overwrite=False)
