"""The module for Lightning: by a real Trainer and strategy, and in training on two gloo ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.consult import Question, consult
from autotune.export import compare, export, write
from autotune.setup import Backend, Setup
from autotune.wiring.exports import unmeasured
from tests.build import make_setup
from tests.proof import SAMPLED, SCALE, faults, read

EXAMPLES = Path(__file__).parents[2] / "examples"
ON_CPUS = {"CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}


@pytest.mark.parametrize("backend", list(SAMPLED))
def test_the_trainer_sees_what_the_notes_promise(backend: Backend, tmp_path: Path) -> None:
    found = read("lightning", SAMPLED[backend], tmp_path)
    assert list(faults(found)) == []
    for setup, _, answer in found:
        assert answer.effective["activation_checkpointing"] == setup.activation_checkpointing
        assert answer.effective["micro_batch"] == setup.micro_batch


LIES = {
    "unsharded": (make_setup(backend="fsdp"), "fsdp_setup.shard", "torch.nn.Sequential"),
    "accumulation": (make_setup(backend="fsdp"), "fsdp_setup.GRADIENT_ACCUMULATION", "7"),
    "autocast beside the policy": (
        make_setup(backend="fsdp", precision="fp16"),
        "        yield",
        "        with super().forward_context():\n            yield",
    ),
    "no hook": (
        make_setup(backend="ddp", grad_comm_dtype="bf16"),
        "ddp_setup.connect(self.model)",
        "pass",
    ),
    "precision": (make_setup(backend="ddp", precision="bf16"), '"bf16-mixed"', '"32-true"'),
    "accumulation in the JSON": (make_setup(), 'config.pop("gradient_acc', 'config.pop("'),
    "batches in fp32": (make_setup(precision="bf16"), '"bf16-mixed"', '"32-true"'),
    "not recomputed": (
        make_setup(activation_checkpointing=True),
        'setattr(layer, "forward", again)',
        "pass",
    ),
}
"""A setup, and what in its module is replaced by what."""
SEEN = {
    "accumulation": "gradient_accumulation",
    "no hook": "grad_comm_dtype",
    "precision": "precision",
    "not recomputed": "activation_checkpointing",
}
"""The knob in which a lie shows; the others are refused."""


def test_a_module_that_says_something_else_is_caught(tmp_path: Path) -> None:
    made = {}
    for name, (setup, old, new) in LIES.items():
        made[name] = export(unmeasured(setup, None), "lightning")
        write(made[name], tmp_path / name)
        path = tmp_path / name / "lightning_setup.py"
        text = path.read_text(encoding="utf-8")
        assert old in text
        path.write_text(text.replace(old, new), encoding="utf-8")
    answers = consult([Question("lightning", tmp_path / name) for name in made])
    for (name, exported), answer in zip(made.items(), answers, strict=True):
        assert (answer.refused is None) == (name in SEEN), name
        if answer.refused is None:
            differing = compare(LIES[name][0], exported.notes, answer.effective)
            assert SEEN[name] in {item.knob for item in differing}, name


LEARNER = '''
import contextlib
import json
import os
import sys

import lightning
import lightning_setup
import torch
from tiny_model import TinyModel, batches, leave, loss_of
from torch.utils.data import DataLoader


class Learner(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.model = TinyModel()
        self.losses = []

    def configure_model(self):
        lightning_setup.prepare(self.model, self.device_mesh)

    def training_step(self, batch, number):
        loss = loss_of(self.model, batch)
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=2e-3)


def by_lightning(samples):
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        **lightning_setup.trainer_arguments(),
    )
    learner = Learner()
    trainer.fit(learner, DataLoader(samples, batch_size=None))
    return trainer.global_step, learner.losses


def by_hand(samples, own):
    """The loop in the docstring of the backend's own module."""
    torch.manual_seed(0)
    model = TinyModel()
    model = own.shard(model) if hasattr(own, "shard") else own.wrap(model)
    autocast = own.autocast("cpu") if hasattr(own, "autocast") else contextlib.nullcontext()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    scaler = own.scaler("cpu")
    losses = []
    for number, batch in enumerate(samples, start=1):
        last = number % own.GRADIENT_ACCUMULATION == 0
        later = not last and hasattr(model, "no_sync")
        with model.no_sync() if later else contextlib.nullcontext():
            with autocast:
                loss = loss_of(model, batch)
            losses.append(loss.item())
            scaler.scale(loss / own.GRADIENT_ACCUMULATION).backward()
        if last:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), own.GRADIENT_CLIPPING)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    return losses


