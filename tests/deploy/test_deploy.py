"""What is laid onto a board: the install script in a fake root, the unit, the rules, the configurations."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

from powerd_daemon.config import parse_config
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


def test_dry_run_changes_nothing(tmp_path: Path) -> None:
    said = install("--dry-run", "--root", tmp_path)
    assert files(tmp_path) == {}
    assert all(f"would write: /{name}" in said for name in LAID)
    assert "would run: python3 -m venv --system-site-packages /opt/powerd" in said
    assert "python3-zmq python3-smbus2 python3-serial" in said
    assert "--no-index" in said


def test_a_fake_root_gets_the_files_and_the_running_system_nothing(tmp_path: Path) -> None:
    said = install("--root", tmp_path)
    assert files(tmp_path) == {name: (DEPLOY / source).read_bytes() for name, source in LAID.items()}
    assert "running:" not in said
    assert "left to the board itself: systemctl enable powerd.service" in said


def test_again_changes_nothing_and_keeps_the_configuration(tmp_path: Path) -> None:
    install("--root", tmp_path)
    (tmp_path / "etc/powerd/powerd.toml").write_text("# mine\n")
    (tmp_path / "etc/udev/rules.d/60-powerd.rules").write_text("# old\n")
    said = install("--root", tmp_path)
    assert (tmp_path / "etc/powerd/powerd.toml").read_text() == "# mine\n"
    assert (tmp_path / "etc/udev/rules.d/60-powerd.rules").read_bytes() == (DEPLOY / "60-powerd.rules").read_bytes()
    assert "kept: /etc/powerd/powerd.toml" in said
    assert "unchanged: /etc/systemd/system/powerd.service" in said


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("boot/uEnv.txt", "uboot_overlay_addr7=/lib/firmware/BB-I2C2-FAST-00A0.dtbo"),
        ("boot/firmware/config.txt", "dtparam=i2c_arm=on,i2c_arm_baudrate=400000"),
        ("boot/config.txt", "dtparam=i2c_arm=on,i2c_arm_baudrate=400000"),
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


def test_bad_use(tmp_path: Path) -> None:
    assert "unknown option --fast" in install("--fast", status=2)
    assert "which directory?" in install("--root", status=2)
    assert "is not a directory" in install("--root", tmp_path / "none", status=2)
    assert "no powerd-*.whl" in install("--dry-run", "--wheels", tmp_path, status=2)
    assert "neither /boot/uEnv.txt" in install("--root", tmp_path, "--boot", status=2)


def test_wheels_need_no_network(tmp_path: Path) -> None:
    (tmp_path / "powerd-0.1.0-py3-none-any.whl").touch()
    said = install("--dry-run", "--wheels", tmp_path)
    assert f"--no-index --find-links {tmp_path} powerd[board]" in said
    assert "python3-zmq" not in said


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_the_script_is_clean() -> None:
    subprocess.run(["shellcheck", str(SCRIPT)], check=True)


def unit() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in (DEPLOY / "powerd.service").read_text().splitlines():
        if match := re.fullmatch(r"(\w+)=(.*)", line):
            found.setdefault(match[1], []).append(match[2])
    return found


def test_the_unit_notifies_restarts_and_has_no_privileges() -> None:
    found = unit()
    assert found["Type"] == ["notify"]
    assert found["Restart"] == ["on-failure"]
    assert found["WatchdogSec"] == ["10"]
    assert (found["User"], found["SupplementaryGroups"]) == (["powerd"], ["i2c dialout"])
    assert (found["NoNewPrivileges"], found["ProtectSystem"]) == (["yes"], ["strict"])
    assert found["CapabilityBoundingSet"] == [""]
    # ZeroMQ aborts where it may not list the network interfaces.
    assert "AF_NETLINK" in found["RestrictAddressFamilies"][0]
    assert {"char-i2c rw", "char-ttyACM rw", "char-ttyUSB rw", "char-usb rw"} <= set(found["DeviceAllow"])


@pytest.mark.parametrize("name", ["nvidia-frontend", "nvidia", "nvidiactl"])
def test_the_unit_lets_nvml_at_the_devices_of_every_driver(name: str) -> None:
    """Names of /proc/devices are matched as file names are (systemd.resource-control(5))."""
    groups = [g.removesuffix(" rw").removeprefix("char-") for g in unit()["DeviceAllow"]]
    assert any(fnmatch(name, group) for group in groups)
    assert not any(fnmatch("mem", group) for group in groups)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    text = (DEPLOY / "powerd.service").read_text().replace("/opt/powerd/bin/powerd", "/bin/true")
    (tmp_path / "powerd.service").write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", str(tmp_path / "powerd.service")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "powerd.service" not in done.stderr, done.stderr


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
        assert re.search(rf"^[gu]\s+{group}\b", users, re.MULTILINE), group
