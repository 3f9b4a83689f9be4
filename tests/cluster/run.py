"""`make cluster`: a month's table from a real Slurm, and a real Prometheus beside it, on one machine.

    python tests/cluster/run.py DIRECTORY

Twelve jobs of three users train on two simulated GPUs; two are killed, and so is the accounting in the middle. What
`joules jobs` says of each job is compared with one run file of the whole time, over the seconds that the job had its
GPU. Needs root and Debian's slurm-wlm, munge and prometheus; what is missing is said. The report goes to
docs/results/cluster.md.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import slurm

REPOSITORY = Path(__file__).parents[2]
BIN = Path(sys.prefix) / "bin"
URL, EXPORTER, PROMETHEUS = "tcp://127.0.0.1:17360", "127.0.0.1:19402", "127.0.0.1:19090"
PLAN = [(user, account, i) for i, (user, account) in enumerate(
    4 * [("ada", "vision"), ("ben", "vision"), ("eve", "speech")])]  # fmt: skip
KILLED = (4, 7)
ITERATIONS, ITERATION_MS = 40, 200
_CONFIGURATION = f"""\
[server]
listen = "{URL}"
[[source]]
kind = "nvml"
[[source]]
kind = "cpu-model"
[[source]]
kind = "sim"
device = "board"
rate_hz = 50
fault_every_s = 3
"""
_CAMPAIGN = """\
[campaign]
name = "on-slurm"
command = ["{python}", "{training}", "--iterations", "6", "--iteration-ms", "150", "--batch", "{{batch_size}}"]
[factors]
batch_size = [64, 128]
power_cap_w = [150, 260]
[repeats]
min = 2
[control]
devices = "gpu0"
[executor]
kind = "submitit"
gpus = 1
time_min = 5
"""


@dataclass
class Lab:
    """The folder, the programs that were started, and the rows of the report."""

    folder: Path
    programs: list[subprocess.Popen[bytes]] = field(default_factory=list)
    rows: list[tuple[str, str, bool]] = field(default_factory=list)

    def start(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        log = (self.folder / f"{name}.log").open("ab")
        program = subprocess.Popen(words, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)
        self.programs.append(program)
        return program

    def found(self, what: str, result: str, is_good: bool = True) -> None:
        self.rows.append((what, result, is_good))
        print(f"{what}: {result}{'' if is_good else '   MISSED'}", flush=True)

    def stop(self) -> None:
        for program in reversed(self.programs):
            program.terminate()
        for program in self.programs:
            try:
                program.wait(15)
            except subprocess.TimeoutExpired:
                program.kill()


def main() -> int:
    if lacking := slurm.missing():
        print(f"Skipped: the cluster (there is no {lacking[0]}; Debian: apt-get install slurm-wlm munge prometheus)")
        return 0
    if os.geteuid() != 0:
        print("Skipped: the cluster (Slurm's daemons and a mount namespace need root)")
        return 0
    if "--inside" not in sys.argv:
        slurm.enter()
    folder = Path(sys.argv[1]).absolute()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    folder.chmod(0o755)
    slurm.open_to_others(Path(sys.base_prefix), folder)
    lab, cluster = Lab(folder), slurm.Slurm(folder)
    try:
        begin_measuring(lab)
        cluster.start()
        jobs = run_jobs(lab, cluster)
        prometheus(lab)
        whole = end_measuring(lab)
        compare(lab, whole, jobs)
        campaign(lab, cluster)
        watts(lab)
    finally:
        cluster.stop()
        lab.stop()
    write_report(lab)
    return 0 if all(is_good for _, _, is_good in lab.rows) else 1


def tool(name: str) -> str:
    return str(BIN / name)


def begin_measuring(lab: Lab) -> None:
    """The simulated GPUs, a powerd, and all of its readers: one run file of the whole, the accounting, the exporter."""
    folder = lab.folder
    lab.start("sim-gpu", tool("powerd"), "sim-gpu", "--cards", "2", "--control", "--socket", str(folder / "gpu"))
    wait_for(lambda: "export" in text_of(folder / "sim-gpu.log") and (folder / "gpu").exists())
    for line in text_of(folder / "sim-gpu.log").splitlines():
        if line.strip().startswith("export "):
            name, _, value = shlex.split(line)[1].partition("=")
            os.environ[name] = value.replace("$PYTHONPATH", "").replace("$PATH", os.environ["PATH"]).rstrip(":")
    (folder / "gpu").chmod(0o666)
    (folder / "powerd.toml").write_text(_CONFIGURATION)
    (folder / "runs").mkdir()
    (folder / "runs").chmod(0o1777)
    (folder / "events").mkdir()
    lab.start("powerd", tool("powerd"), "run", "--config", str(folder / "powerd.toml"))
    wait_for(lambda: "listens" in text_of(folder / "powerd.log"))
    until_stopped = f"while [ ! -e {folder}/stop ]; do sleep 0.1; done"
    lab.start(
        "whole", tool("joules"), "record", "--url", URL, "-o", str(folder / "whole.h5"), "--", "sh", "-c", until_stopped
    )
    start_accounting(lab)
    lab.start("export", tool("powerd"), "export", URL, "--listen", EXPORTER)


def start_accounting(lab: Lab) -> subprocess.Popen[bytes]:
    words = (
        URL,
        "--folder",
        str(lab.folder / "accounting"),
        "--spool",
        str(lab.folder / "events"),
        "--publish-s",
        "10",
    )
    return lab.start("accounting", tool("powerd-accounting"), *words)


def run_jobs(lab: Lab, cluster: slurm.Slurm) -> dict[str, str]:
    """By their numbers the names of the jobs."""
    options = f"--iterations {ITERATIONS} --iteration-ms {ITERATION_MS}"
    training = f"{sys.executable} {REPOSITORY}/examples/sim_training.py {options}"
    numbers: list[str] = []
    for user, account, i in PLAN:
        script = f"{tool('joules')} record -o {lab.folder}/runs/job-{i}.h5 --url {URL} -- {training}"
        numbers.append(cluster.submit(user, f"job-{i}", script, account))
    names = {f"slurm {number}": f"job-{i}" for i, number in enumerate(numbers)}
    accounting, killed, is_down = lab.programs[-2], set[int](), False  # the exporter was started last
    while not cluster.are_over(numbers):
        time.sleep(0.5)
        for i in KILLED:
            if i not in killed and (lab.folder / f"runs/job-{i}.h5.journal").exists():
                time.sleep(3)
                subprocess.run(["scancel", "--full", "-s", "KILL", numbers[i]], check=True)
                killed.add(i)
        if killed and not is_down:
            accounting.send_signal(signal.SIGKILL)
            accounting.wait()
            time.sleep(3)
            start_accounting(lab)
            is_down = True
    how = f"{len(killed)} killed; the accounting killed (signal {-accounting.returncode}) and started again"
    is_so = killed == set(KILLED) and is_down
    lab.found("jobs", f"{len(names)} of {len(slurm.USERS)} users on a real Slurm; {how}", is_so)
    time.sleep(5)
    return names


def end_measuring(lab: Lab) -> Path:
    """The run file of the whole time, when the accounting has everything."""
    (lab.folder / "stop").touch()
    file = lab.folder / "whole.h5"
    wait_for(file.exists, 60)
    time.sleep(15)  # the accounting's last files
    return file


def compare(lab: Lab, whole: Path, names: dict[str, str]) -> None:
    """Each job's row beside the integral of the same readings over the seconds that it had its GPU."""
    from powerd_analytics import read_run
    from powerd_analytics.run_tables.closing_lines import totals
    from powerd_analytics.runs.signals import load_signal
    from powerd_client.host.hostclock import take_anchor

    run, anchor = read_run(whole), take_anchor()
    offset_ns = anchor.t_unix_ns - anchor.t_host_ns
    table = json.loads(joules("jobs", str(lab.folder / "accounting"), "--by", "job,device", "--format", "json"))
    rows = [row for row in table if str(row["device"]).startswith("gpu") and row["job"] in names]
    worst, own_j, sum_j, sum_u95 = 0.0, 0.0, 0.0, 0.0
    for row in rows:
        of_device = load_signal(run, run.devices[row["device"]].feeds[0]).integral()
        begin_ns, end_ns = (ns - offset_ns for ns in held(lab, row["job"].partition(" ")[2]))
        expected = float(of_device.between(begin_ns, end_ns))
        worst = max(worst, abs(row["energy_j"] - expected) / row["u95_j"])
        sum_j, sum_u95 = sum_j + row["energy_j"], sum_u95 + row["u95_j"]
        own_j += totals(lab.folder / f"runs/{names[row['job']]}.h5")[f"powerd/{row['device']}.simulated/energy_j"]
    lab.found("jobs with a row on the GPU that they held", f"{len(rows)} of {len(names)}", len(rows) == len(names))
    lab.found("joules of each job beside the integral of the run file of the whole", f"at worst {worst:.2f} of U95",
              worst < 1)  # fmt: skip
    lab.found(
        "all jobs by the accounting, and by their own run files",
        f"{sum_j:.0f} ± {sum_u95:.0f} J and {own_j:.0f} J: the rest was drawn before and behind their recordings",
        own_j < sum_j + sum_u95,
    )
    lab.found("killed jobs", ", ".join(f"{row['job']} {row['energy_j']:.0f} J, exit {row['exit']}" for row in rows
                                       if names[row["job"]] in {f"job-{i}" for i in KILLED}))  # fmt: skip
    for by in ("user", "account", "job"):
        print(joules("jobs", str(lab.folder / "accounting"), "--by", by))
    (lab.folder / "month.txt").write_text(joules("jobs", str(lab.folder / "accounting"), "--by", "account,user"))


