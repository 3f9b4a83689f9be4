"""A server's own figure of its power: a program that stands for ipmitool, and a BMC that speaks Redfish."""

import os
import shutil
import ssl
import subprocess
from contextlib import suppress
from decimal import Decimal

import pytest
from conformance import EPOCH, Opened, SourceConformance
from hypothesis import example, given
from hypothesis import strategies as st
from web_meter import WebMeter

from powerd_core.errors import ConfigError, SensorError
from powerd_core.model import Flag
from powerd_daemon.sources.base import Start
from powerd_daemon.sources.chassis import (
    IpmiMeter,
    IpmiOptions,
    IpmiSource,
    RedfishOptions,
    RedfishSource,
    chassis_code,
)
from powerd_daemon.sources.plug import PlugOptions, codes_of
from powerd_daemon.sources.polled import LOST, MOST_CODE, Unanswered
from powerd_daemon.sources.sim.bus import VirtualClock

S = 1_000_000_000
KEYS = st.sampled_from(
    ("apower", "aenergy", "total", "meters", "power", "StatusSNS", "result", "Time", "ENERGY", "Power", "Total",
     "PowerControl", "PowerConsumedWatts", "PowerWatts", "Reading")
)  # fmt: skip
READING = """
    Instantaneous power reading:                   {watts} Watts
    Minimum during sampling period:                 96 Watts
    Maximum during sampling period:                731 Watts
    Average power reading over sample period:      288 Watts
    IPMI timestamp:                           Tue Nov 18 09:27:0{second} 2025
    Sampling period:                          00000001 Seconds.
    Power reading state is:                   {state}

"""


