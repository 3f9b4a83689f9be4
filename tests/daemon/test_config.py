"""The configuration file, good and bad. Every error is one line that says where and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest
from daemon_harness import steady_config
from steady_source import steady_stream

from powerd_core import ConfigError, Device
from powerd_daemon.config import (
    DEFAULT_LISTEN,
    DeviceConfig,
    ServerConfig,
    check_endpoint,
    check_lines,
    load_config,
    merge_devices,
    neighbour_endpoint,
    parse_config,
    public_endpoint,
)

MODEL = '[[source]]\nkind = "cpu-model"\n'
DEVICE = "\n[[device]]\nname = 'gpu0'\n"
GOOD = '[[source]]\nkind = "steady_source:SteadySource"\n'
EXAMPLE = Path(__file__).parents[2] / "examples" / "powerd.toml"


def test_defaults() -> None:
    config = parse_config(GOOD, "f")
    assert (config.server.listen, config.server.data) == (DEFAULT_LISTEN, "tcp://127.0.0.1:7361")
    assert (config.server.ring_bytes, config.server.block_ns) == (64 << 20, 20_000_000)
    assert config.server.board
    assert config.sources[0].name == "steady_source:SteadySource"


def test_everything(tmp_path: Path) -> None:
    config = steady_config(
        tmp_path,
        'lines = ["a", "b"]\nrate_hz = 50',
        "ring_mib = 0.5\nblock_ms = 5",
        '[[device]]\nname = "node"\nfeeds = ["a"]\ndescription = "all"',
    )
    assert config.server == ServerConfig(
        f"ipc://{tmp_path}/s", f"ipc://{tmp_path}/s.data", f"ipc://{tmp_path}/s.clock", "bench", 0.5, 5
    )
    assert config.sources[0].options == {"lines": ["a", "b"], "rate_hz": 50}
    assert config.devices == (DeviceConfig("node", "test.toml: [[device]] 1 (node)", ("a",), "all"),)


def test_the_example_is_good() -> None:
    assert load_config(EXAMPLE).sources[0].kind == "sim"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("\n\nlisten 5", "TOML"),
        ("[sever]\n" + GOOD, "'server'"),
        ("[[server]]\n" + GOOD, "'server'"),
        ('[source]\nkind = "sim"', "'source'"),
        ("[server]\nlistn = 1\n" + GOOD, "'server': unknown option 'listn'"),
        ('[server]\nlisten = "tcp://127.0.0.1:65535"\n' + GOOD, "65536"),
        ('[server]\nlisten = "ipc:///tmp/' + "x" * 200 + '"\n' + GOOD, "107"),
        ("[server]\nring_mib = 0\n" + GOOD, "'ring_mib'"),
        ("[server]\nblock_ms = 0.1\n" + GOOD, "'block_ms'"),
        ("[server]\nspool_mib = 0.5\n" + GOOD, "'spool_mib'"),
        ("[server]\nspool_sync_s = 0\n" + GOOD, "'spool_sync_s'"),
        ('[server]\nspool = ""\n' + GOOD, "'server.spool'"),
        ('[[source]]\nname = "x"', "[[source]] 1: missing option 'kind'"),
        ('[[source]]\nkind = "simm"', "[[source]] 1 (simm): unknown kind of source 'simm'"),
        ('[[source]]\nkind = "no.such:Thing"', "ModuleNotFoundError"),
        ('[[source]]\nkind = "pathlib:Path"', "'pathlib:Path'"),
        (GOOD + "rate = 5", "'rate_hz'"),
        (MODEL + "watts_per_core = 1e300", "'watts_per_core': 1e+300 is beyond what any meter measures"),
        (MODEL + "background_w = -1e13", "'background_w': -1e+13 is beyond what any meter measures"),
        (GOOD + "lines = [1]", "'lines'[0]"),
        (GOOD + "unfit = true", "[[source]] 1 (steady_source:SteadySource)"),
        (GOOD + GOOD, "same name"),
        (GOOD + "[[device]]\n", "missing option 'name'"),
        (GOOD + '[[device]]\nname = "d"\nfeed = []', "unknown option 'feed'"),
        (GOOD + '[[device]]\nname = "d"\nfeeds = ["a", "a"]', "'feeds'"),
        (GOOD + "[[device]]\nname = ''\nfeeds = ['a']", "'name'"),
        (GOOD + DEVICE + "uuid = 'GPU-3'", "'uuid'"),
        (GOOD + DEVICE + "pci = '3b'", "'pci'"),
    ],
)
def test_bad_configurations(text: str, name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, "f")
    assert name in str(caught.value)
    assert str(caught.value).startswith("f: ")
    assert "\n" not in str(caught.value)


def test_endpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert check_endpoint("ipc://here", "w") == f"ipc://{tmp_path}/here"
    assert check_endpoint("tcp://[::1]:5", "w") == "tcp://[::1]:5"
    assert neighbour_endpoint("tcp://*:*", 1, "data", "w") == "tcp://*:*"
    assert neighbour_endpoint("tcp://[::1]:5", 1, "data", "w") == "tcp://[::1]:6"
    assert neighbour_endpoint("ipc:///a", 1, "data", "w") == "ipc:///a.data"
    assert public_endpoint("tcp://[::1]:6") == "tcp://*:6"
    assert public_endpoint("ipc:///a") == "ipc:///a"
    for url in ("", "udp://a:1", "tcp://a", "tcp://a:x", "tcp://:5", "tcp://a:0"):
        with pytest.raises(ConfigError, match="where: "):
            check_endpoint(url, "where")


def described(config_name: str, lines: tuple[str, ...]) -> tuple:  # type: ignore[type-arg]
    source = parse_config(GOOD + f'name = "{config_name}"', "f").sources[0]
    return source, (steady_stream(0, config_name, lines),)


def test_two_lines_of_one_name() -> None:
    assert check_lines([described("one", ("a", "b")), described("two", ("c",))]) == ("a", "b", "c")
    with pytest.raises(ConfigError, match="'b'"):
        check_lines([described("one", ("a", "b")), described("two", ("b",))])


def merged(devices: dict[str, list[Device]], *configured: DeviceConfig) -> tuple[tuple[Device, ...], tuple[str, ...]]:
    proposed = [(described(name, ())[0], found) for name, found in devices.items()]
    return merge_devices(("a", "b", "n"), proposed, configured)


def test_the_first_source_feeds_a_device_and_the_configuration_overrides_and_extends() -> None:
    rails, nvml = Device("gpu0", ("a", "b"), "rails"), Device("gpu0", ("n",))
    found, (note,) = merged({"one": [rails], "two": [nvml]})
    assert found == (rails,)
    assert "'two'" in note
    found, notes = merged(
        {"one": [rails], "two": [nvml]},
        DeviceConfig("gpu0", "w", ("n",)),
        DeviceConfig("node", "w", ("a",), "everything"),
    )
    assert found == (Device("gpu0", ("n",), "rails"), Device("node", ("a",), "everything"))
    assert notes == ()
    assert merged({"one": [rails]}, DeviceConfig("gpu0", "w", None, "card"))[0] == (Device("gpu0", ("a", "b"), "card"),)


def test_which_gpu_a_device_is() -> None:
    uuid, pci = "GPU-aaaaaaaa-1111-2222-3333-aaaaaaaaaaaa", "0000:3b:00.0"
    rails, nvml = Device("gpu0", ("a", "b")), Device("gpu1", ("n",), "H200", "GPU-0", "00:1.0")
    named = parse_config(f"{GOOD}{DEVICE}uuid = '{uuid}'\npci = '{pci}'", "f").devices
    assert merged({"one": [rails, nvml]}, *named)[0] == (Device("gpu0", ("a", "b"), "", uuid, pci), nvml)
    with pytest.raises(ConfigError, match="'gpu0'"):
        merged({"one": [rails]}, *named, DeviceConfig("gpu1", "w", ("b",), pci="0000:3B:00.0"))


@pytest.mark.parametrize(
    ("proposed", "configured", "name"),
    [
        ({}, DeviceConfig("d", "w", ("aa",)), "w: unknown line 'aa'"),
        ({}, DeviceConfig("d", "w"), "w: no source proposes this device"),
        ({"one": [Device("d", ("zz",))]}, DeviceConfig("d", "w", ("a",)), "'zz'"),
    ],
)
def test_bad_devices(proposed: dict[str, list[Device]], configured: DeviceConfig, name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        merged(proposed, configured)


def test_a_line_that_is_no_power_feeds_nothing() -> None:
    with pytest.raises(ConfigError, match="'n'"):
        merge_devices(("a", "n"), [], [DeviceConfig("d", "w", ("a", "n"))], {"n"})