def held(lab: Lab, number: str) -> list[int]:
    """When a job took its GPU and let it go, UTC in nanoseconds, by the names of prolog's and epilog's files."""
    files = [path.name.split(".") for path in (lab.folder / "events").iterdir()]
    return [next(int(ns) for ns, job, what in files if (job, what) == (number, end)) for end in ("begin", "end")]


def prometheus(lab: Lab) -> None:
    """Every query of the dashboard."""
    if shutil.which("prometheus") is None:
        lab.found("Prometheus", "skipped: it is not installed")
        return
    place = lab.folder / "prometheus"
    shutil.copytree(REPOSITORY / "powerd/deploy/prometheus", place)
    text = (place / "prometheus.yml").read_text().replace("127.0.0.1:9402", EXPORTER).replace("15s", "2s")
    (place / "prometheus.yml").write_text(text)
    lab.start("prometheus", "prometheus", f"--config.file={place / 'prometheus.yml'}",
              f"--storage.tsdb.path={lab.folder / 'tsdb'}", f"--web.listen-address={PROMETHEUS}")  # fmt: skip
    lab.start("lease", tool("powerd"), "control", "set", "gpu0", "power_cap_w=200", "--for", "60")
    training = [sys.executable, str(REPOSITORY / "examples/sim_training.py"), "--iterations", "200"]
    lab.start("beside", tool("joules"), "record", "-o", str(lab.folder / "beside.h5"), "--url", URL, "--", *training)
    panels = json.loads((place / "dashboard.json").read_text())["panels"]
    queries = [target["expr"] for panel in panels for target in panel["targets"]]
    end_s, empty = time.monotonic() + 90, queries
    while empty and time.monotonic() < end_s:
        time.sleep(3)
        empty = [query for query in empty if not answer(query)]
    lab.found("queries of the dashboard with data from Prometheus", f"{len(queries) - len(empty)} of {len(queries)}",
              not empty)  # fmt: skip
    for query in empty:
        print(f"  empty: {query}")


