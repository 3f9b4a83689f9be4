"""Sources ``plug`` and ``mqtt``: smart plugs that measure, asked over HTTP or heard through an MQTT broker.

What a model answers is a row of `MODELS`. Shelly: Gen2 RPC `Switch.GetStatus` and its topic ``status/switch:0``, Gen1
``/status``. Tasmota: command ``Status 8`` and its topic ``tele/.../SENSOR``. Zigbee2MQTT: what its devices expose.
The one importer of paho-mqtt.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, ClassVar, Literal
from urllib.parse import urlencode

from powerd_core.errors import ConfigError, SensorError
from powerd_core.model import Accuracy
from powerd_core.serde import option
from powerd_core.text import needs_extra
from powerd_daemon.clock import Clock
from powerd_daemon.sources.base import Start
from powerd_daemon.sources.polled import ENERGY, Meter, MeterAnswer, MeterChannel, PolledSource, Unanswered, check_pace
from powerd_daemon.sources.web import Web, find_code, parse_json, read_secret

Keys = tuple[str | int, ...]
"""Keys and positions in JSON. `OUTPUT` stands for the number of the plug's output."""
OUTPUT = -1
RENEWED_NS = 1_000_000_000
"""Plugs renew their figure about once a second."""
LOOK_NS = 50_000_000
WATT_HOURS, KILOWATT_HOURS, WATT_MINUTES = "3600", "3.6e6", "60"


@dataclass(frozen=True, slots=True)
class Model:
    """What one family of plugs answers. Of MQTT the paths are those of a message on ``topic``."""

    power: Keys
    energy: Keys
    energy_scale: str
    """Joules in one of the counter's unit."""
    energy_step_j: float
    question: str = ""
    """Path of the URL; ``{output}`` is the output's number. Empty for what is asked by MQTT alone."""
    envelope: str = ""
    """Where in an answer that stands which a message by itself is."""
    stamp: Keys = ()
    topic: str = ""
    """How the topic looks; empty for what is asked over HTTP alone."""
    user_in_url: bool = False


MODELS = {
    "shelly": Model(
        ("apower",), ("aenergy", "total"), WATT_HOURS, 3.6,
        "/rpc/Switch.GetStatus?id={output}", "result", topic="shellyplugsg3-0123/status/switch:0",
    ),
    "shelly-gen1": Model(
        ("meters", OUTPUT, "power"), ("meters", OUTPUT, "total"), WATT_MINUTES, 60.0, "/status",
    ),
    "tasmota": Model(
        ("ENERGY", "Power", OUTPUT), ("ENERGY", "Total", OUTPUT), KILOWATT_HOURS, 3600.0,
        "/cm?cmnd=Status%208", "StatusSNS", ("Time",), "tele/tasmota_0123/SENSOR", user_in_url=True,
    ),
    "zigbee2mqtt": Model(("power",), ("energy",), KILOWATT_HOURS, 36_000.0, topic="zigbee2mqtt/my-plug"),
}  # fmt: skip
ORIGIN = "assumed: makers of plugs state no limit for their power; compare it with a better meter once"


def channels_of(o: PlugOptions | MqttOptions, what: str, *, look_ns: int = 0) -> tuple[MeterChannel, ...]:
    """The lines of a plug: its power, and its own counter of energy."""
    window = f"; a value is taken as the mean of {RENEWED_NS / 1e9:g} s that ended less than that ago"
    centre_ns = RENEWED_NS + look_ns
    power = Accuracy(o.u_gain, o.u_offset_w, o.step_w, RENEWED_NS, centre_ns, 0, ORIGIN + window)
    # A counter moves in its steps, and is renewed when the plug likes.
    counted = Accuracy(o.u_gain, o.u_offset_w, centre_ns=centre_ns, origin=ORIGIN, step_j=MODELS[o.model].energy_step_j)
    return (
        MeterChannel(o.line, o.device, f"active power at {what}", power, age_ns=RENEWED_NS),
        MeterChannel(f"{o.line}_energy", o.device, f"energy counter of {what}", counted, ENERGY),
    )


