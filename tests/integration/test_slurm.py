"""The exported train.sbatch on a real Slurm, which is installed where that is possible."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.backends import backend_of
from autotune.bundle import bundle
from autotune.export import export, subject_of, write
from autotune.render import render
from autotune.workload import Script
from tests.build import make_probe, make_setup
from tests.recorder import HOSTILE
from tests.slurm import KILL_WAIT, Cluster, available, until
from tests.unit.test_export import PROVENANCE

# It installs Slurm where it may, which the usual tests should not do to a machine.
pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]
EXAMPLES = Path(__file__).parents[2] / "examples"
PYTHON = {"PYTHON": sys.executable, "NPROC_PER_NODE": "1", "OMP_NUM_THREADS": "1"}
SAYS = """\
import fsdp_setup, json, os, sys
from pathlib import Path

names = ("WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "AUTOTUNE_FSDP_SETUP")
said = {name: os.environ[name] for name in names}
said["reduces"] = str(fsdp_setup.REDUCE_DTYPE)
Path(f"rank{os.environ['RANK']}.json").write_text(json.dumps([sys.argv[1:], said]))
"""
WAITS = """\
import os, signal, sys, time
from pathlib import Path

rank = int(os.environ["RANK"])
signal.signal(signal.SIGTERM, signal.SIG_IGN if rank == 1 else signal.SIG_DFL)
Path(f"pid{rank}").write_text(str(os.getpid()))
while len(list(Path().glob("pid*"))) < 2:
    time.sleep(0.1)
if "fail" in sys.argv and rank == 0:
    sys.exit(3)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    if not available():
        pytest.skip("Slurm is not here and cannot be installed")
    started = Cluster(tmp_path_factory.mktemp("slurm"))
    try:
        started.start()
        yield started
    finally:
        started.stop()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Where jobs are submitted from, with an export below."""
    home = tmp_path / "it's $(a) home"
    home.mkdir()
    setup = make_setup(backend="fsdp", precision="bf16", grad_comm_dtype="fp32")
    backend = backend_of(setup)
    text = render(backend.template, backend.variables(setup), None)
    probe = replace(make_probe(0, setup), rendered=text)
    write(export(subject_of(probe, PROVENANCE), "slurm"), home / "tuned it's")
    return home


def log(home: Path) -> str:
    return (home / "job.log").read_text()


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # One that is dead and not yet reaped is dead.
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


def pids_of(home: Path) -> list[int]:
    assert until(lambda: len(list(home.glob("pid*"))) == 2, 60), log(home)
    assert until(lambda: all(path.read_text() for path in home.glob("pid*")))
    return [int(path.read_text()) for path in home.glob("pid*")]


def test_every_node_starts_the_script_with_its_arguments_untouched(
    cluster: Cluster, home: Path
) -> None:
    (home / "train it.py").write_text(SAYS)
    job = ["--nodes=2", "tuned it's/train.sbatch", "train it.py", *HOSTILE]
    number = cluster.submit(job, home, **PYTHON, NNODES="7", AUTOTUNE_FOLDER="/another/export")
    assert cluster.ended(number) == ("COMPLETED", 0), log(home)
    for rank in range(2):
        words, said = json.loads((home / f"rank{rank}.json").read_text())
        assert words == HOSTILE
        assert (said["WORLD_SIZE"], said["GROUP_WORLD_SIZE"]) == ("2", "2")
        assert said["GROUP_RANK"] == str(rank)
        assert said["AUTOTUNE_FSDP_SETUP"] == str(home / "tuned it's/fsdp_setup.py")
        assert said["reduces"] == "torch.float32"
    assert not (home / "pwned").exists()


def test_one_node_with_two_processes_and_an_environment_of_its_own(
    cluster: Cluster, home: Path
) -> None:
    (home / "train.py").write_text(SAYS)
    given = ",".join(f"{name}={value}" for name, value in {**PYTHON, "NPROC_PER_NODE": "2"}.items())
    job = [f"--export={given}", "--cpus-per-task=2", "tuned it's/train.sbatch"]
    number = cluster.submit([*job, "train.py"], home)
    assert cluster.ended(number) == ("COMPLETED", 0), log(home)
    _, said = json.loads((home / "rank1.json").read_text())
    assert (said["WORLD_SIZE"], said["GROUP_WORLD_SIZE"]) == ("2", "1")


def test_a_script_that_fails_ends_the_other_node_and_fails_the_job(
    cluster: Cluster, home: Path
) -> None:
    (home / "train.py").write_text(WAITS.replace("SIG_IGN", "SIG_DFL"))
    job = ["--nodes=2", "tuned it's/train.sbatch", "train.py", "fail"]
    number = cluster.submit(job, home, **PYTHON)
    state, code = cluster.ended(number)
    assert state == "FAILED", log(home)
    assert code != 0
    assert until(lambda: not any(alive(pid) for pid in pids_of(home)), KILL_WAIT + 5)


@pytest.mark.parametrize("deaf", [False, True])
def test_a_cancelled_job_leaves_no_worker(cluster: Cluster, home: Path, deaf: bool) -> None:
    text = WAITS if deaf else WAITS.replace("SIG_IGN", "SIG_DFL")
    (home / "train.py").write_text(text)
    job = ["--nodes=2", "tuned it's/train.sbatch", "train.py"]
    number = cluster.submit(job, home, **PYTHON)
    pids = pids_of(home)
    assert all(alive(pid) for pid in pids)
    cluster.ask("scancel", number)
    assert until(lambda: not any(alive(pid) for pid in pids), KILL_WAIT + 15)
    assert cluster.ended(number)[0] == "CANCELLED"


def test_a_script_that_is_not_there_is_named_in_the_jobs_log(cluster: Cluster, home: Path) -> None:
    job = ["tuned it's/train.sbatch", "absent.py"]
    assert cluster.ended(cluster.submit(job, home, **PYTHON)) == ("FAILED", 2)
    assert "absent.py is not a file" in log(home)


def test_the_script_that_was_measured_trains_on_two_nodes(cluster: Cluster, home: Path) -> None:
    for name in ("train_ddp.py", "tiny_model.py"):
        shutil.copy(EXAMPLES / name, home)
    setup = make_setup(backend="ddp", precision="bf16", grad_comm_dtype="fp32")
    backend = backend_of(setup)
    text = render(backend.template, backend.variables(setup), None)
    probe = replace(make_probe(0, setup), rendered=bundle({"ddp_setup.py": text}))
    words = ("train_ddp.py", "--precision", "{precision}", "--micro-batch", "{micro_batch}")
    subject = subject_of(probe, PROVENANCE, None, Script(command=words))
    write(export(subject, "slurm"), home / "measured")
    job = ["--nodes=2", "measured/train.sbatch", "--steps", "3"]
    number = cluster.submit(job, home, **PYTHON)
    assert cluster.ended(number) == ("COMPLETED", 0), log(home)
    assert "step=2 loss=" in log(home)
    assert (home / "checkpoints/checkpoint.pt").exists()
