"""A Slurm of one node in a mount namespace of its own: three users, two GPUs, and powerd's prolog and epilog.

Nothing of the machine is changed: the users stand in copies of /etc/passwd and /etc/group that only this namespace
sees, and all that the programs write lies in one folder. Needs root, and Debian's packages slurm-wlm and munge.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path

USERS = {"ada": 5001, "ben": 5002, "eve": 5003}
DEPLOY = Path(__file__).parents[2] / "powerd/deploy/slurm"
PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "scancel")

_CONFIGURATION = """\
ClusterName=powerd
SlurmctldHost={host}(127.0.0.1)
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/log/slurmctld
SlurmdLogFile={folder}/log/slurmd
SlurmctldPort=16817
SlurmdPort=16818
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
GresTypes=gpu
Prolog={folder}/prolog
Epilog={folder}/epilog
PrologFlags=Alloc
KillWait=2
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} Gres=gpu:2 State=UNKNOWN
PartitionName=gpu Nodes={host} Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4
"""


def missing() -> list[str]:
    """Programs that are not installed."""
    return [name for name in PROGRAMS if shutil.which(name) is None]


def enter() -> None:
    """Begin this program again in a mount namespace of its own."""
    os.execvp("unshare", ["unshare", "--mount", sys.executable, *sys.argv, "--inside"])


def open_to_others(path: Path, folder: Path) -> None:
    """Let the users reach a folder below a home that is closed to them, as that of an interpreter: in this namespace an
    open folder lies in the place of the home, with that one folder in it."""
    closed = next((p for p in [*reversed(path.parents), path] if not p.stat().st_mode & 1), None)
    if closed is None:
        return
    behind = folder / "behind"
    behind.mkdir()
    _run("mount", "--bind", str(closed), str(behind))
    _run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", str(closed))
    path.mkdir(parents=True)
    _run("mount", "--bind", str(behind / path.relative_to(closed)), str(path))


class Slurm:
    """Running from `start` to `stop`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.events = folder / "events"
        """Where prolog and epilog tell of jobs."""
        os.environ["SLURM_CONF"] = str(folder / "slurm.conf")

    def start(self) -> None:
        for name in ("state", "spool", "log", "munge", "etc", "dev"):
            (self.folder / name).mkdir()
        self._add_users()
        self._configure()
        munge = self.folder / "munge"
        munge.chmod(0o700)
        (munge / "key").write_bytes(os.urandom(32))
        (munge / "key").chmod(0o400)
        own = [f"--{name}-file={munge / name}" for name in ("key", "log", "pid", "seed")]
        _run("munged", "--force", f"--socket={munge / 'socket'}", *own)
        munge.chmod(0o711)
        _run("slurmctld")
        _run("slurmd", "-N", _host())
        end_s = time.monotonic() + 60
        while (
            "idle"
            not in subprocess.run(["sinfo", "-h", "-o", "%T"], capture_output=True, text=True, check=False).stdout
        ):
            if time.monotonic() > end_s:
                raise SystemExit(f"Slurm's node does not come up: see {self.folder}/log")
            time.sleep(0.2)

    def _add_users(self) -> None:
        for name in ("passwd", "group"):
            copy = self.folder / "etc" / name
            shutil.copy(f"/etc/{name}", copy)
            with copy.open("a") as file:
                for user, number in USERS.items():
                    line = (
                        f"{user}:x:{number}:{number}::{self.folder}:/bin/sh"
                        if name == "passwd"
                        else f"{user}:x:{number}:"
                    )
                    file.write(f"{line}\n")
            _run("mount", "--bind", str(copy), f"/etc/{name}")

    def _configure(self) -> None:
        text = _CONFIGURATION.format(folder=self.folder, host=_host(), cpus=os.cpu_count())
        (self.folder / "slurm.conf").write_text(text)
        cards = [self.folder / f"dev/nvidia{i}" for i in range(2)]
        for card in cards:  # Slurm wants devices; what is behind them nobody opens
            os.mknod(card, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        (self.folder / "gres.conf").write_text("".join(f"Name=gpu File={card}\n" for card in cards))
        for name in ("prolog", "epilog"):
            script = self.folder / name
            script.write_text(f"#!/bin/sh\nPOWERD_SPOOL={self.events} exec sh {DEPLOY}/{name}.sh\n")
            script.chmod(0o755)

    def submit(self, user: str, name: str, script: str, account: str) -> str:
        """The number of a job on one of the GPUs."""
        words = ["sbatch", "--parsable", "-J", name, "-A", account, "-n1", "--gres=gpu:1", "--open-mode=append",
                 "-o", str(self.folder / f"runs/{name}.out"), f"--chdir={self.folder}"]  # fmt: skip
        as_user = ["setpriv", f"--reuid={USERS[user]}", f"--regid={USERS[user]}", "--clear-groups"]
        environment = os.environ | {"HOME": str(self.folder), "USER": user, "LOGNAME": user}
        return _run(*as_user, *words, "--wrap", script, env=environment).strip().partition(";")[0]

    def are_over(self, jobs: list[str]) -> bool:
        waiting = _run("squeue", "-h", "-o", "%A").split()
        return not set(jobs) & set(waiting)

    def stop(self) -> None:
        for name in ("slurmd.pid", "slurmctld.pid", "munge/pid"):
            file = self.folder / name
            if file.exists():
                subprocess.run(["kill", file.read_text().strip()], check=False)


def _host() -> str:
    return os.uname().nodename.partition(".")[0]


def _run(*words: str, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=env)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}: {done.stderr.strip() or done.returncode}")
    return done.stdout
