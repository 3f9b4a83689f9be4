"""An example for each command's --help."""

from __future__ import annotations

_EXAMPLES = {
    "powerd": "powerd run --sim",
    "powerd run": "powerd run --config powerd.toml --spool /var/lib/powerd/spool",
    "powerd sources": "powerd sources",
    "powerd describe": "powerd describe tcp://board:7360",
    "powerd stats": "powerd stats tcp://board:7360 --json",
    "powerd config-check": "powerd config-check powerd.toml",
    "powerd plan": "powerd plan powerd.toml --load gpu0=250",
    "powerd scan": "powerd scan 2 --toml",
    "powerd check": "powerd check powerd.toml",
    "powerd calibrate": "powerd calibrate powerd.toml --zero --temperature-c 23 --out calibration.toml",
    "powerd configure": "powerd configure tcp://board:7360 powerd.toml",
    "powerd completion": "source <(powerd completion bash)",
    "powerd keys": "powerd keys list",
    "powerd keys server": "powerd keys server --address board:7360",
    "powerd keys client": "powerd keys client --name lab",
    "powerd keys allow": "powerd keys allow lab 'CLIENT_KEY' --role control",
    "powerd keys revoke": "powerd keys revoke lab",
    "powerd keys trust": "powerd keys trust board:7360 'BOARD_KEY'",
    "powerd keys list": "powerd keys list --keys /var/lib/powerd/keys",
}


def example_of(command: str) -> str | None:
    """The last line of the command's help, or None for a command that has no example."""
    example = _EXAMPLES.get(command)
    return None if example is None else f"For example: {example}"