def codes_of(o: PlugOptions | MqttOptions, document: Any) -> dict[str, int]:
    """What a message says, by line. A plug that is switched off draws 0 W, and says so."""
    model, codes = MODELS[o.model], {}
    document = _message(model, document)
    for line, keys, scale in ((o.line, model.power, "1"), (f"{o.line}_energy", model.energy, model.energy_scale)):
        code = find_code(document, [o.output if key == OUTPUT else key for key in keys], scale)
        if code is not None:
            codes[line] = code
    return codes


def _message(model: Model, document: Any) -> Any:
    return document.get(model.envelope, document) if isinstance(document, dict) else document


def _stamp(model: Model, document: Any) -> object:
    document = _message(model, document)
    for key in model.stamp:
        document = document.get(key) if isinstance(document, dict) else None
    return document if model.stamp else None


@dataclass(frozen=True, slots=True)
class PlugOptions:
    """A plug answers a few times a second, and has a new figure about once."""

    url: str = field(metadata={"help": "address of the plug, such as http://192.168.1.20"})
    model: Literal["shelly", "shelly-gen1", "tasmota"] = option(
        "shelly", "what the plug speaks; shelly = Gen2 and later"
    )
    output: int = option(0, "number of the plug's output, from 0 on")
    user: str = option("", "user of the plug, where it asks for one (not shelly: see the reference)")
    password_file: str = option("", "file with the user's password")
    password_env: str = option("", "environment variable with the user's password, instead of a file")
    rate_hz: float = option(1.0, "readings per second")
    timeout_s: float = option(0.5, "an answer that takes longer is a failed reading")
    u_gain: float = option(0.02, "relative standard uncertainty")
    u_offset_w: float = option(0.5, "standard uncertainty of the zero in watts")
    step_w: float = option(0.1, "smallest step of the power that the plug tells, in watts")
    line: str = option("plug", "name of the power's line; the energy's is <line>_energy")
    device: str = option("node", "name of the device behind the plug")

    def __post_init__(self) -> None:
        check_pace(self.rate_hz, self.timeout_s, self.u_gain)
        _check(self.line, self.device, self.password_file, self.password_env, self.u_offset_w, self.step_w)
        if not self.url or self.output < 0:
            raise ConfigError("url must not be empty, and output not negative")
        if self.user and self.model == "shelly":
            raise ConfigError(
                "a Shelly of Gen2 asks for a digest that Python does not make: switch its authentication off"
            )


def _check(line: str, device: str, file: str, variable: str, u_offset_w: float, step_w: float) -> None:
    if not line or not device:
        raise ConfigError("line and device must not be empty")
    if file and variable:
        raise ConfigError("password_file and password_env exclude each other")
    if min(u_offset_w, step_w) < 0:
        raise ConfigError("u_offset_w and step_w must not be negative")


class HttpPlug(Meter):
    """One output of a plug that answers over HTTP."""

    def __init__(self, o: PlugOptions, period_ns: int, password: str) -> None:
        """Asks once. Raises `Unanswered` where it tells neither power nor energy."""
        self._o, self._model = o, MODELS[o.model]
        # Tasmota takes user and password in the question alone (its docs, Commands, "With web requests").
        self._secrets = {"user": o.user, "password": password} if self._model.user_in_url and o.user else {}
        self._web = Web(o.url, o.timeout_s, user="" if self._secrets else o.user, password=password)
        self.period_ns, self.timeout_ns = period_ns, round(o.timeout_s * 1e9)
        self.detail = {
            "model": o.model,
            "url": o.url,
            "output": o.output,
            "codes": "micro-units of what the plug tells",
        }
        self.channels: tuple[MeterChannel, ...] = channels_of(o, f"the plug {o.url}")
        told = self._read().codes
        self.channels = tuple(c for c in self.channels if c.line in told)
        if not told:
            raise Unanswered(f"{o.url} answers, but tells no power of output {o.output}: is it a plug that measures?")

    def _read(self) -> MeterAnswer:
        question = self._model.question.format(output=self._o.output)
        document = self._web.get(question + (f"&{urlencode(self._secrets)}" if self._secrets else ""))
        return MeterAnswer(codes_of(self._o, document), stamp=_stamp(self._model, document))

    def ask(self) -> Iterable[MeterAnswer]:
        return (self._read(),)


