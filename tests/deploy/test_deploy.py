"""What is laid onto a board: the install script in a fake root, the unit, the rules, the configurations."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

from powerd_daemon.cli import main
from powerd_daemon.config import parse_config
from powerd_daemon.deploy import SERVICES
from powerd_daemon.plan import plan_file

DEPLOY = Path(__file__).parents[2] / "powerd/deploy"
SCRIPT = DEPLOY / "install-board.sh"
LAID = {
    "usr/lib/sysusers.d/powerd.conf": "powerd.sysusers",
    "etc/udev/rules.d/60-powerd.rules": "60-powerd.rules",
    "etc/systemd/system/powerd.service": "powerd.service",
    "etc/powerd/powerd.toml": "powerd.toml",
}


def install(*arguments: str | Path, status: int = 0) -> str:
    done = subprocess.run(["sh", str(SCRIPT), *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr
    return done.stdout if status == 0 else done.stderr


def files(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def test_a_fake_root_gets_the_files_and_keeps_its_configuration(tmp_path: Path) -> None:
    said = install("--dry-run", "--root", tmp_path)
    assert files(tmp_path) == {}
    assert all(f"would write: /{name}" in said for name in LAID)
    said = install("--root", tmp_path)
    assert files(tmp_path) == {name: (DEPLOY / source).read_bytes() for name, source in LAID.items()}
    assert "running:" not in said
    (tmp_path / "etc/powerd/powerd.toml").write_text("# mine\n")
    (tmp_path / "etc/udev/rules.d/60-powerd.rules").write_text("# old\n")
    install("--root", tmp_path)
    assert (tmp_path / "etc/powerd/powerd.toml").read_text() == "# mine\n"
    assert (tmp_path / "etc/udev/rules.d/60-powerd.rules").read_bytes() == (DEPLOY / "60-powerd.rules").read_bytes()


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("boot/uEnv.txt", "uboot_overlay_addr7=/lib/firmware/BB-I2C2-FAST-00A0.dtbo"),
        ("boot/firmware/config.txt", "dtparam=i2c_arm=on,i2c_arm_baudrate=400000"),
    ],
)
def test_boot_settings_are_added_once(tmp_path: Path, file: str, line: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text("before=1")
    for _ in range(2):
        install("--root", tmp_path, "--boot")
        assert path.read_text() == f"before=1\n{line}\n"
    assert path.with_name(path.name + ".before-powerd").read_text() == "before=1"
    assert (tmp_path / "etc/modules-load.d/powerd.conf").read_text().endswith("i2c-dev\n")


def test_an_overlay_of_somebody_else_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "boot").mkdir()
    (tmp_path / "boot/uEnv.txt").write_text("uboot_overlay_addr7=/lib/firmware/MINE.dtbo\n")
    assert "already uses uboot_overlay_addr7" in install("--root", tmp_path, "--boot", status=2)


def test_bad_use_and_wheels_without_a_network(tmp_path: Path) -> None:
    for arguments in (["--fast"], ["--root"], ["--root", "none"], ["--dry-run", "--wheels", tmp_path]):
        assert install(*arguments, status=2)
    (tmp_path / "powerd-0.1.0-py3-none-any.whl").touch()
    said = install("--dry-run", "--wheels", tmp_path)
    assert f"--no-index --find-links {tmp_path} powerd[board]" in said
    assert "python3-zmq" not in said


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_the_script_is_clean() -> None:
    subprocess.run(["shellcheck", str(SCRIPT)], check=True)


def unit(name: str = "powerd.service") -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in (DEPLOY / name).read_text().splitlines():
        if match := re.fullmatch(r"(\w+)=(.*)", line):
            found.setdefault(match[1], []).append(match[2])
    return found


def test_the_unit_notifies_restarts_and_has_no_privileges() -> None:
    found = unit()
    for name, value in (
        ("Type", "notify"),
        ("Restart", "on-failure"),
        ("User", "powerd"),
        ("NoNewPrivileges", "yes"),
        ("ProtectSystem", "strict"),
        ("CapabilityBoundingSet", ""),
    ):
        assert found[name] == [value]
    # ZeroMQ aborts where it may not list the network interfaces.
    assert "AF_NETLINK" in found["RestrictAddressFamilies"][0]


def test_the_unit_lets_nvml_at_the_devices_of_every_driver() -> None:
    """Names of /proc/devices are matched as file names are (systemd.resource-control(5))."""
    groups = [g.removesuffix(" rw").removeprefix("char-") for g in unit()["DeviceAllow"]]
    for name in ("nvidia-frontend", "nvidia", "nvidiactl", "i2c", "ttyACM", "ttyUSB", "usb"):
        assert any(fnmatch(name, group) for group in groups)
    assert not any(fnmatch("mem", group) for group in groups)


def test_no_variable_of_the_environment_says_what_the_control_helper_runs_as_root() -> None:
    found = unit("powerd-control.service")
    for name in ("ExecStart", "ExecStopPost"):
        (command,) = found[name]
        assert command.startswith("/opt/powerd/bin/python -I -m powerd_control ")
    assert not any(name.startswith("Environment") for name in found)


def test_the_control_helper_can_ask_the_machine_what_it_has_to() -> None:
    """It reads the boot's number, the beginning of processes and NVIDIA's devices, and gives its socket to a group."""
    found = unit("powerd-control.service")
    assert "ProcSubset" not in found
    assert found["SystemCallFilter"][-1] == "@chown"
    assert found["DeviceAllow"] == ["char-nvidia* rw"]


needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")


@needs_systemd
@pytest.mark.parametrize("name", sorted(path.name for path in DEPLOY.glob("*.service")))
def test_systemd_accepts_the_unit(tmp_path: Path, name: str) -> None:
    text = re.sub(r"/opt/powerd/bin/[\w-]+", "/bin/true", (DEPLOY / name).read_text())
    (tmp_path / name).write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", str(tmp_path / name)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert name not in done.stderr, done.stderr


@pytest.mark.slow
@needs_systemd
def test_what_the_control_helper_is_exposed_to() -> None:
    """Of 10; it was 3.7. It has to be root with CAP_SYS_ADMIN at the driver's devices."""
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", str(DEPLOY / "powerd-control.service")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    level = re.search(r"exposure level .*: ([\d.]+)", done.stdout)
    if level is None:
        pytest.skip("this systemd reads no units offline")
    assert float(level[1]) <= 1.8


