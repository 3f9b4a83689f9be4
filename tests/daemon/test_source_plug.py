"""Smart plugs over HTTP, from a real server, and over MQTT, from a fake of the library and from a real broker."""

import json
import shutil
import socket
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from conformance import EPOCH, Opened, SourceConformance
from web_meter import WebMeter

from powerd_core.errors import ConfigError, SensorError
from powerd_core.model import Flag
from powerd_daemon.clock import SystemClock
from powerd_daemon.sources.base import Start
from powerd_daemon.sources.plug import MqttOptions, MqttSource, PlugOptions, PlugSource
from powerd_daemon.sources.polled import LOST
from powerd_daemon.sources.sim.bus import VirtualClock

S = 1_000_000_000
SHELLY, GEN1, TASMOTA = "/rpc/Switch.GetStatus?id=0", "/status", "/cm?cmnd=Status%208"
MOSQUITTO = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin")


def shelly(watts=131.7, watt_hours=2041.305):
    return {
        "id": 0, "source": "init", "output": True, "apower": watts, "voltage": 231.4, "current": 0.602,
        "aenergy": {"total": watt_hours, "by_minute": [2196.1, 2190.4, 2201.9], "minute_ts": 1763456820},
        "temperature": {"tC": 41.2, "tF": 106.2},
    }  # fmt: skip


def gen1(watts=88.31, watt_minutes=52_310):
    meter = {"power": watts, "overpower": 0.0, "is_valid": True, "timestamp": 1763460420, "total": watt_minutes}
    return {"wifi_sta": {"connected": True}, "relays": [{"ison": True}], "meters": [meter], "uptime": 71_402}


def sensor(watts=74, kilowatt_hours=12.417, at="2025-11-18T09:27:03"):
    energy = {
        "TotalStartTime": "2025-02-01T10:00:00", "Total": kilowatt_hours, "Yesterday": 1.2, "Today": 0.31,
        "Power": watts, "ApparentPower": 81, "ReactivePower": 33, "Factor": 0.91, "Voltage": 229, "Current": 0.354,
    }  # fmt: skip
    return {"Time": at, "ENERGY": energy}


def tasmota(*arguments, **more):
    return {"StatusSNS": sensor(*arguments, **more)}


@pytest.fixture
def web():
    meter = WebMeter({})
    yield meter
    meter.close()


def opened(web, pages, **options):
    web.pages = pages
    clock = VirtualClock()
    source = PlugSource(PlugOptions(url=web.url, **options), Start("plug", EPOCH, 0, clock))
    return Opened(source, clock, *source.open())


class TestConformance(SourceConformance):
    polls = 52

    @pytest.fixture(autouse=True)
    def _web(self, web):
        self.web = web

    def make(self, start):
        at = iter(range(1 << 30))
        self.web.pages = {TASMOTA: lambda: tasmota(70.5, at=str(next(at)))}
        return PlugSource(PlugOptions(url=self.web.url, model="tasmota"), start)

    def fail(self, source):
        self.web.status = 0