class PlugSource(PolledSource):
    """Lines ``plug`` (watts) and ``plug_energy`` (the plug's own counter, where it has one) of a Shelly or Tasmota that
    is asked over HTTP."""

    Options: ClassVar[type[PlugOptions]] = PlugOptions
    options: PlugOptions

    def find_meters(self) -> Sequence[Meter]:
        return (
            HttpPlug(self.options, self.period_ns, read_secret(self.options.password_file, self.options.password_env)),
        )


@dataclass(frozen=True, slots=True)
class MqttOptions:
    """A message is timed by its arrival. ``every_s`` is what the plug was told (Tasmota: TelePeriod, from 10 s on)."""

    topic: str = field(metadata={"help": "topic of the plug's messages, such as tele/tasmota_0123/SENSOR"})
    model: Literal["shelly", "tasmota", "zigbee2mqtt"] = option("tasmota", "what the plug speaks")
    broker: str = option("localhost", "host of the MQTT broker")
    port: int = option(1883, "the broker's port; 8883 is that of TLS")
    tls: bool = option(False, "speak TLS with the broker")
    certificate: str = option("", "with TLS: file of the authority to trust; empty = the system's authorities")
    user: str = option("", "user of the broker, where it asks for one")
    password_file: str = option("", "file with the user's password")
    password_env: str = option("", "environment variable with the user's password, instead of a file")
    ask_topic: str = option("", "topic to which 'ask' is sent every every_s, for plugs that speak only of changes")
    ask: str = option("", "what is sent to ask_topic, see docs/reference/sources.md")
    every_s: float = option(10.0, "usual distance of the plug's messages")
    output: int = option(0, "number of the plug's output, from 0 on (tasmota)")
    u_gain: float = option(0.02, "relative standard uncertainty")
    u_offset_w: float = option(0.5, "standard uncertainty of the zero in watts")
    step_w: float = option(1.0, "smallest step of the power that the plug tells, in watts")
    line: str = option("plug", "name of the power's line; the energy's is <line>_energy")
    device: str = option("node", "name of the device behind the plug")

    def __post_init__(self) -> None:
        _check(self.line, self.device, self.password_file, self.password_env, self.u_offset_w, self.step_w)
        check_pace(1.0, u_gain=self.u_gain)
        if not self.topic or set(self.topic) & set("+#"):
            raise ConfigError("topic must be that of one plug, without + and #")
        if not 0.1 <= self.every_s <= 900 or self.output < 0 or not 1 <= self.port <= 65535:
            raise ConfigError("every_s must be from 0.1 to 900, port from 1 to 65535, and output not negative")
        if bool(self.ask) != bool(self.ask_topic):
            raise ConfigError("ask and ask_topic go together")


