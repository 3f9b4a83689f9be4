"""Sources ``ipmi`` and ``redfish``: a server's own figure of its power, by its baseboard management controller (BMC).

``ipmi`` runs `ipmitool dcmi power reading` (DCMI 1.5, Get Power Reading). ``redfish`` asks over HTTPS for what DMTF's
schemas call PowerControl[].PowerConsumedWatts (Power, DSP0268) or PowerWatts.Reading (EnvironmentMetrics).
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

from powerd_core.errors import ConfigError, SensorError
from powerd_core.model import Accuracy
from powerd_core.serde import option
from powerd_daemon.sources.polled import (
    Meter,
    MeterAnswer,
    MeterChannel,
    PolledSource,
    Unanswered,
    check_pace,
    micro_code,
)
from powerd_daemon.sources.web import Web, find_code, read_secret

U_GAIN = 0.029
"""±5 %, divided by the root of 3."""
RENEWED_NS = 1_000_000_000
"""How often a BMC renews its figure, taken as once a second where it does not say."""
MOST_W = 1 << 16
"""DCMI tells powers in 16 bits."""
_READING = re.compile(r"Instantaneous power reading:\s*(\d{1,9})\s*Watts")
_STAMP = re.compile(r"IPMI timestamp:\s*(\S.*)")
_STATE = re.compile(r"Power reading state is:\s*(\w+)")


def _accuracy(u_gain: float, specification: str, renewed_ns: int) -> Accuracy:
    origin = (
        f"assumed: {specification} states no accuracy; a value is taken as the mean of {renewed_ns / 1e9:g} s "
        "that ended less than that ago"
    )
    return Accuracy(u_gain, 0.0, 1.0, renewed_ns, renewed_ns, 0, origin)


@dataclass(frozen=True, slots=True)
class IpmiOptions:
    """Without ``host`` it is this machine's own BMC, by /dev/ipmi0, which takes root or a udev rule."""

    host: str = option("", "address of the BMC; empty = this machine's, through the kernel's driver ipmi_devintf")
    user: str = option("", "user of the BMC, for a host")
    password_file: str = option("", "file with the user's password, for a host")
    rate_hz: float = option(1.0, "readings per second")
    timeout_s: float = option(2.0, "an answer that takes longer is a failed reading")
    renewed_s: float = option(1.0, "how often the BMC renews its figure, as its manual says")
    u_gain: float = option(U_GAIN, "relative standard uncertainty; DCMI specifies none")
    line: str = option("chassis", "name of the line")
    device: str = option("node", "name of the device: the whole server")

    def __post_init__(self) -> None:
        check_pace(self.rate_hz, self.timeout_s, self.u_gain)
        if not self.line or not self.device or self.renewed_s <= 0:
            raise ConfigError("line and device must not be empty, and renewed_s must be positive")
        if len({bool(self.host), bool(self.user), bool(self.password_file)}) > 1:
            raise ConfigError("host, user and password_file go together: without a host it is this machine's BMC")


class IpmiMeter(Meter):
    """One BMC, by a run of ipmitool for each reading."""

    def __init__(self, o: IpmiOptions, period_ns: int) -> None:
        remote = ["-I", "lanplus", "-H", o.host, "-U", o.user, "-f", o.password_file] if o.host else []
        self._command = ["ipmitool", *remote, "dcmi", "power", "reading"]
        self.period_ns, self.timeout_ns = period_ns, round(o.timeout_s * 1e9)
        self.detail = {"bmc": o.host or "this machine's", "codes": "microwatts; the BMC tells whole watts"}
        renewed_ns = round(o.renewed_s * 1e9)
        accuracy = _accuracy(o.u_gain, "DCMI 1.5", renewed_ns)
        text = f"chassis power by the BMC {o.host}".rstrip() + " (IPMI/DCMI)"
        self.channels = (MeterChannel(o.line, o.device, text, accuracy, age_ns=renewed_ns),)

    def ask(self) -> Iterable[MeterAnswer]:
        return (self.parse(self._run()),)

    def parse(self, text: str) -> MeterAnswer:
        """What ipmitool printed. Raises `Unanswered`."""
        reading, state = _READING.search(text), _STATE.search(text)
        if reading is None:
            raise Unanswered(f"ipmitool printed no power reading: {text.strip()[:80]!r}")
        stamp = _STAMP.search(text)
        is_known = (state is None or state[1] == "activated") and 0 < int(reading[1]) < MOST_W
        # A BMC that runs takes power: 0 W is what one says that does not know.
        codes = {self.channels[0].line: micro_code(Decimal(reading[1]))} if is_known else {}
        return MeterAnswer(codes, stamp=stamp[1].strip() if stamp and is_known else None)

    def _run(self) -> str:
        try:
            done = subprocess.run(
                self._command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=self.timeout_ns / 1e9,
                check=False,
                text=True,
                errors="replace",
            )
        except FileNotFoundError as error:
            raise SensorError(
                "the source 'ipmi' needs the program ipmitool: install the package of that name"
            ) from error
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Unanswered(f"ipmitool gives no answer: {error}") from error
        if done.returncode:
            why = done.stderr.strip().splitlines()
            raise Unanswered(f"ipmitool failed with status {done.returncode}: {why[-1] if why else 'it says nothing'}")
        return done.stdout