@pytest.fixture
def ipmitool(tmp_path, monkeypatch):
    """A program of that name on the path: it prints the file ``answer`` and fails where there is none."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "ipmitool").write_text(
        f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n'
        f'[ -f {tmp_path}/answer ] || {{ echo "Unable to establish session" >&2; exit 1; }}\n'
        f'while IFS= read -r line; do echo "$line"; done < {tmp_path}/answer\n'
    )
    (folder / "ipmitool").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def say(folder, watts=304, second=1, state="activated"):
    (folder / "answer").write_text(READING.format(watts=watts, second=second, state=state))


def opened(kind, options):
    clock = VirtualClock()
    source = kind(options, Start("chassis", EPOCH, 0, clock))
    return Opened(source, clock, *source.open())


@pytest.mark.slow
class TestIpmiConformance(SourceConformance):
    polls = 52

    @pytest.fixture(autouse=True)
    def _program(self, ipmitool):
        self.folder = ipmitool
        self.watts = 300

    @pytest.fixture
    def clock(self):
        test = self

        class Clock(VirtualClock):
            def sleep_until(self, t_ns):
                super().sleep_until(t_ns)
                if (test.folder / "answer").exists():
                    test.watts += 1
                    say(test.folder, test.watts)

        return Clock()

    def make(self, start):
        say(self.folder)
        return IpmiSource(IpmiOptions(), start)

    def fail(self, source):
        (self.folder / "answer").unlink()


@pytest.mark.slow
class TestIpmi:
    def test_whole_watts_of_this_machine(self, ipmitool):
        say(ipmitool)
        o = opened(IpmiSource, IpmiOptions())
        r = o.readings(o.run(1), "chassis")
        assert (r["power_uw"], r["flags"]) == ([304_000_000], [0])
        assert (ipmitool / "asked").read_text() == "dcmi power reading\n" * 2
        line = o.streams[0].lines[0]
        assert (line.accuracy.step_w, line.accuracy.centre_ns) == (1.0, 2 * S)
        assert "DCMI 1.5 states no accuracy" in line.accuracy.origin

    def test_of_a_host_the_password_stays_in_its_file(self, ipmitool):
        say(ipmitool)
        (ipmitool / "password").write_text("hunter2\n")
        options = IpmiOptions(host="bmc", user="me", password_file=str(ipmitool / "password"))
        opened(IpmiSource, options)
        asked = f"-I lanplus -H bmc -U me -f {ipmitool}/password dcmi power reading\n"
        assert (ipmitool / "asked").read_text() == asked

    def test_a_reading_of_the_same_moment_is_none(self, ipmitool):
        say(ipmitool)
        o = opened(IpmiSource, IpmiOptions())
        r = o.readings(o.run(6), "chassis")
        assert r["flags"] == [0, Flag.STALE, Flag.STALE]
        say(ipmitool, second=8)
        assert o.readings(o.run(1), "chassis")["flags"] == [0]

    @pytest.mark.parametrize(("watts", "state"), [(0, "activated"), (304, "deactivated")])
    def test_what_the_bmc_does_not_know_is_missing(self, ipmitool, watts, state):
        say(ipmitool)
        o = opened(IpmiSource, IpmiOptions())
        say(ipmitool, watts=watts, state=state)
        r = o.readings(o.run(1), "chassis")
        assert (r["power_uw"], r["flags"]) == ([0], [Flag.MISSING])
        with pytest.raises(SensorError, match="does not measure its power now"):
            opened(IpmiSource, IpmiOptions())

    @pytest.mark.parametrize("trouble", ["fails", "garbage", "hangs"])
    def test_failures_are_flagged_until_the_bmc_is_lost(self, ipmitool, trouble):
        say(ipmitool)
        o = opened(IpmiSource, IpmiOptions(timeout_s=10.0 if trouble != "hangs" else 0.3))
        if trouble == "fails":
            (ipmitool / "answer").unlink()
        elif trouble == "garbage":
            (ipmitool / "answer").write_text("DCMI request failed\n")
        else:
            (ipmitool / "bin" / "ipmitool").write_text("#!/bin/sh\nexec sleep 60\n")
        made, is_lost = o.run_until_lost(LOST + 1)
        assert o.readings(made, "chassis")["flags"] == [Flag.IO_ERROR] * LOST
        assert is_lost
        why = {"fails": "Unable to establish session", "garbage": "no power reading", "hangs": "timed out"}
        assert why[trouble] in o.source._states[0].why

    def test_without_the_program(self, tmp_path, monkeypatch):
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(SensorError, match="needs the program ipmitool"):
            opened(IpmiSource, IpmiOptions())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.decimals() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


class TestAnyAnswer:
    """Whatever a meter says is a whole number of micro-units, or no reading."""

    @given(JSON)
    @example({"aenergy": {"total": Decimal("sNaN")}})
    def test_in_json(self, document):
        options = [PlugOptions(url="http://plug", model=model) for model in ("shelly", "shelly-gen1", "tasmota")]
        codes = [chassis_code(document), *(code for o in options for code in codes_of(o, document).values())]
        assert all(code is None or (isinstance(code, int) and abs(code) < MOST_CODE) for code in codes)

    @given(st.text() | st.integers().map(lambda watts: READING.format(watts=watts, second=1, state="activated")))
    def test_in_text(self, text):
        meter = IpmiMeter(IpmiOptions(), S)
        with suppress(Unanswered):
            assert all(0 < code < MOST_CODE for code in meter.parse(text).codes.values())


class TestOptions:
    @pytest.mark.parametrize(
        ("make", "options", "what"),
        [
            (IpmiOptions, {"host": "bmc"}, "go together"),
            (IpmiOptions, {"password_file": "x"}, "go together"),
            (RedfishOptions, {"url": ""}, "url"),
            (RedfishOptions, {"url": "https://bmc", "check_name": False}, "any host could answer"),
            (RedfishOptions, {"url": "https://bmc", "password_file": "a", "password_env": "b"}, "exclude"),
            (RedfishOptions, {"url": "https://bmc", "renewed_s": 0.0}, "renewed_s"),
        ],
    )
    def test_those_that_cannot_be_used_are_refused(self, make, options, what):
        with pytest.raises(ConfigError, match=what):
            make(**options)

    def test_a_password_file_that_is_not_there(self):
        options = IpmiOptions(host="bmc", user="me", password_file="/nonexistent/password")
        with pytest.raises(ConfigError, match="is no file"):
            opened(IpmiSource, options)


ROOT = "/redfish/v1/Chassis"


def bmc(**resources):
    """A service with two chassis: a drive enclosure without power, and the server."""
    links = {name: {"@odata.id": f"{ROOT}/1U/{name}"} for name in resources}
    return {
        ROOT: {"Members@odata.count": 2, "Members": [{"@odata.id": f"{ROOT}/Drives"}, {"@odata.id": f"{ROOT}/1U"}]},
        f"{ROOT}/Drives": {"@odata.id": f"{ROOT}/Drives", "Id": "Drives", "ChassisType": "Enclosure"},
        f"{ROOT}/1U": {"@odata.id": f"{ROOT}/1U", "Id": "1U", "ChassisType": "RackMount", **links},
        **{f"{ROOT}/1U/{name}": page for name, page in resources.items()},
    }


def power(watts):
    whole = {"MemberId": "0", "Name": "System Power Control", "PowerConsumedWatts": watts, "PowerCapacityWatts": 1600}
    return {"Id": "Power", "PowerControl": [whole, {"MemberId": "1", "Name": "CPU", "PowerConsumedWatts": 120}]}


def environment(watts):
    return {"Id": "EnvironmentMetrics", "PowerWatts": {"Reading": watts, "DataSourceUri": f"{ROOT}/1U/Sensors/Total"}}


@pytest.fixture
def web():
    meter = WebMeter({})
    yield meter
    meter.close()


class TestRedfishConformance(SourceConformance):
    polls = 52

    @pytest.fixture(autouse=True)
    def _web(self, web):
        self.web = web

    def make(self, start):
        self.web.pages = bmc(Power=power(344))
        return RedfishSource(RedfishOptions(url=self.web.url), start)

    def fail(self, source):
        self.web.status = 500


class TestRedfish:
    @pytest.mark.parametrize(
        ("resources", "path", "power_uw"),
        [
            ({"Power": power(344)}, f"{ROOT}/1U/Power", 344_000_000),
            ({"EnvironmentMetrics": environment(351.5)}, f"{ROOT}/1U/EnvironmentMetrics", 351_500_000),
            ({"Power": power(1), "EnvironmentMetrics": environment(3.5)}, f"{ROOT}/1U/EnvironmentMetrics", 3_500_000),
            ({"Power": power(344), "EnvironmentMetrics": {"FanSpeedsPercent": []}}, f"{ROOT}/1U/Power", 344_000_000),
        ],
    )  # fmt: skip
    def test_the_chassis_that_tells_its_power_is_found(self, web, resources, path, power_uw):
        web.pages = bmc(**resources)
        o = opened(RedfishSource, RedfishOptions(url=web.url))
        r = o.readings(o.run(1), "chassis")
        assert (r["power_uw"], r["flags"], o.streams[0].detail["path"]) == ([power_uw], [0], path)
        assert web.asked[-1] == (path, "")

    @pytest.mark.parametrize("watts", [None, 0, "344"])
    def test_null_and_0_are_missing(self, web, watts):
        web.pages = bmc(Power=power(344))
        o = opened(RedfishSource, RedfishOptions(url=web.url))
        web.pages = bmc(Power=power(watts))
        r = o.readings(o.run(1), "chassis")
        assert (r["power_uw"], r["flags"]) == ([0], [Flag.MISSING])

    @pytest.mark.parametrize(
        ("pages", "options", "error", "what"),
        [
            (bmc(), {}, SensorError, "no chassis tells its power .of Drives, 1U."),
            (bmc(Power=power(1)), {"chassis": "2U"}, ConfigError, "no chassis '2U': there are Drives, 1U"),
            ({ROOT: []}, {}, SensorError, "of none"),
            ({}, {}, SensorError, "404"),
        ],
    )
    def test_what_cannot_be_opened_says_why(self, web, pages, options, error, what):
        web.pages = pages
        with pytest.raises(error, match=what):
            opened(RedfishSource, RedfishOptions(url=web.url, **options))

    def test_user_and_password(self, web, tmp_path):
        (tmp_path / "password").write_text("hunter2\n")
        web.pages = bmc(Power=power(344))
        opened(RedfishSource, RedfishOptions(url=web.url, user="me", password_file=str(tmp_path / "password")))
        assert {sent for _, sent in web.asked} == {"Basic bWU6aHVudGVyMg=="}

    @pytest.mark.slow
    def test_a_certificate_is_trusted_by_its_file_and_name(self, web, tmp_path):
        if shutil.which("openssl") is None:
            pytest.skip("openssl, which makes the certificate, is not installed")
        key, certificate = tmp_path / "key.pem", tmp_path / "bmc.pem"
        command = [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=bmc.example.org",
        ]
        subprocess.run([*command, "-keyout", key, "-out", certificate], check=True, capture_output=True)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        web.server.socket = context.wrap_socket(web.server.socket, server_side=True)
        web.pages = bmc(Power=power(344))
        url = web.url.replace("http:", "https:")
        with pytest.raises(SensorError, match=r"certificate verify failed.*by the option 'certificate'"):
            opened(RedfishSource, RedfishOptions(url=url))
        with pytest.raises(SensorError, match="(IP address|Hostname) mismatch"):
            opened(RedfishSource, RedfishOptions(url=url, certificate=str(certificate)))
        o = opened(RedfishSource, RedfishOptions(url=url, certificate=str(certificate), check_name=False))
        assert o.readings(o.run(1), "chassis")["power_uw"] == [344_000_000]
        with pytest.raises(ConfigError, match="cannot be used"):
            opened(RedfishSource, RedfishOptions(url=url, certificate=str(tmp_path / "none.pem")))