class MqttPlug(Meter):
    """One plug behind a broker. Messages are taken from the socket at each look: nothing runs beside it."""

    def __init__(self, o: MqttOptions, clock: Clock, password: str, mqtt: Any) -> None:
        """Connects. Raises `SensorError`."""
        self._o, self._clock, self._mqtt = o, clock, mqtt
        self._broker = f"{o.broker}:{o.port}"
        self._arrived: list[MeterAnswer] = []
        self._refusal = ""
        self._is_subscribed = False
        self._ask_ns = self._looked_ns = clock.now_ns()
        self._is_late = False
        self.retained = 0
        """Messages that the broker had kept from before."""
        self.period_ns = round(o.every_s * 1e9)
        self.detail = {"model": o.model, "broker": self._broker, "topic": o.topic, "ask": o.ask}
        self.channels = channels_of(o, f"the plug behind {o.topic}", look_ns=3 * LOOK_NS)
        self._client = client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2)
        client.on_connect, client.on_subscribe = self._on_connect, self._on_subscribe
        client.on_message = self._on_message
        if o.user:
            client.username_pw_set(o.user, password)
        try:
            if o.tls:
                client.tls_set(ca_certs=o.certificate or None)
            client.connect(o.broker, o.port, keepalive=60)
        except (OSError, ValueError) as error:
            raise SensorError(f"the MQTT broker {self._broker} cannot be reached: {error}") from error

    def ask(self) -> Iterable[MeterAnswer]:
        if self._o.ask and self._is_subscribed and self._clock.now_ns() >= self._ask_ns:
            self._ask_ns = max(self._ask_ns + self.period_ns, self._clock.now_ns())
            self._client.publish(self._o.ask_topic, self._o.ask)
        before_ns, self._looked_ns = self._looked_ns, self._clock.now_ns()
        self._is_late = self._looked_ns - before_ns > 3 * LOOK_NS
        try:
            code = self._client.loop(timeout=0.0)
        except (OSError, ValueError) as error:
            raise SensorError(f"the connection with the MQTT broker {self._broker} broke: {error}") from error
        if self._refusal:
            raise SensorError(f"the MQTT broker {self._broker} refuses: {self._refusal}")
        if code != self._mqtt.MQTT_ERR_SUCCESS:
            raise SensorError(
                f"the connection with the MQTT broker {self._broker} broke: {self._mqtt.error_string(code)}"
            )
        arrived, self._arrived = self._arrived, []
        return arrived

    def close(self) -> None:
        with suppress(OSError, ValueError):
            self._client.disconnect()

    def _on_connect(self, client: Any, _data: Any, _flags: Any, reason: Any, _properties: Any) -> None:
        if reason.is_failure:
            self._refusal = str(reason)
        else:
            client.subscribe(self._o.topic)

    def _on_subscribe(self, _client: Any, _data: Any, _id: Any, reasons: Any, _properties: Any) -> None:
        refusals = [str(reason) for reason in reasons if reason.is_failure]
        self._refusal = f"the topic {self._o.topic}: {refusals[0]}" if refusals else ""
        self._is_subscribed = not refusals

    def _on_message(self, _client: Any, _data: Any, message: Any) -> None:
        if message.retain:
            # What the broker kept is of a moment that nobody knows.
            self.retained += 1
            return
        codes: dict[str, int] = {}
        stamp: object = None
        with suppress(Unanswered):
            document = parse_json(message.payload)
            codes = codes_of(self._o, document)
            stamp = _stamp(MODELS[self._o.model], document)
        self._arrived.append(MeterAnswer(codes, self._clock.now_ns(), stamp, is_late=self._is_late))


class MqttSource(PolledSource):
    """Lines ``plug`` (watts) and ``plug_energy`` (the plug's own counter) of a plug that sends its figures to an MQTT
    broker. Tests give ``mqtt`` a module of their own."""

    Options: ClassVar[type[MqttOptions]] = MqttOptions
    options: MqttOptions

    def __init__(self, options: MqttOptions, start: Start, mqtt: Any = None) -> None:
        super().__init__(options, start)
        self._mqtt = mqtt

    @property
    def period_ns(self) -> int:
        return LOOK_NS

    def health(self) -> dict[str, object]:
        return super().health() | {"retained": sum(m.retained for m in self._meters if isinstance(m, MqttPlug))}

    def find_meters(self) -> Sequence[Meter]:
        o = self.options
        try:
            mqtt = self._mqtt or import_module("paho.mqtt.client")
        except ImportError as error:
            raise SensorError(f"the source 'mqtt' needs paho-mqtt: {needs_extra('mqtt')}") from error
        return (MqttPlug(o, self.start.clock, read_secret(o.password_file, o.password_env), mqtt),)