rank = int(os.environ["RANK"])
cpu = torch.device("cpu")
samples = [next(batches(lightning_setup.MICRO_BATCH, 10 * rank + step, cpu)) for step in range(8)]
steps, losses = by_lightning(samples)
found = {"steps": steps, "lightning": losses}
found["hand"] = by_hand(samples, __import__(sys.argv[1]))
with open(f"{rank}.json", "w") as file:
    json.dump(found, file)
leave()
'''


def run(folder: Path, ranks: int, *words: str) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*launcher, f"--nproc-per-node={ranks}", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **ON_CPUS, "PYTHONPATH": f".{os.pathsep}{EXAMPLES}"},
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize(
    "setup",
    [
        make_setup(
            backend="fsdp",
            precision="bf16",
            grad_comm_dtype="bf16",
            activation_checkpointing=True,
        ),
        make_setup(backend="fsdp", precision="fp16", grad_comm_dtype="fp32", loss_scale=SCALE),
        make_setup(
            backend="ddp", precision="bf16", grad_comm_dtype="bf16", activation_checkpointing=True
        ),
    ],
    ids=lambda setup: setup.key,
)
def test_lightning_trains_to_the_last_bit_as_the_loop_that_the_module_describes(
    setup: Setup, tmp_path: Path
) -> None:
    write(export(unmeasured(setup, None), "lightning"), tmp_path)
    (tmp_path / "learner.py").write_text(LEARNER, encoding="utf-8")
    run(tmp_path, 2, "learner.py", f"{setup.backend}_setup")
    for rank in range(2):
        found = json.loads((tmp_path / f"{rank}.json").read_text(encoding="utf-8"))
        assert found["steps"] == 8 // setup.gradient_accumulation
        assert found["lightning"] == found["hand"]
        assert found["lightning"][-1] < found["lightning"][0] - 0.5


# Lightning calls configure_model inside zero.Init; its strategy itself needs GPUs.
PARTITIONED = """
import json

import deepspeed
import lightning_setup
import torch
from tiny_model import TinyModel, batches, loss_of

deepspeed.init_distributed("gloo")
config = {**lightning_setup.configuration(), "gradient_accumulation_steps": 1}
found = []
for prepared in (False, True):
    torch.manual_seed(0)
    calls = []
    with deepspeed.zero.Init(config_dict_or_path=config):
        model = TinyModel()
        if prepared:
            lightning_setup.prepare(model)
            lightning_setup.prepare(model)
    model.layers[0].qkv.register_forward_pre_hook(lambda *_: calls.append(1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=optimizer, config=config, dist_init_required=False
    )
    losses = []
    for _, batch in zip(range(4), batches(2, 0, torch.device("cpu"))):
        loss = loss_of(engine, batch)
        losses.append(loss.item())
        engine.backward(loss)
        engine.step()
    found.append({"calls": len(calls), "losses": losses})
with open("found.json", "w") as file:
    json.dump(found, file)
torch.distributed.destroy_process_group()
"""


@pytest.mark.slow  # compiles an optimizer of DeepSpeed on a fresh machine
def test_under_stage_3_a_prepared_model_recomputes_and_trains_the_same(tmp_path: Path) -> None:
    setup = make_setup(precision="bf16", zero_stage=3, activation_checkpointing=True)
    write(export(unmeasured(setup, None), "lightning"), tmp_path)
    (tmp_path / "partitioned.py").write_text(PARTITIONED, encoding="utf-8")
    run(tmp_path, 1, "partitioned.py")
    plain, prepared = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    assert (plain["calls"], prepared["calls"]) == (4, 8)
    assert prepared["losses"] == plain["losses"]
    assert plain["losses"][-1] < plain["losses"][0]
