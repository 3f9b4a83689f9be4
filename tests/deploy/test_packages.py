"""The Debian package of the board's part, and the files of which containers are made."""

import gzip
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DEPLOY = ROOT / "powerd/deploy"
CONTAINERS = sorted((DEPLOY / "containers").glob("*.Dockerfile"))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="dpkg-deb is not installed")
def test_a_debian_package_runs_from_where_it_is_unpacked(tmp_path):
    script = DEPLOY / "debian/build_deb.py"
    made = subprocess.run([sys.executable, script, tmp_path / "dist"], capture_output=True, text=True, check=True)
    package = tmp_path / "dist" / f"powerd_{PROJECT['version']}_all.deb"
    assert made.stdout.splitlines()[-1] == str(package)
    root, control = tmp_path / "root", tmp_path / "control"
    for option, place in (("-x", root), ("-e", control)):
        subprocess.run(["dpkg-deb", option, package, place], check=True)

    # What a board needs is there, with our names, and nothing that it does not.
    modules = root / "usr/lib/python3/dist-packages"
    assert {p.name for p in modules.iterdir()} == {
        "powerd_core", "powerd_daemon", f"powerd-{PROJECT['version']}.dist-info",
    }  # fmt: skip
    assert not list(root.rglob("__pycache__"))
    unit = (root / "usr/lib/systemd/system/powerd.service").read_text(encoding="utf-8")
    assert "ExecStart=/usr/bin/powerd run --config /etc/powerd/powerd.toml" in unit
    assert "/opt/powerd" not in unit
    for place in ("usr/lib/sysusers.d/powerd.conf", "usr/lib/udev/rules.d/60-powerd.rules", "etc/powerd/powerd.toml"):
        assert (root / place).is_file()
    changes = gzip.decompress((root / "usr/share/doc/powerd/changelog.gz").read_bytes()).decode()
    assert changes.startswith(f"powerd ({PROJECT['version']}) unstable")

    fields = dict(line.split(": ", 1) for line in (control / "control").read_text().splitlines() if line[0] != " ")
    assert (fields["Package"], fields["Version"]) == ("powerd", PROJECT["version"])
    assert fields["Depends"] == "python3 (>= 3.11), python3-zmq, python3-smbus2, python3-serial"
    assert (control / "conffiles").read_text() == "/etc/powerd/powerd.toml\n"
    for name in ("postinst", "prerm"):
        assert os.access(control / name, os.X_OK)
        subprocess.run(["sh", "-n", control / name], check=True)

    def run(*arguments):
        command = [sys.executable, *arguments]
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(modules), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=True)
        return done.stdout

    program = root / "usr/bin/powerd"
    assert run("-c", "import powerd_daemon; print(powerd_daemon.__file__)").startswith(str(modules))
    assert run(program, "--version") == f"powerd {PROJECT['version']}\n"
    kinds = re.findall(r"^([\w-]+)(?: \(untested on hardware\))?$", run(program, "sources"), re.MULTILINE)
    assert set(kinds) == set(PROJECT["entry-points"]["powerd.sources"])
    assert "powerd-control" in run(program, "deploy", "powerd-control", "--root", tmp_path / "laid")


@pytest.mark.parametrize("path", CONTAINERS, ids=lambda path: path.stem)
def test_a_containers_file_names_what_there_is(path):
    text = path.read_text(encoding="utf-8")
    for line in re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE):
        *sources, _ = line.split()
        assert all((ROOT / name).exists() for name in sources), line
    (extra,) = re.findall(r"'/source\[(\w+)\]'", text)
    assert extra in PROJECT["optional-dependencies"]
    (program,) = re.findall(r'^ENTRYPOINT \["([\w-]+)"\]$', text, re.MULTILINE)
    assert program in PROJECT["scripts"]
    assert re.search(r"^USER (?!root)\w+$", text, re.MULTILINE)
    assert re.search(r"^HEALTHCHECK ", text, re.MULTILINE)


def test_there_is_a_container_of_the_daemon_and_one_of_joules():
    assert [path.stem for path in CONTAINERS] == ["joules", "powerd"]