class TestHttp:
    @pytest.mark.parametrize(
        ("model", "question", "page", "power_uw", "energy_uj"),
        [
            ("shelly", SHELLY, shelly(), 131_700_000, 7_348_698_000_000),
            ("shelly-gen1", GEN1, gen1(), 88_310_000, 3_138_600_000_000),
            ("tasmota", TASMOTA, tasmota(), 74_000_000, 44_701_200_000_000),
            ("tasmota", TASMOTA, tasmota([74, 12], [12.417, 0.5]), 74_000_000, 44_701_200_000_000),
        ],
    )
    def test_watts_and_the_counter_with_all_digits(self, web, model, question, page, power_uw, energy_uj):
        o = opened(web, {question: page}, model=model)
        made = o.run(1)
        assert o.readings(made, "plug")["power_uw"] == [power_uw]
        assert o.readings(made, "plug_energy")["energy_uj"] == [energy_uj]
        assert o.devices[0].feeds == ("plug",)
        assert {s.detail["untested"] for s in o.streams} == {"untested on hardware"}

    def test_a_reading_stands_in_the_middle_of_its_transfer_less_its_age(self, web):
        pages = {SHELLY: shelly()}
        o = opened(web, pages)

        def slow():
            o.clock.t_ns += 400_000_000
            return shelly(20.0)

        pages[SHELLY] = slow
        begin_ns = o.clock.now_ns()
        r = o.readings(o.run(1), "plug")
        assert (r["t_ns"], r["flags"]) == ([begin_ns + 200_000_000 - S], [0])
        assert o.streams[0].lines[0].accuracy.centre_ns == S + 250_000_000

    def test_an_answer_that_took_too_long_has_no_time(self, web):
        pages = {SHELLY: shelly()}
        o = opened(web, pages)

        def slow():
            o.clock.t_ns += 600_000_000
            return shelly(20.0)

        pages[SHELLY] = slow
        r = o.readings(o.run(1), "plug")
        assert (r["flags"], r["power_uw"]) == ([Flag.STALE], [0])
        assert o.source.health()["late_answers"]["plug"] == 1

    def test_what_a_plug_does_not_tell_is_left_out(self, web):
        page = shelly()
        del page["apower"]
        o = opened(web, {SHELLY: page})
        assert [line.name for s in o.streams for line in s.lines] == ["plug_energy"]
        assert o.readings(o.run(1), "plug_energy")["energy_uj"] == [7_348_698_000_000]

    @pytest.mark.parametrize("value", [None, "131.7", True, 1e400, {}])
    def test_what_is_no_number_is_missing_and_never_0(self, web, value):
        o = opened(web, {SHELLY: shelly()})
        web.pages[SHELLY] = shelly(value) if value != 1e400 else '{"apower": 1e400, "aenergy": {"total": NaN}}'
        r = o.readings(o.run(1), "plug")
        assert (r["flags"], r["power_uw"]) == ([Flag.MISSING], [0])

    def test_switched_off_is_0_w(self, web):
        o = opened(web, {SHELLY: shelly(0.0)})
        r = o.readings(o.run(1), "plug")
        assert (r["flags"], r["power_uw"]) == ([0], [0])

    def test_a_figure_that_keeps_its_time_is_no_new_reading_and_then_stale(self, web):
        o = opened(web, {TASMOTA: tasmota()}, model="tasmota")
        r = o.readings(o.run(6), "plug")
        assert r["flags"] == [0, Flag.STALE, Flag.STALE]
        assert o.source.health()["repeated_answers"]["plug"] == 5
        web.pages[TASMOTA] = tasmota(75, at="2025-11-18T09:27:09")
        assert o.readings(o.run(1), "plug")["flags"] == [0]

    @pytest.mark.parametrize("trouble", ["404", "no JSON", "redirected", "cut off", "closed"])
    def test_failed_readings_are_flagged_until_the_plug_is_lost(self, web, trouble):
        o = opened(web, {SHELLY: shelly()})
        made = o.run(1)
        if trouble == "404":
            web.pages = {}
        elif trouble == "no JSON":
            web.pages[SHELLY] = "<html>"
        elif trouble == "closed":
            web.close()
        else:
            web.status = 302 if trouble == "redirected" else 0
        more, is_lost = o.run_until_lost(LOST + 3)
        r = o.readings(made + more, "plug")
        assert r["flags"] == [0] + [Flag.IO_ERROR] * LOST
        assert is_lost
        if trouble == "closed":
            web.__init__({})  # for the fixture to close

    @pytest.mark.parametrize(
        ("pages", "status", "what"),
        [({}, 200, "404"), ({SHELLY: {"output": True}}, 200, "tells no power of output 0"),
         ({SHELLY: {}}, 401, "refuses the user or the password")],
    )  # fmt: skip
    def test_what_cannot_be_opened_says_why(self, web, pages, status, what):
        web.status = status
        with pytest.raises(SensorError, match=what):
            opened(web, pages)

    def test_secrets_come_from_a_file_or_the_environment(self, web, tmp_path, monkeypatch):
        (tmp_path / "password").write_text("hunter2\n")
        opened(web, {GEN1: gen1()}, model="shelly-gen1", user="me", password_file=str(tmp_path / "password"))
        assert web.asked[-1][1] == "Basic bWU6aHVudGVyMg=="
        monkeypatch.setenv("PLUG_PASSWORD", "a b")
        question = TASMOTA + "&user=me&password=a+b"
        opened(web, {question: tasmota()}, model="tasmota", user="me", password_env="PLUG_PASSWORD")
        assert web.asked[-1] == (question, "")
        with pytest.raises(ConfigError, match="no variable NONE"):
            opened(web, {}, password_env="NONE")
        with pytest.raises(ConfigError, match="cannot be read"):
            opened(web, {}, password_file=str(tmp_path / "none"))

    @pytest.mark.parametrize(
        ("options", "what"),
        [
            ({"url": "192.168.1.20"}, "http://HOST"),
            ({"url": "http://me:hunter2@plug"}, "without a password"),
            ({"url": "http://plug", "rate_hz": 0.0}, "rate_hz"),
            ({"url": "http://plug", "timeout_s": 60.0}, "timeout_s"),
            ({"url": "http://plug", "user": "me"}, "digest"),
            ({"url": "http://plug", "u_gain": 0.0}, "no meter is exact"),
        ],
    )
    def test_options_that_cannot_be_used_are_refused(self, options, what):
        with pytest.raises(ConfigError, match=what) as caught:
            PlugSource(PlugOptions(**options), Start("plug", EPOCH, 0, VirtualClock())).open()
        assert "hunter2" not in str(caught.value)


