"""What the role control may do to a running powerd: replace its configuration, and store calibrations.

Both end in a new start with a new epoch, for descriptions are frozen. What does not start is taken back.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from powerd_core.errors import ConfigError, PowerdError
from powerd_core.serde import from_document, to_document
from powerd_core.wire import Message, encode
from powerd_daemon.access import Role, Subject
from powerd_daemon.calibration_remote import Measured, store
from powerd_daemon.clock import Clock
from powerd_daemon.config import Config, ServerConfig, parse_config
from powerd_daemon.log import Log
from powerd_daemon.remote_config import check_remote
from powerd_daemon.textfile import read_text


@dataclass(frozen=True, slots=True)
class Change:
    """What is tried with the next start."""

    text: str
    apply: Callable[[], None]
    """Makes it last, when it has started."""
    undo: Callable[[], None]
    """Removes what was prepared, when it has not."""


class Control:
    """Answers *configure* and *calibrate* for the powerd that runs with the configuration file ``file``.

    ``complete`` adds what the command line says to a configuration. Raises `ConfigError` for a file that is none.
    """

    def __init__(self, file: Path, complete: Callable[[Config], Config], clock: Clock, log: Log) -> None:
        self.file = file.absolute()
        self.text = self._read()
        self.outcome = ""
        """Why the last change was not taken over; empty when it was."""
        self._complete = complete
        self._clock = clock
        self._log = log
        self._change: Change | None = None

    @property
    def is_restarting(self) -> bool:
        """Whether powerd is to end its sources and start again with `config`."""
        return self._change is not None

    def config(self, served: ServerConfig | None = None) -> Config:
        """What to start with. Sockets stay where they were ``served``, so that clients find them again."""
        text = self._change.text if self._change else self.text
        made = self._complete(parse_config(text, str(self.file)))
        if served is None:
            return made
        return replace(made, server=replace(made.server, listen=served.listen, data=served.data, clock=served.clock))

    def has_started(self) -> None:
        """The change that was tried works."""
        change, self._change = self._change, None
        if change is None:
            return
        try:
            change.apply()
        except PowerdError as error:
            self.outcome = f"it runs, but only until powerd starts again: {error}"
            self._log.complain(self.outcome)
        self.text = change.text

    def take_back(self, error: Exception) -> bool:
        """The change that was tried does not start, for ``error``; False when there was none."""
        change, self._change = self._change, None
        if change is None:
            return False
        self.outcome = f"it does not start, and the previous one runs again: {error}"
        self._log.complain(f"the change that a client asked for is taken back: {error}")
        try:
            change.undo()
        except (PowerdError, OSError) as failure:
            # What runs again does not depend on it: that is no reason to end.
            self._log.complain(f"what was prepared for the change could not be removed: {failure}")
        return True

    def subjects(self, epoch: int) -> dict[str, Subject]:
        """The two control messages."""

        def guarded(answer: Callable[[Mapping[str, object]], Message]) -> Callable[[Mapping[str, object]], bytes]:
            def answered(body: Mapping[str, object]) -> bytes:
                try:
                    if self.is_restarting:
                        raise ConfigError("this powerd is just starting again: ask once more in a moment")
                    made = answer(body)
                except PowerdError as error:
                    made = Message("error", {"message": str(error)})
                return encode(replace(made, epoch=epoch))

            return answered

        return {
            "configure": Subject(Role.CONTROL, guarded(self._configure)),
            "calibrate": Subject(Role.CONTROL, guarded(self._calibrate)),
        }

    def _configure(self, body: Mapping[str, object]) -> Message:
        if "text" not in body:
            return Message("configuration", {"file": str(self.file), "text": self.text, "outcome": self.outcome})
        text, name = body["text"], body.get("name")
        if not isinstance(text, str) or not isinstance(name, str):
            raise ConfigError("a configuration is sent as 'text' with its 'name'")
        config = check_remote(text, name[:200], self.text)
        self._refuse_edited()
        new = self._beside(".new")
        _write(new, text)
        self.outcome = ""
        self._change = Change(text, lambda: self._keep(new), lambda: new.unlink(missing_ok=True))
        self._log.note(
            f"powerd: a client sent a configuration of {len(config.sources)} sources: starting again with it"
        )
        return Message("configuration", {"accepted": True})

    def _refuse_edited(self) -> None:
        if self._read() != self.text:
            raise ConfigError(
                f"{self.file} was changed on the board since powerd started with it: start powerd again there first"
            )

    def _keep(self, new: Path) -> None:
        _write(self._beside(".previous.new"), self.text)
        try:
            self._beside(".previous.new").replace(self._beside(".previous"))
            new.replace(self.file)
        except OSError as error:
            raise ConfigError(f"{self.file}: cannot be written: {error.strerror}") from error

    def _read(self) -> str:
        return read_text(self.file, "there is no such configuration file")

    def _beside(self, suffix: str) -> Path:
        return self.file.with_name(self.file.name + suffix)

    def _calibrate(self, body: Mapping[str, object]) -> Message:
        asked = from_document(Measured, {k: v for k, v in body.items() if k not in ("version", "client")})
        _refuse_strange(asked)
        config = self._complete(parse_config(self.text, str(self.file)))
        records, undo = store(config, asked, self._clock)
        self.outcome = ""
        self._change = Change(self.text, lambda: None, undo)
        self._log.note(f"powerd: a client calibrated {len(records)} lines: starting again with it")
        return Message("calibration", {"records": to_document([r for _, r in records]), "file": str(records[0][0])})


def _refuse_strange(asked: Measured) -> None:
    """JSON's numbers may be anything."""
    numbers = [asked.reference, asked.u, asked.temperature_c]
    numbers += [x for m in asked.lines for x in (m.mean_a, m.spread_a, m.bus_v)]
    if not all(map(math.isfinite, numbers)) or asked.quantity not in ("A", "W"):
        raise ConfigError("a calibration is made of finite numbers, in A or W")
    if asked.reference < 0 or not 0 <= asked.u < 1 or any(m.count < 2 or m.spread_a < 0 for m in asked.lines):
        raise ConfigError("a calibration's reference, uncertainty, spread and count cannot be what was sent")


def _write(path: Path, text: str) -> None:
    """A new file beside the one that it will replace, on the disk when this returns."""
    try:
        with suppress(FileNotFoundError):
            path.unlink()
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(descriptor)
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be written: {error.strerror}: powerd may not change its configuration here"
        ) from error
