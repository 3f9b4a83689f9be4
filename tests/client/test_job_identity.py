"""Which job a process belongs to, by what schedulers put into its environment and its control group."""

import json
import time

import pytest

from powerd_client.host.job_identity import JobIdentity, gpus_of, job_of, job_of_process, read_environment
from support.steady import steady_daemon

POD = "6a1f0b52-0c5e-4b1c-9f6e-0a1b2c3d4e5f"


@pytest.mark.parametrize(
    ("environment", "job"),
    [
        (
            {
                "SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "resnet", "SLURM_JOB_USER": "ana", "SLURM_JOB_ACCOUNT": "p7",
                "SLURM_JOB_PARTITION": "gpu", "SLURM_STEP_ID": "0",
            },
            JobIdentity("slurm", "7", "resnet", "ana", "p7", "gpu", "0"),
        ),
        (
            {"PBS_JOBID": "9.head", "PBS_JOBNAME": "n", "PBS_O_LOGNAME": "ana", "PBS_QUEUE": "q"},
            JobIdentity("pbs", "9.head", "n", "ana", "", "q"),
        ),
        ({"LSB_JOBID": "3", "LSB_QUEUE": "q", "USER": "ana"}, JobIdentity("lsf", "3", "", "ana", "", "q")),
        ({"USER": "ana", "POWERD_JOB": "mine"}, None),
        ({"SLURM_JOB_ID": ""}, None),
    ],
)  # fmt: skip
def test_the_environment_names_the_job(environment, job):
    assert job_of(environment) == job


@pytest.mark.parametrize(
    ("groups", "job"),
    [
        (f"0::/kubepods.slice/kubepods-pod{POD.replace('-', '_')}.slice/cri-1.scope", JobIdentity("kubernetes", POD)),
        (f"4:memory:/kubepods/burstable/pod{POD}/0123", JobIdentity("kubernetes", POD)),
        ("0::/system.slice/slurmstepd.scope/job_12/step_batch/user/task_0", JobIdentity("slurm", "12")),
        ("0::/user.slice/user-1000.slice", None),
    ],
)
def test_the_control_group_does_where_the_environment_says_nothing(groups, job):
    assert job_of({}, groups) == job


@pytest.mark.parametrize(
    ("told", "gpus"), [("0", (0,)), ("0,2-3", (0, 2, 3)), ("gpu:1", (1,)), ("", None), ("a", None), ("1-", (1,))]
)
def test_the_gpus_of_a_job(told, gpus):
    assert gpus_of({"SLURM_JOB_GPUS": told}) == gpus


def test_another_process_is_asked_by_proc_and_its_owner_is_the_user(tmp_path):
    (tmp_path / "5").mkdir()
    (tmp_path / "5" / "environ").write_bytes(b"LSB_JOBID=3\0ODD\0LSB_JOBNAME=a=b\0")
    job = job_of_process(5, tmp_path)
    assert (job.key, job.name) == ("lsf 3", "a=b")
    assert job.user
    assert job_of_process(6, tmp_path) is None
    assert read_environment(b"A=1\0\xff=2\0") == {"A": "1", "�": "2"}


def test_names_are_one_line_and_short():
    job = job_of({"SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "a\n" * 1000})
    assert len(job.name) < 1500
    assert "\n" not in job.name
    assert json.dumps(job.document)


def test_a_run_says_its_job_and_what_is_set(tmp_path, monkeypatch, capsys):
    """One of one process, too, and so does its row of the index."""
    from powerd_analytics.frame.figures import run_frame
    from powerd_client import Meter

    for name, value in {"SLURM_JOB_ID": "7", "SLURM_JOB_USER": "ana", "SLURM_JOB_ACCOUNT": "p7"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("POWERD_JOB", "mine")
    with (
        steady_daemon() as daemon,
        Meter(daemon.url, tmp_path / "run.h5", attributes={"project": "x", "trial": 3}, quiet=True) as meter,
        meter.phase("step"),
    ):
        time.sleep(0.3)
    frame = run_frame(tmp_path / "run.h5")
    columns = ("job", "job_id", "job_user", "job_account", "attribute_project", "attribute_trial")
    assert {name: frame[name].iloc[0] for name in columns} == {
        "job": "given mine", "job_id": "7", "job_user": "ana", "job_account": "p7", "attribute_project": "x",
        "attribute_trial": 3,
    }  # fmt: skip


@pytest.mark.parametrize("said", ["project", "=p7", "a b=c"])
def test_what_is_set_has_a_name_and_a_value(said, capsys):
    from powerd_analytics import cli

    with pytest.raises(SystemExit) as stopped:
        cli.main(["record", "--set", said, "--", "true"])
    assert stopped.value.code == 2
    assert "NAME=VALUE" in capsys.readouterr().err