class Reason(str):
    """A reason code of MQTT 5: a failure where it says something."""

    @property
    def is_failure(self):
        return bool(self)


class FakeMqtt:
    """paho.mqtt.client at its border: a broker whose messages come when a test says so."""

    MQTT_ERR_SUCCESS, MQTT_ERR_CONN_LOST = 0, 7
    CallbackAPIVersion = SimpleNamespace(VERSION2=2)

    def __init__(self, sent=lambda: ()):
        self.sent, self.published, self.refuses, self.is_out, self.subscribed = sent, [], "", False, []
        self.waiting = []

    def Client(self, version):
        assert version == 2
        return self

    def connect(self, host, port, keepalive):
        if self.is_out:
            raise ConnectionRefusedError("refused")
        self.waiting.append(lambda: self.on_connect(self, None, {}, Reason(self.refuses), None))

    def subscribe(self, topic):
        self.subscribed.append(topic)
        self.waiting.append(lambda: self.on_subscribe(self, None, 1, [Reason("")], None))

    def publish(self, topic, payload):
        self.published.append((topic, payload))

    def loop(self, timeout):
        assert timeout == 0.0
        if self.is_out:
            return self.MQTT_ERR_CONN_LOST
        waiting, self.waiting = self.waiting, []
        for call in waiting:
            call()
        for message in self.sent() if self.subscribed else ():
            self.on_message(self, None, message)
        return self.MQTT_ERR_SUCCESS

    def error_string(self, code):
        return "The connection was lost."

    def disconnect(self):
        pass


def message(document, retain=False):
    return SimpleNamespace(retain=retain, payload=json.dumps(document).encode())


def listening(sent=lambda: (), **options):
    clock, mqtt = VirtualClock(), FakeMqtt(sent)
    given = {"topic": "tele/desk/SENSOR", "every_s": 10.0} | options
    source = MqttSource(MqttOptions(**given), Start("plug", EPOCH, 0, clock), mqtt)
    return Opened(source, clock, *source.open()), mqtt


