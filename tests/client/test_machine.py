"""What a run says of its machine and of the commit that was trained."""

import subprocess

import pytest

from powerd_client.record.recording import environment, git_commit, machine, training_folder


def git(folder, *words):
    who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", *who, *words], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path):
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init")
    (folder / "train.py").write_text("")
    git(folder, "add", ".")
    git(folder, "commit", "-m", "one")
    return folder


@pytest.mark.parametrize("state", ["branch", "packed", "detached", "worktree", "below"])
def test_the_commit_is_what_git_says(repository, tmp_path, state):
    folder = repository
    if state == "packed":
        git(folder, "pack-refs", "--all")
    elif state == "detached":
        git(folder, "checkout", "--detach")
    elif state == "worktree":
        folder = tmp_path / "worktree"
        git(repository, "worktree", "add", "-b", "other", str(folder))
    elif state == "below":
        folder = repository / "a" / "b"
        folder.mkdir(parents=True)
    assert git_commit(folder) == git(folder, "rev-parse", "HEAD")
    if state != "below":
        assert environment(["python", str(folder / "train.py")])["git_commit"] == git_commit(folder)


@pytest.mark.parametrize("head", ["", "ref: refs/heads/none", "ref: ../../../etc/passwd", "\0", "not a commit"])
def test_what_is_no_commit_is_absent(repository, head):
    (repository / ".git" / "HEAD").write_text(head)
    assert git_commit(repository) is None
    assert "git_commit" not in environment(["python", str(repository / "train.py")])


def test_a_folder_without_git_has_no_commit(tmp_path):
    assert git_commit(tmp_path) is None
    assert training_folder(["python", str(tmp_path / "no.py")]).is_dir()


def test_processor_cores_and_memory_are_those_of_the_kernel(tmp_path):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("processor\t: 0\nmodel name\t: A Processor 9\n")
    (tmp_path / "proc/meminfo").write_text("MemTotal:       33554432 kB\nMemFree: 1 kB\n")
    found = machine(tmp_path)
    assert (found["processor"], found["memory"]) == ("A Processor 9", "32 GiB")
    assert int(found["cores"]) > 0
    assert set(machine(tmp_path / "nothing")) == {"cores"}
