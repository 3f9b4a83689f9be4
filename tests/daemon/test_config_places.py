"""Errors in a configuration name the file's line."""

import pytest

from powerd_core.errors import ConfigError
from powerd_daemon.config import parse_config

FIRST = '# a comment\n[server]\nblock_ms = 20\n\n[[source]]\nkind = "sim"\nname = "a"\n'


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (FIRST + "rate = 5\n", 8),
        (FIRST + "[source.training]\nforward = 3\n", 9),
        (FIRST + '[[source]]\nkind = "sim"\n\nname = "b"\nseed = "x"\n', 12),
        (FIRST + '[[source]]\nname = "b"\n', 8),
        (FIRST + '[[source]]\nkind = "simm"\n', 8),
        (FIRST.replace("block_ms = 20", 'block_ms = "x"'), 3),
        (FIRST + '[[device]]\nname = "d"\nfeed = ["x"]\n', 10),
        (FIRST + "[sources]\n", 8),
        (FIRST + "seed = 3\nrate_hz = 5000\nscl_hz = 4e5\n", 9),
        (FIRST + 'seed = 3\nfault_every_s = -1\nfaults = ["x"]\n', 9),
        (FIRST + 'adapter = "single"\npeak_w = 1\n', 9),
        (FIRST + "[[source.sensors]]\nname = 'a'\naddress = 0x40\n[[source.sensors]]\nname = 'b'\naddress = 0x40\n", 5),
    ],
)
def test_the_line_of_what_is_wrong(text, line):
    with pytest.raises(ConfigError) as caught:
        parse_config(text, "powerd.toml")
    assert str(caught.value).startswith("powerd.toml: ")
    assert str(caught.value).endswith(f"(line {line})")


def test_what_has_no_line_is_told_without():
    with pytest.raises(ConfigError, match=r"nothing to measure$"):
        parse_config("[server]\n", "powerd.toml")