class TestMqttConformance(SourceConformance):
    polls = 400

    def make(self, start):
        at = iter(range(1 << 30))
        self.mqtt = FakeMqtt(lambda: [message(sensor(60.0, at=str(next(at))))])
        return MqttSource(MqttOptions(topic="tele/desk/SENSOR", every_s=0.1), start, self.mqtt)

    def fail(self, source):
        self.mqtt.is_out = True


class TestMqtt:
    @pytest.mark.parametrize(
        ("model", "document", "power_uw", "energy_uj"),
        [
            ("tasmota", sensor(), 74_000_000, 44_701_200_000_000),
            ("shelly", shelly(), 131_700_000, 7_348_698_000_000),
            ("zigbee2mqtt", {"power": 31.5, "energy": 0.25, "linkquality": 120}, 31_500_000, 900_000_000_000),
        ],
    )
    def test_a_message_is_a_reading_at_its_arrival_less_its_age(self, model, document, power_uw, energy_uj):
        messages = [message(document)]
        o, mqtt = listening(lambda: [messages.pop()] if messages else [], model=model)
        made = o.run(3)
        r = o.readings(made, "plug")
        assert (r["power_uw"], r["flags"]) == ([power_uw], [0])
        assert o.readings(made, "plug_energy")["energy_uj"] == [energy_uj]
        assert o.readings(made, "plug_energy")["t_ns"][0] - r["t_ns"][0] == S
        assert mqtt.subscribed == ["tele/desk/SENSOR"]

    def test_what_the_broker_had_kept_is_no_reading(self):
        messages = [message(sensor(9000), retain=True)]
        o, _ = listening(lambda: [messages.pop()] if messages else [])
        assert o.readings(o.run(20), "plug")["flags"] == []
        assert o.source.health()["retained"] == 1

    def test_a_message_that_came_while_nobody_looked_has_no_time(self):
        messages = []
        o, _ = listening(lambda: [messages.pop()] if messages else [])
        o.run(2)
        messages.append(message(sensor()))
        o.clock.t_ns += S
        assert o.readings(o.run(1), "plug")["flags"] == [Flag.STALE]

    def test_a_silence_is_missing_and_then_the_plug_is_lost(self):
        o, _ = listening(every_s=0.2)
        made, is_lost = o.run_until_lost(400)
        assert is_lost
        assert o.readings(made, "plug")["flags"] == [Flag.MISSING] * LOST

    @pytest.mark.parametrize("payload", [b"", b"\xff", b"[1]", b'{"ENERGY": {"Power": "many"}}'])
    def test_garbage_is_missing(self, payload):
        messages = [SimpleNamespace(retain=False, payload=payload)]
        o, _ = listening(lambda: [messages.pop()] if messages else [])
        assert o.readings(o.run(5), "plug")["flags"] == [Flag.MISSING]

    def test_a_plug_that_speaks_of_changes_alone_is_asked(self):
        """By the plug's RPC: the answer comes on the topic that the question names as its source."""
        question = '{"id": 1, "src": "powerd", "method": "Switch.GetStatus", "params": {"id": 0}}'
        answers = []
        o, mqtt = listening(
            lambda: [answers.pop()] if answers else [],
            model="shelly", topic="powerd/rpc", ask=question, ask_topic="shellyplug-1/rpc", every_s=1.0,
        )  # fmt: skip
        made = o.run(3)
        assert mqtt.published == [("shellyplug-1/rpc", question)]
        answers.append(message({"id": 1, "src": "shellyplug-1", "dst": "powerd", "result": shelly(61.5)}))
        made += o.run(21)
        assert len(mqtt.published) == 2
        assert o.readings(made, "plug")["power_uw"] == [61_500_000]

    def test_a_broker_that_refuses_or_is_not_there(self):
        clock, mqtt = VirtualClock(), FakeMqtt()
        mqtt.refuses = "Not authorized"
        source = MqttSource(MqttOptions(topic="t"), Start("plug", EPOCH, 0, clock), mqtt)
        source.open()
        with pytest.raises(SensorError, match="localhost:1883 refuses: Not authorized"):
            source.poll()
        mqtt.is_out = True
        with pytest.raises(SensorError, match="localhost:1883 cannot be reached: refused"):
            MqttSource(MqttOptions(topic="t"), Start("plug", EPOCH, 0, clock), mqtt).open()

    def test_without_the_library(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "paho.mqtt.client", None)
        with pytest.raises(SensorError, match=r"needs paho-mqtt: install powerd with its extra \[mqtt\]"):
            MqttSource(MqttOptions(topic="t"), Start("plug", EPOCH, 0, VirtualClock())).open()

    @pytest.mark.parametrize(
        ("options", "what"),
        [({"topic": "tele/+/SENSOR"}, "one plug"), ({"topic": "t", "ask": "x"}, "go together"),
         ({"topic": "t", "every_s": 0.0}, "every_s"), ({"topic": "t", "port": 0}, "port")],
    )  # fmt: skip
    def test_options_that_cannot_be_used_are_refused(self, options, what):
        with pytest.raises(ConfigError, match=what):
            MqttOptions(**options)


