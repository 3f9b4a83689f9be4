"""What a configuration that comes from afar may change.

Whoever has the role control may change what is measured and how, but neither who may reach powerd nor which files of
the board it touches: otherwise a client's key would be worth as much as a login there.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from powerd_core.errors import ConfigError
from powerd_core.serde import parse_toml
from powerd_daemon.config import Config, ServerConfig, parse_config
from powerd_daemon.plan_config import refuse_text

SERVER_OPTIONS = ("board", "ring_mib", "block_ms")
"""The options of ``[server]`` that may be changed from afar. All others may only be repeated."""

FILE_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "ina": ("bus", "calibration"),
    "node": ("port",),
    "wt310e": ("port",),
    "serial-line": ("port",),
    "rapl": ("root",),
    "sim": ("calibration",),
    "replay": ("path",),
    "nvml": (),
    "cpu-model": (),
}
"""The options of our own kinds of source that name a file, a directory or a device file."""

_SENSOR_DEVICE = re.compile(
    r"/dev/(i2c-\d{1,4}|tty(ACM|USB|S|AMA|O)\d{1,4}|usbtmc\d{1,4}|serial/by-(id|path)/\w[\w.:+-]{0,200})"
)
"""Device files that are sensors' and nothing else's."""


def check_remote(text: str, origin: str, running: str) -> Config:
    """The configuration in ``text``, checked as `powerd config-check` and `powerd run` do, and for what it changes of
    the ``running`` one. ``origin`` names it in errors. Raises `ConfigError`.
    """
    try:
        new, old = parse_toml(text), parse_toml(running)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{origin}: not valid TOML: {error}") from error
    # First of all: even looking at a configuration opens the files and modules that it names.
    known = _tables(old)
    for number, table in enumerate(_tables(new), 1):
        _check_source(table, known, f"{origin}: [[source]] {number}")
    refuse_text(text, origin)
    config = parse_config(text, origin)
    before = parse_config(running, "the running configuration").server
    for field in fields(ServerConfig):
        name = field.name
        if name not in SERVER_OPTIONS and getattr(config.server, name) != getattr(before, name):
            raise ConfigError(
                f"{origin}: [server]: option {name!r} can only be changed on the board itself "
                f"(it is {getattr(before, name)!r} there)"
            )
    return config


def _tables(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    found = document.get("source", [])
    return [t for t in found if isinstance(t, dict)] if isinstance(found, list) else []


def _check_source(table: Mapping[str, Any], known: list[dict[str, Any]], where: str) -> None:
    kind = table.get("kind")
    if not isinstance(kind, str):
        return  # no kind at all: told by the checks that follow
    if kind not in FILE_OPTIONS:
        if table not in known:
            raise ConfigError(
                f"{where}: a source of kind {kind!r} can only be added or changed on the board itself: "
                "what its options do there is not known"
            )
        return
    for name in FILE_OPTIONS[kind]:
        value = table.get(name)
        if (
            not isinstance(value, str)
            or not value
            or any(t.get("kind") == kind and t.get(name) == value for t in known)
        ):
            continue
        if name in ("bus", "port") and _SENSOR_DEVICE.fullmatch(value):
            continue
        raise ConfigError(
            f"{where} ({kind}): option {name!r}: {value[:200]!r} can only be given on the board itself: from afar, "
            "only sensors' device files and files that the running configuration names already"
        )
