"""The configuration file, good and bad. Every error is one line that says where and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest
from daemon_harness import steady_config
from steady_source import SteadySource, steady_stream

from powerd_core import ConfigError, Device
from powerd_daemon.config import DeviceConfig, ServerConfig, load_config, parse_config
from powerd_daemon.devices import check_lines, merge_devices
from powerd_daemon.endpoints import DEFAULT_LISTEN, check_endpoint, neighbour_endpoint, public_endpoint
from powerd_daemon.registry import find_source, kinds

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
    ("text", "message"),
    [
        ("", "f: there is no [[source]]: nothing to measure"),
        ("a = ", "f: not valid TOML: Invalid value (at end of document)"),
        ("\n\nlisten 5", "f: not valid TOML: Expected '=' after a key in a key/value pair (at line 3, column 8)"),
        ("[sever]\n" + GOOD, "f: unknown table 'sever': did you mean 'server'?"),
        ("[[server]]\n" + GOOD, "f: 'server' is a table: write [server]"),
        ('[source]\nkind = "sim"', "f: 'source' is a list of tables: write [[source]]"),
        (
            "[server]\nport = 1\n" + GOOD,
            "f: [server]: unknown option 'port' (there are: block_ms, board, clock, data, insecure, keys, listen, ",
        ),
        ("[server]\nlistn = 1\n" + GOOD, "f: [server]: unknown option 'listn': did you mean 'listen'?"),
        ("[server]\nlisten = 7360\n" + GOOD, "f: [server]: option 'listen': expected a string, found 7360"),
        ('[server]\nlisten = "localhost:7360"\n' + GOOD, "f: [server]: cannot use 'localhost:7360': write tcp://"),
        ('[server]\nlisten = "tcp://127.0.0.1:70000"\n' + GOOD, "port 70000 of 'tcp://127.0.0.1:70000' is not between"),
        ('[server]\nlisten = "tcp://127.0.0.1:65535"\n' + GOOD, "there is no port 65536"),
        ('[server]\nlisten = "ipc:///tmp/' + "x" * 200 + '"\n' + GOOD, "at most 107: choose a shorter one"),
        ('[server]\ndata = "tcp://127.0.0.1:7360"\n' + GOOD, "each needs its own endpoint"),
        ("[server]\nring_mib = 0\n" + GOOD, "f: [server]: option 'ring_mib': 0.0 MiB is not a size"),
        ("[server]\nblock_ms = 0.1\n" + GOOD, "f: [server]: option 'block_ms': 0.1 is not between 1 and 1000"),
        ('[server]\nboard = ""\n' + GOOD, "f: [server]: option 'board': a board needs a name"),
        ('[server]\nspool = ""\n' + GOOD, "f: [server]: option 'spool': expected a path, found ''"),
        ('[[source]]\nname = "x"', "f: [[source]] 1: missing option 'kind'"),
        ("[[source]]\nkind = 3", "f: [[source]] 1: option 'kind': expected one that `powerd sources` lists, found 3"),
        ('[[source]]\nkind = ":"', "f: [[source]] 1 (:): source ':' cannot be loaded: write it as module.path:Class"),
        ('[[source]]\nkind = "..a:B"', "source '..a:B' cannot be loaded: write it as module.path:Class"),
        (
            '[[source]]\nkind = "simm"',
            "f: [[source]] 1 (simm): unknown kind of source 'simm': did you mean 'sim'? (known kinds: ",
        ),
        (
            '[[source]]\nkind = "qqqq"',
            "unknown kind of source 'qqqq' (known kinds: cpu-model, ",
        ),
        ('[[source]]\nkind = "no.such:Thing"', "source 'no.such:Thing' cannot be loaded: ModuleNotFoundError"),
        ('[[source]]\nkind = "steady_source:Nothing"', "cannot be loaded: AttributeError"),
        ('[[source]]\nkind = "pathlib:Path"', "source 'pathlib:Path' is not a subclass of powerd_daemon.sources.base"),
        (
            GOOD + "rate = 5",
            "f: [[source]] 1 (steady_source:SteadySource): unknown option 'rate': did you mean 'rate_hz'?",
        ),
        (GOOD + 'rate_hz = "fast"', "option 'rate_hz': expected a number, found 'fast'"),
        (GOOD + "rate_hz = true", "option 'rate_hz': expected a number, found True"),
        (GOOD + "lines = [1]", "option 'lines'[0]: expected a string, found 1"),
        (GOOD + "rate_hz = 2020-01-01", "an option has a type that sources do not take"),
        (GOOD + "unfit = true", "f: [[source]] 1 (steady_source:SteadySource): these options do not fit together"),
        (GOOD + "name = 5", "f: [[source]] 1: option 'name': expected a string, found 5"),
        (GOOD + GOOD, "f: [[source]] 2 (steady_source:SteadySource): source 1 has the same name: give each its own"),
        (GOOD + "[[device]]\n", "f: [[device]] 1: missing option 'name' (a string)"),
        (
            GOOD + '[[device]]\nname = "d"\nfeed = []',
            "f: [[device]] 1 (d): unknown option 'feed': did you mean 'feeds'?",
        ),
        (GOOD + '[[device]]\nname = "d"\nfeeds = ["a", "a"]', "line 'a' feeds it twice: each line counts once"),
        (GOOD + "[[device]]\nname = ''\nfeeds = ['a']", "option 'name': a device needs a name"),
        ('[[source]]\nkind = "sim"\nrate_hz = 1e-300', "f: [[source]] 1 (sim): rate_hz must be at least 0.001"),
        ('[[source]]\nkind = "sim"\nbus_every = 0', "bus_every = 0 is not between 1 and 200"),
        ('[[source]]\nkind = "sim"\nshunt_ohm = 1e-320', "is not between 1e-06 and 1e+06"),
        ('[[source]]\nkind = "cpu-model"\nrate_hz = 1e-12', "rate_hz = 1e-12 is not between 0.001 and 10000"),
        ('[[source]]\nkind = "ina"\nbus = -1\nsensors = []', "bus = -1 is no bus"),
        ('[[source]]\nkind = "ina"\nbus = ""\nsensors = []', "bus = '' is no bus"),
        (
            '[[source]]\nkind = "ina"\nbus = 2\nsensors = [{name = "a", address = 64}, {name = "a", address = 65}]',
            "f: [[source]] 1 (ina): two sensors are called 'a'",
        ),
        (GOOD + '[[device]]\nname = "d"\n[[device]]\nname = "d"', "f: [[device]] 2 (d): device 1 has the same name"),
    ],
)
def test_bad_configurations(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, "f")
    assert message in str(caught.value)
    assert str(caught.value).startswith("f: ")
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml: there is no such configuration file"):
        load_config(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load_config(tmp_path)
    (tmp_path / "latin.toml").write_bytes(b'board = "B\xf6rse"')
    with pytest.raises(ConfigError, match=r"not a text file in UTF-8 \(byte 10\)"):
        load_config(tmp_path / "latin.toml")
    (tmp_path / "marked.toml").write_text(GOOD, encoding="utf-8-sig")
    assert load_config(tmp_path / "marked.toml").sources


def test_endpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert check_endpoint("ipc://here", "w") == f"ipc://{tmp_path}/here"
    assert check_endpoint("tcp://[::1]:5", "w") == "tcp://[::1]:5"
    assert neighbour_endpoint("tcp://*:*", 1, "data", "w") == "tcp://*:*"
    assert neighbour_endpoint("tcp://[::1]:5", 1, "data", "w") == "tcp://[::1]:6"
    assert neighbour_endpoint("ipc:///a", 1, "data", "w") == "ipc:///a.data"
    assert public_endpoint("tcp://[::1]:6") == "tcp://*:6"
    assert public_endpoint("ipc:///a") == "ipc:///a"


@pytest.mark.parametrize(
    "url", ["", "udp://a:1", "tcp://a", "tcp://a:x", "tcp://:5", "ipc://", "ipc:///tmp/", "tcp://a:0"]
)
def test_bad_endpoints(url: str) -> None:
    with pytest.raises(ConfigError, match="where: "):
        check_endpoint(url, "where")


def test_registry() -> None:
    assert {"sim", "cpu-model", "nvml", "replay"} <= set(kinds())
    assert find_source("steady_source:SteadySource") is SteadySource


def described(config_name: str, lines: tuple[str, ...]) -> tuple:  # type: ignore[type-arg]
    source = parse_config(GOOD + f'name = "{config_name}"', "f").sources[0]
    return source, (steady_stream(0, config_name, lines),)


def test_two_lines_of_one_name() -> None:
    assert check_lines([described("one", ("a", "b")), described("two", ("c",))]) == ("a", "b", "c")
    with pytest.raises(ConfigError, match="line 'b' is also a line of source 'one'"):
        check_lines([described("one", ("a", "b")), described("two", ("b",))])


def merged(devices: dict[str, list[Device]], *configured: DeviceConfig) -> tuple[tuple[Device, ...], tuple[str, ...]]:
    proposed = [(described(name, ())[0], found) for name, found in devices.items()]
    return merge_devices(("a", "b", "n"), proposed, configured)


def test_the_first_source_feeds_a_device() -> None:
    rails, nvml = Device("gpu0", ("a", "b"), "rails"), Device("gpu0", ("n",))
    found, (note,) = merged({"one": [rails], "two": [nvml]})
    assert found == (rails,)
    assert "fed by the lines of source 'one'; those of 'two' are compared" in note


def test_the_configuration_overrides_and_extends() -> None:
    rails, nvml = Device("gpu0", ("a", "b"), "rails"), Device("gpu0", ("n",))
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
    found, _ = merged(
        {"one": [rails, nvml]}, *parse_config(f"{GOOD}{DEVICE}uuid = '{uuid}'\npci = '{pci}'", "f").devices
    )
    assert found == (Device("gpu0", ("a", "b"), "", uuid, pci), nvml)


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("uuid = 'GPU-3'", "option 'uuid': 'GPU-3' is no UUID of a GPU"),
        ("pci = '3b'", "option 'pci': '3b' is no PCI address such as"),
        ("uuid = 3", "option 'uuid'"),
        (
            "pci = '3b:00.0'\n[[device]]\nname = 'gpu1'\nfeeds = ['b']\npci = '0000:3B:00.0'",
            "'pci' is also that of 'gpu0'",
        ),
    ],
)
def test_what_names_no_gpu_or_one_twice(option: str, text: str) -> None:
    with pytest.raises(ConfigError, match=rf"f: \[\[device\]\].*{text}"):
        merged({"one": [Device("gpu0", ("a",))]}, *parse_config(f"{GOOD}{DEVICE}{option}", "f").devices)


def test_bad_devices() -> None:
    with pytest.raises(ConfigError, match="w: unknown line 'aa' in feeds: did you mean 'a'"):
        merged({}, DeviceConfig("d", "w", ("aa",)))
    with pytest.raises(ConfigError, match="w: no source proposes this device: say which lines"):
        merged({}, DeviceConfig("d", "w"))
    with pytest.raises(ConfigError, match="device 'd': unknown line 'zz' in feeds"):
        merged({"one": [Device("d", ("zz",))]})
    with pytest.raises(ConfigError, match="line 'n' in feeds is neither power nor energy"):
        merge_devices(("a", "n"), [], [DeviceConfig("d", "w", ("a", "n"))], {"n"})