@pytest.fixture
def broker(tmp_path):
    """A real one, and how messages get there."""
    if MOSQUITTO is None:
        pytest.skip("mosquitto is not installed")
    mqtt = pytest.importorskip("paho.mqtt.client", reason="paho-mqtt is not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (tmp_path / "mosquitto.conf").write_text(f"listener {port} 127.0.0.1\nallow_anonymous true\n")
    process = subprocess.Popen([MOSQUITTO, "-c", tmp_path / "mosquitto.conf"], stderr=subprocess.DEVNULL)
    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2)
    _until(lambda: not _raises(lambda: client.connect("127.0.0.1", port)))
    client.loop_start()
    yield SimpleNamespace(port=port, process=process, publish=client.publish)
    client.loop_stop()
    client.disconnect()
    process.terminate()
    process.wait()


def _raises(call):
    try:
        call()
    except OSError:
        return True
    return False


def _until(is_so):
    deadline = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < deadline, "it never came to be so"
        time.sleep(0.01)


@pytest.mark.slow
class TestBroker:
    """Debian's mosquitto and paho-mqtt themselves."""

    def poll(self, o, line, count):
        made = []

        def has_come():
            o.source.poll()
            made.extend(o.source.take())
            return len(o.readings(made, line)["t_ns"]) >= count

        _until(has_come)
        return o.readings(made, line)

    def test_messages_come_through_and_kept_ones_do_not_count(self, broker):
        topic = "tele/desk/SENSOR"
        broker.publish(topic, json.dumps(sensor(9000)), qos=1, retain=True).wait_for_publish(10)
        clock = SystemClock()
        source = MqttSource(
            MqttOptions(topic=topic, broker="127.0.0.1", port=broker.port, every_s=60.0), Start("plug", EPOCH, 0, clock)
        )
        o = Opened(source, clock, *source.open())
        try:
            plug = source._meters[0]
            _until(lambda: (source.poll(), plug.retained)[1])
            before_ns = clock.now_ns()
            broker.publish(topic, json.dumps(sensor(75, at="2025-11-18T09:30:00")), qos=1)
            r = self.poll(o, "plug", 1)
            assert (r["power_uw"], r["flags"]) == ([75_000_000], [0])
            assert before_ns <= r["t_ns"][0] + S <= clock.now_ns()
            broker.process.terminate()
            with pytest.raises(SensorError, match=r"connection with the MQTT broker 127\.0\.0\.1:\d+ broke"):
                _until(source.poll)
        finally:
            source.close()