class IpmiSource(PolledSource):
    """One line ``chassis``: the instantaneous power reading of a BMC by IPMI's DCMI extension, in whole watts."""

    Options: ClassVar[type[IpmiOptions]] = IpmiOptions
    options: IpmiOptions

    def find_meters(self) -> Sequence[Meter]:
        o = self.options
        if o.password_file and not Path(o.password_file).is_file():
            raise ConfigError(f"password_file {o.password_file} is no file")
        meter = IpmiMeter(o, self.period_ns)
        for answer in meter.ask():
            if not answer.codes:
                raise SensorError("the BMC does not measure its power now (DCMI power reading): is it activated there?")
        return (meter,)


@dataclass(frozen=True, slots=True)
class RedfishOptions:
    """Asked rarely: a BMC is a slow computer, and renews its figure every few seconds."""

    url: str = field(metadata={"help": "address of the BMC, such as https://bmc.example.org"})
    user: str = option("", "user of the BMC; read access is enough")
    password_file: str = option("", "file with the user's password")
    password_env: str = option("", "environment variable with the user's password, instead of a file")
    certificate: str = option(
        "", "file with the BMC's certificate, or its authority's; empty = the system's authorities"
    )
    check_name: bool = option(True, "whether the certificate must name the BMC's host; its own often does not")
    chassis: str = option("", "Id of the chassis; empty = the first that tells its power")
    rate_hz: float = option(0.5, "readings per second")
    timeout_s: float = option(2.0, "an answer that takes longer is a failed reading")
    renewed_s: float = option(5.0, "how often the BMC renews its figure, as its manual says")
    u_gain: float = option(U_GAIN, "relative standard uncertainty; the schemas specify none")
    line: str = option("chassis", "name of the line")
    device: str = option("node", "name of the device: the whole server")

    def __post_init__(self) -> None:
        check_pace(self.rate_hz, self.timeout_s, self.u_gain)
        if not self.url or not self.line or not self.device or self.renewed_s <= 0:
            raise ConfigError("url, line and device must not be empty, and renewed_s must be positive")
        if self.password_file and self.password_env:
            raise ConfigError("password_file and password_env exclude each other")
        if not self.check_name and not self.certificate:
            raise ConfigError("check_name = false needs 'certificate': else any host could answer")


class RedfishMeter(Meter):
    """The power of one chassis, at one path of the service."""

    def __init__(self, o: RedfishOptions, period_ns: int, web: Web, path: str, name: str) -> None:
        self._web, self._path = web, path
        self.period_ns, self.timeout_ns = period_ns, round(o.timeout_s * 1e9)
        self.detail = {"bmc": web.url, "path": path, "chassis": name, "codes": "microwatts"}
        renewed_ns = round(o.renewed_s * 1e9)
        accuracy = _accuracy(o.u_gain, "Redfish (DSP0268)", renewed_ns)
        self.channels = (
            MeterChannel(o.line, o.device, f"power of chassis {name} by Redfish", accuracy, age_ns=renewed_ns),
        )

    def ask(self) -> Iterable[MeterAnswer]:
        code = chassis_code(self._web.get(self._path))
        return (MeterAnswer({} if code is None else {self.channels[0].line: code}),)


def chassis_code(document: Any) -> int | None:
    """Microwatts of a resource Power or EnvironmentMetrics; None where it tells none now.

    The first member of PowerControl is the whole chassis; others are its parts.
    """
    for path in (("PowerControl", 0, "PowerConsumedWatts"), ("PowerWatts", "Reading")):
        code = find_code(document, path)
        if code is not None:
            return code or None  # a BMC that answers takes power: 0 W is what one says that does not know
    return None


class RedfishSource(PolledSource):
    """One line ``chassis``: the power of a server as its BMC tells it by Redfish."""

    Options: ClassVar[type[RedfishOptions]] = RedfishOptions
    options: RedfishOptions

    def find_meters(self) -> Sequence[Meter]:
        o = self.options
        password = read_secret(o.password_file, o.password_env)
        web = Web(o.url, o.timeout_s, user=o.user, password=password, certificate=o.certificate, names=o.check_name)
        members = web.get("/redfish/v1/Chassis")
        members = members.get("Members", []) if isinstance(members, dict) else []
        paths = [m["@odata.id"] for m in members if isinstance(m, dict) and isinstance(m.get("@odata.id"), str)]
        names = [path.rstrip("/").rpartition("/")[2] for path in paths]
        if o.chassis and o.chassis not in names:
            raise ConfigError(f"{o.url} has no chassis {o.chassis!r}: there are {', '.join(names) or 'none'}")
        for path, name in zip(paths, names, strict=True):
            if o.chassis in ("", name) and (resource := self._resource(web, path)):
                return (RedfishMeter(o, self.period_ns, web, resource, name),)
        raise SensorError(f"{o.url}: no chassis tells its power (of {', '.join(names) or 'none'})")

    @staticmethod
    def _resource(web: Web, chassis: str) -> str:
        """The path at which a chassis tells its power; empty for none."""
        document = web.get(chassis)
        for link in ("EnvironmentMetrics", "Power"):
            resource = document.get(link) if isinstance(document, dict) else None
            path = resource.get("@odata.id") if isinstance(resource, dict) else None
            if isinstance(path, str) and chassis_code(web.get(path)) is not None:
                return path
        return ""