def test_the_configurations_are_good(tmp_path: Path) -> None:
    parse_config((DEPLOY / "powerd.toml").read_text(), "powerd.toml")
    (plan,) = plan_file(DEPLOY / "gpu-card.toml")
    assert plan.problems == ()
    assert len(plan.budgets) == 8
    assert tomllib.loads((DEPLOY / "gpu-card.toml").read_text())["source"][0]["kind"] == "ina"


def test_the_rules_name_groups_that_the_installation_makes() -> None:
    rules = (DEPLOY / "60-powerd.rules").read_text()
    users = (DEPLOY / "powerd.sysusers").read_text()
    for group in set(re.findall(r'GROUP="(\w+)"', rules)):
        assert re.search(rf"^([gu]|m\s+powerd)\s+{group}\b", users, re.MULTILINE), group


def deploy(*words: str | Path) -> int:
    return main(["deploy", *map(str, words)])


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_is_laid_below_a_root_as_a_package_needs_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], service: str
) -> None:
    assert deploy(service, "--root", tmp_path, "--dry-run") == 0
    assert files(tmp_path) == {}
    assert deploy(service, "--root", tmp_path) == 0
    laid = files(tmp_path)
    assert f"usr/lib/systemd/system/{service}.service" in laid
    unit = laid[f"usr/lib/systemd/system/{service}.service"].decode()
    assert f"ExecStart={Path(sys.prefix) / 'bin'}/" in unit
    assert "/opt/powerd" not in unit
    capsys.readouterr()
    assert deploy(service, "--root", tmp_path) == 0
    assert files(tmp_path) == laid
    assert capsys.readouterr().out.count("is there: ") == len(laid)


def test_a_file_of_an_operator_is_left_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy = tmp_path / "etc/powerd/control.toml"
    policy.parent.mkdir(parents=True)
    policy.write_text('[[allow]]\nuser = "ada"\n')
    (tmp_path / "usr/lib/systemd/system").mkdir(parents=True)
    (tmp_path / "usr/lib/systemd/system/powerd-control.service").symlink_to(tmp_path / "nowhere")
    assert deploy("powerd-control", "--root", tmp_path) == 1
    assert policy.read_text() == '[[allow]]\nuser = "ada"\n'
    assert f"left as it is, and differs from ours: {policy}" in capsys.readouterr().out
    assert (tmp_path / "usr/lib/systemd/system/powerd-control.service").is_symlink()


def test_where_nothing_may_be_written_one_line_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "etc").write_text("a file")
    (tmp_path / "usr").write_text("a file")
    assert deploy("powerd", "--root", tmp_path) == 2
    assert capsys.readouterr().err.count("\n") == 1
