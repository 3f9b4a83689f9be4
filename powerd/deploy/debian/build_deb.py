"""Makes `powerd_VERSION_all.deb`, the board's part as a Debian package: `make deb`, or `build_deb.py FOLDER`.

It needs Python 3.11 and dpkg-deb. Version, description and entry points are those of pyproject.toml. What the package
needs are Debian's own python3-zmq, python3-smbus2 and python3-serial (Debian 12 or newer).
"""

from __future__ import annotations

import gzip
import shutil
import subprocess
import sys
import tempfile
import tomllib
from email.utils import formatdate
from pathlib import Path

HERE = Path(__file__).parent
DEPLOY, ROOT = HERE.parent, HERE.parents[2]
PACKAGES = ("powerd_core", "powerd_daemon")
MODULES = "usr/lib/python3/dist-packages"
FILES = {
    "powerd.service": "usr/lib/systemd/system/powerd.service",
    "powerd.sysusers": "usr/lib/sysusers.d/powerd.conf",
    "60-powerd.rules": "usr/lib/udev/rules.d/60-powerd.rules",
    "powerd.toml": "etc/powerd/powerd.toml",
}
"""What an installation has beside the program, and where a package has it."""
ADDRESS = "powerd@localhost.invalid"
CONTROL = """\
Package: powerd
Version: {version}
Architecture: all
Maintainer: {maintainer} <{address}>
Section: science
Priority: optional
Installed-Size: {kib}
Depends: python3 (>= 3.11), python3-zmq, python3-smbus2, python3-serial
Suggests: python3-shtab
Description: daemon that reads power sensors and serves their readings
 {description}.
 This is the sensor board's part: drivers of INA219 chips and their family on
 I2C, of serial nodes and of wall meters, simulated sensors, and the daemon.
"""
COPYRIGHT = """\
Copyright: {maintainer}
License: Apache-2.0, see /usr/share/common-licenses/Apache-2.0
"""
CHANGES = """\
powerd ({version}) unstable; urgency=medium

  * CHANGELOG.md.gz says what is new.

 -- {maintainer} <{address}>  {date}
"""
COMMAND = """\
#!/usr/bin/python3
import sys

from powerd_daemon.cli import main

sys.exit(main())
"""


def build(folder: Path) -> Path:
    """Make the package in a folder, and return it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    package = folder / f"powerd_{project['version']}_all.deb"
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        tree = Path(temporary) / "powerd"
        lay_programs(tree / MODULES, project)
        for name, place in FILES.items():
            text = (DEPLOY / name).read_text(encoding="utf-8").replace("/opt/powerd/bin/", "/usr/bin/")
            write(tree / place, text)
        write(tree / "usr/bin/powerd", COMMAND, 0o755)
        lay_documents(tree / "usr/share/doc/powerd", project)
        lay_control(tree, project)
        subprocess.run(["dpkg-deb", "--root-owner-group", "--build", str(tree), str(package)], check=True)
    return package


def lay_programs(modules: Path, project: dict) -> None:
    """The board's packages, and what tells Python of their sources and their version."""
    for name in PACKAGES:
        shutil.copytree(ROOT / "powerd" / name, modules / name, ignore=shutil.ignore_patterns("__pycache__"))
    without = shutil.ignore_patterns("debian", "containers")
    shutil.copytree(DEPLOY, modules / "powerd_daemon/deploy_files", ignore=without)
    about = modules / f"powerd-{project['version']}.dist-info"
    heads = {"Metadata-Version": "2.1", "Name": "powerd", "Version": project["version"]}
    write(about / "METADATA", "".join(f"{name}: {value}\n" for name, value in heads.items()))
    write(about / "INSTALLER", "dpkg\n")
    sources = project["entry-points"]["powerd.sources"]
    lines = [f"{name} = {target}\n" for name, target in sources.items()]
    write(about / "entry_points.txt", "[powerd.sources]\n" + "".join(lines))


def lay_documents(folder: Path, project: dict) -> None:
    maintainer = project["authors"][0]["name"]
    write(folder / "copyright", COPYRIGHT.format(maintainer=maintainer))
    write(folder / "CHANGELOG.md.gz", gzip.compress((ROOT / "CHANGELOG.md").read_bytes(), mtime=0))
    date = formatdate((ROOT / "CHANGELOG.md").stat().st_mtime)
    changes = CHANGES.format(version=project["version"], maintainer=maintainer, address=ADDRESS, date=date)
    write(folder / "changelog.gz", gzip.compress(changes.encode(), mtime=0))


def lay_control(tree: Path, project: dict) -> None:
    kib = sum(path.stat().st_size for path in tree.rglob("*") if path.is_file()) // 1024
    who = {"maintainer": project["authors"][0]["name"], "address": ADDRESS}
    about = {"version": project["version"], "description": project["description"], "kib": kib}
    write(tree / "DEBIAN/control", CONTROL.format(**about, **who))
    write(tree / "DEBIAN/conffiles", "/etc/powerd/powerd.toml\n")
    for name in ("postinst", "prerm"):
        write(tree / "DEBIAN" / name, (HERE / name).read_text(encoding="utf-8"), 0o755)


def write(path: Path, content: str | bytes, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    path.chmod(mode)


if __name__ == "__main__":
    print(build(Path(sys.argv[1] if len(sys.argv) > 1 else "dist")))