def watts(lab: Lab) -> None:
    """By the recording rule, over the last minute of the campaign, and a picture of Prometheus' own page."""
    samples = answer("device:powerd_power_watts:rate1m")
    if samples:
        told = {sample["metric"]["device"]: float(sample["value"][1]) for sample in samples}
        lab.found("watts by the recording rule", ", ".join(f"{name} {w:.0f}" for name, w in sorted(told.items())))
    if shutil.which("chromium"):
        picture = lab.folder / "prometheus.png"
        page = f"http://{PROMETHEUS}/graph?" + urllib.parse.urlencode(
            {"g0.expr": "device:powerd_power_watts:rate1m", "g0.tab": "0", "g0.range_input": "5m"})  # fmt: skip
        subprocess.run(
            ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
             f"--user-data-dir={lab.folder / 'chromium'}", "--window-size=1200,800", "--virtual-time-budget=8000",
             f"--screenshot={picture}", page],
            check=False, capture_output=True,
        )  # fmt: skip
        if not picture.exists():
            lab.found("a picture of Prometheus' page", "none", False)


def answer(query: str) -> list[Any]:
    try:
        with urllib.request.urlopen(
            f"http://{PROMETHEUS}/api/v1/query?" + urllib.parse.urlencode({"query": query})
        ) as got:
            return list(json.load(got)["data"]["result"])
    except OSError:
        return []


