"""The exported train.sbatch, run with stubs of Slurm's commands and a recorder for Python."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.recorder import HOSTILE, Recorder, exported, recorded, recorded_environment, script

SQUEUE = '#!/bin/sh\n[ -z "$SQUEUE_FAILS" ] || exit 1\nprintf "%s\\n" "$SAYS"\n'
SCONTROL = '#!/bin/sh\n[ "$*" = "show hostnames n[7-9]" ] && printf "n7\\nn8\\nn9\\n"\n'
SRUN = """\
#!/bin/bash
printf '%s\\0' "$@" > srun
while [[ $1 != bash ]]; do shift; done
exec "$@"
"""
JOB = {
    "SLURM_JOB_ID": "123456",
    "SLURM_JOB_NODELIST": "n[7-9]",
    "SLURM_JOB_NUM_NODES": "3",
    "SLURM_NODEID": "2",
}
Submit = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Where jobs are submitted from; below it stubs, spool, and an export."""
    home = tmp_path / "it's $(a) home"
    for name, text in (("squeue", SQUEUE), ("scontrol", SCONTROL), ("srun", SRUN)):
        path = home / "bin" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    (home / "spool").mkdir()
    exported(home / "tuned it's", "slurm")
    return home


@pytest.fixture
def submit(home: Path) -> Submit:
    """Runs the copy in the spool folder, as slurmd does."""
    recorder = Recorder(home)

    def submit(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        shutil.copy(home / "tuned it's/train.sbatch", home / "spool/slurm_script")
        given = {
            "PATH": f"{home}/bin:/usr/bin:/bin",
            "SLURM_SUBMIT_DIR": str(home),
            "SAYS": f"{home}/tuned it's/train.sbatch",
        }
        return recorder.run("spool/slurm_script", *words, **{**given, **JOB, **environment})

    return submit


def test_the_script_and_its_arguments_arrive_untouched(home: Path, submit: Submit) -> None:
    name = script(home, "train $(touch pwned) 'it'\n.py")
    done = submit(name, *HOSTILE)
    assert done.returncode == 0, done.stderr
    words = recorded(home)
    assert words[words.index("--") + 1 :] == [name, *HOSTILE]
    assert not (home / "pwned").exists()


def test_the_topology_is_that_of_the_job(home: Path, submit: Submit) -> None:
    name = script(home)
    done = submit(name, NNODES="9", NODE_RANK="9", MASTER_ADDR="login")
    assert done.returncode == 0, done.stderr
    assert recorded(home) == [
        *("-m", "torch.distributed.run", "--nnodes", "3", "--node-rank", "2"),
        *("--master-addr", "n7", "--master-port", "23456", "--nproc-per-node", "auto"),
        *("--", name),
    ]
    srun = (home / "srun").read_text().split("\0")
    for option, value in (("--nodes", "3"), ("--ntasks", "3"), ("--ntasks-per-node", "1")):
        assert srun[srun.index(option) + 1] == value
    assert "--cpus-per-task" not in srun
    assert "--kill-on-bad-exit=1" in srun


def test_processes_cores_and_port_can_be_chosen(home: Path, submit: Submit) -> None:
    name = script(home)
    submit(name, SLURM_GPUS_ON_NODE="8", SLURM_CPUS_PER_TASK="64", MASTER_PORT="1234")
    words = recorded(home)
    assert words[words.index("--nproc-per-node") + 1] == "8"
    assert words[words.index("--master-port") + 1] == "1234"
    srun = (home / "srun").read_text().split("\0")
    assert srun[srun.index("--cpus-per-task") + 1] == "64"
    submit(name, SLURM_GPUS_ON_NODE="8", NPROC_PER_NODE="4")
    words = recorded(home)
    assert words[words.index("--nproc-per-node") + 1] == "4"


def test_one_node_needs_no_meeting_point(home: Path, submit: Submit) -> None:
    submit(script(home), SLURM_JOB_NUM_NODES="1", SLURM_NODEID="0")
    assert "--standalone" in recorded(home)


ARGUMENTS = ["a b", "new\nline", ""]


@pytest.mark.parametrize("lines", [1, 2])
@pytest.mark.parametrize("older", [False, True])
def test_the_folder_is_that_of_the_submitted_file(
    home: Path, submit: Submit, older: bool, lines: int
) -> None:
    # Older versions of Slurm show the arguments behind the path, arrays a line for each task.
    name = script(home)
    submitted = f"{home}/tuned it's/train.sbatch"
    shown = " ".join([submitted, name, *ARGUMENTS]) if older else submitted
    done = submit(name, *ARGUMENTS, SAYS="\n".join([shown] * lines))
    assert done.returncode == 0, done.stderr
    found = recorded_environment(home)["AUTOTUNE_FOLDER"]
    assert found == str(home / "tuned it's")


def test_a_link_to_the_file_leads_to_its_folder(home: Path, submit: Submit) -> None:
    (home / "mine.sbatch").symlink_to(home / "tuned it's/train.sbatch")
    assert submit(script(home), SAYS=str(home / "mine.sbatch")).returncode == 0
    assert recorded_environment(home)["AUTOTUNE_FOLDER"] == str(home / "tuned it's")


def test_in_an_allocation_it_can_be_run_without_sbatch(home: Path, submit: Submit) -> None:
    path = f"{home}/bin:/usr/bin:/bin"
    here = Recorder(home).run("tuned it's/train.sbatch", script(home), **{**JOB, "PATH": path})
    assert here.returncode == 0, here.stderr
    assert recorded_environment(home)["AUTOTUNE_FOLDER"] == str(home / "tuned it's")


@pytest.mark.parametrize("variable", ["AUTOTUNE_FOLDER", "SLURM_SUBMIT_DIR"])
def test_where_slurm_does_not_answer_a_folder_counts_only_if_this_file_lies_there(
    home: Path, submit: Submit, variable: str
) -> None:
    name = script(home)
    exported(home / "other", "slurm", precision="bf16")
    failing = {"SQUEUE_FAILS": "1", variable: str(home / "other")}
    done = submit(name, **failing)
    assert done.returncode == 2
    assert "set AUTOTUNE_FOLDER" in done.stderr
    assert not (home / "record").exists()
    done = submit(name, **{**failing, variable: str(home / "tuned it's")})
    assert done.returncode == 0, done.stderr
    assert recorded_environment(home)["AUTOTUNE_FOLDER"] == str(home / "tuned it's")


def test_the_environment_of_another_export_does_not_count(home: Path, submit: Submit) -> None:
    exported(home / "other", "slurm", precision="bf16")
    assert submit(script(home), AUTOTUNE_FOLDER=str(home / "other")).returncode == 0
    assert recorded_environment(home)["AUTOTUNE_FOLDER"] == str(home / "tuned it's")


def test_outside_of_slurm_and_without_a_script_it_says_what_to_do(
    home: Path, submit: Submit
) -> None:
    outside = submit("train.py", SLURM_JOB_ID="")
    nothing = submit()
    assert (outside.returncode, nothing.returncode) == (2, 2)
    assert "no job of Slurm; submit it: sbatch" in outside.stderr
    assert "name your script behind it" in nothing.stderr
    assert len(outside.stderr.splitlines()) == len(nothing.stderr.splitlines()) == 1
    assert not (home / "srun").exists()