def campaign(lab: Lab, cluster: slurm.Slurm) -> None:
    """A campaign whose blocks are jobs of this Slurm."""
    file = lab.folder / "on-slurm.toml"
    training = REPOSITORY / "examples/sim_training.py"
    file.write_text(_CAMPAIGN.format(python=sys.executable, training=training))
    into = ["--into", str(lab.folder / "on-slurm")]
    said = subprocess.run([tool("joules"), "campaign", "run", str(file), *into, "--url", URL], text=True,
                          capture_output=True, check=False)  # fmt: skip
    print(said.stdout + said.stderr)
    end_s = time.monotonic() + 240
    while subprocess.run(["squeue", "-h"], capture_output=True, text=True, check=True).stdout.strip():
        if time.monotonic() > end_s:
            break
        time.sleep(1)
    table = json.loads(joules("campaign", "table", str(file), *into, "--table", "cells", "--format", "json"))
    counts = [row["runs"] for row in (table if isinstance(table, list) else table["rows"])]
    lab.found("cells of a campaign by submitit, and runs of each", f"{len(counts)}: {counts}", counts == [2] * 4)


def joules(*words: str) -> str:
    done = subprocess.run([tool("joules"), *words], capture_output=True, text=True, check=False,
                          env=os.environ | {"COLUMNS": "100"})  # fmt: skip
    if done.returncode:
        raise SystemExit(f"joules {' '.join(words)}: {done.stderr}")
    return done.stdout


def text_of(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


def wait_for(is_so: Any, limit_s: float = 30) -> None:
    end_s = time.monotonic() + limit_s
    while not is_so():
        if time.monotonic() > end_s:
            raise SystemExit("something did not come: see the logs")
        time.sleep(0.1)


def write_report(lab: Lab) -> None:
    rows = [f"| {what} | {result}{'' if is_good else ' **(missed)**'} |" for what, result, is_good in lab.rows]
    month = (lab.folder / "month.txt").read_text().rstrip() if (lab.folder / "month.txt").exists() else ""
    version = subprocess.run(["sinfo", "--version"], capture_output=True, text=True, check=False).stdout.strip()
    text = "\n".join([
        "# A cluster of one node", "",
        f"`make cluster` wrote this page: Debian's {version} and Prometheus, a machine of {os.cpu_count()} cores, and "
        "two simulated GPUs, so that no joule here was measured. Grafana itself was not at hand: the queries of its "
        "dashboard are asked of Prometheus.",
        "",
        "| what | result |", "| --- | --- |", *rows, "",
        "`joules jobs accounting --by account,user`:", "", "```text", month, "```", "",
    ])  # fmt: skip
    if (lab.folder / "prometheus.png").exists():
        shutil.copy(lab.folder / "prometheus.png", REPOSITORY / "docs/results/cluster.png")
        text += "\n![Watts by the recording rule, in Prometheus' own page](cluster.png)\n"
    (REPOSITORY / "docs/results/cluster.md").write_text(text)


if __name__ == "__main__":
    sys.exit(main())
