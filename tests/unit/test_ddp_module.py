"""The rendered DDP module on real DDP, with one gloo rank."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from autotune.backends import backend_of
from autotune.probe.ddp_engine import DdpRunner
from autotune.probe.task import Task
from autotune.probe.wire import WireTap
from autotune.render import render
from autotune.setup import LossScale
from tests.build import make_setup
from tests.unit.test_fsdp_module import Block, Model, Nest, process_group

__all__ = ["process_group"]
pytestmark = pytest.mark.usefixtures("process_group")


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Renders a setup and imports it as the user's script does."""

    def load(**knobs: Any) -> ModuleType:
        setup = make_setup(backend="ddp", **knobs)
        backend = backend_of(setup)
        text = render(backend.template, backend.variables(setup), None)
        (tmp_path / backend.file_name).write_text(text, encoding="utf-8")
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "ddp_setup", raising=False)
        return importlib.import_module("ddp_setup")

    return load


@pytest.fixture
def restored() -> Iterator[None]:
    """Takes an installed module out again."""
    build = DistributedDataParallel.__init__
    yield
    setattr(DistributedDataParallel, "__init__", build)  # noqa: B010


def hooks(model: Any) -> int:
    return len(model._comm_hooks)


@pytest.mark.parametrize(("wire", "of_fp32"), [("fp32", 1000), ("bf16", 2000), ("fp16", 2000)])
def test_a_bucket_holds_the_bytes_on_the_wire_that_the_setup_says(
    load: Any, wire: str, of_fp32: int
) -> None:
    model = load(precision="fp16", grad_comm_dtype=wire, bucket_bytes=1000).wrap(Model(Block()))
    assert model.bucket_bytes_cap == of_fp32
    assert model.gradient_as_bucket_view


def test_every_size_of_a_bucket_is_taken_one_that_holds_nothing_included(load: Any) -> None:
    model = load(bucket_bytes=1).wrap(Model(Block()))
    for _ in range(2):
        model(torch.ones(2, 4)).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize(("wire", "number"), [("fp32", 0), ("bf16", 1)])
def test_a_narrow_wire_has_a_hook_and_fp32_is_left_to_ddp(
    load: Any, wire: str, number: int
) -> None:
    assert hooks(load(grad_comm_dtype=wire).wrap(Model(Block()))) == number


@pytest.mark.parametrize("wire", ["fp32", "bf16"])
def test_gradients_are_those_of_the_plain_model_in_float32(load: Any, wire: str) -> None:
    torch.manual_seed(0)
    plain, model = Model(Block()), Model(Block())
    model.load_state_dict(plain.state_dict())
    wrapped = load(grad_comm_dtype=wire).wrap(model)
    for each in (plain, wrapped):
        each(torch.ones(2, 4)).sum().backward()
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert mine.grad is not None
        assert mine.grad.dtype == torch.float32
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=0.01, atol=0.0)


@pytest.mark.parametrize(
    ("precision", "computed"),
    [("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)],
)
def test_inside_autocast_it_computes_in_the_setups_precision_over_fp32_masters(
    load: Any, precision: str, computed: torch.dtype
) -> None:
    module = load(precision=precision)
    model = module.wrap(Model(Block()))
    with module.autocast("cpu"):
        output = model(torch.ones(2, 4))
    assert output.dtype == computed
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


@pytest.mark.parametrize(
    ("precision", "flag"), [("fp32", "highest"), ("tf32", "high"), ("bf16", "highest")]
)
def test_it_sets_the_matmul_flag_whatever_it_was(
    load: Any, restored: None, precision: str, flag: str
) -> None:
    module = load(precision=precision)
    for begin in (lambda: module.wrap(Model(Block())), module.install):
        torch.set_float32_matmul_precision("medium")
        begin()
        assert torch.get_float32_matmul_precision() == flag


@pytest.mark.parametrize(("on", "calls"), [(True, 2), (False, 1)])
def test_activation_checkpointing_runs_each_layers_forward_again(
    load: Any, on: bool, calls: int
) -> None:
    blocks, named = [Block(), Block()], Block()
    module = load(activation_checkpointing=on)
    module.wrap(Model(*blocks))(torch.ones(2, 4)).sum().backward()
    assert [block.calls for block in blocks] == [calls, calls]
    module.wrap(nn.Sequential(nn.Linear(4, 4), named), layers=(Block,))(
        torch.ones(2, 4)
    ).sum().backward()
    assert named.calls == calls


def test_nested_checkpointed_layers_train_to_the_same_gradient(load: Any) -> None:
    torch.manual_seed(0)
    plain, model = Model(Nest(), Block()), Model(Nest(), Block())
    model.load_state_dict(plain.state_dict())
    wrapped = load(activation_checkpointing=True).wrap(model, layers=(Nest, Block))
    for each in (plain, wrapped):
        each(torch.ones(2, 4)).sum().backward()
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)


def test_the_scaler_skips_an_overflow_and_halves(load: Any) -> None:
    module = load(precision="fp16", grad_comm_dtype="fp16")
    model = module.wrap(Model(Block()))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scaler = module.scaler("cpu")
    before = [parameter.clone() for parameter in model.parameters()]
    scaler.scale(model(torch.full((2, 4), 6e4)).sum() * 1e4).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 2.0**15
    assert all(torch.equal(*pair) for pair in zip(model.parameters(), before, strict=True))


@pytest.mark.parametrize("ranks", [2, 3, 8, 64])
@pytest.mark.parametrize("gradient", [2.0**-20, 1.0, 8000.0])
def test_fp16_gradients_neither_vanish_nor_overflow_in_the_average_over_many_ranks(
    load: Any, monkeypatch: pytest.MonkeyPatch, ranks: int, gradient: float
) -> None:
    def all_reduce(sent: Tensor, group: object, async_op: bool) -> Any:
        done: torch.futures.Future[list[Tensor]] = torch.futures.Future()
        assert sent.dtype == torch.float16
        done.set_result([sent * ranks])  # as if every rank had sent the same
        return SimpleNamespace(get_future=lambda: done)

    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    module = load(precision="fp16", grad_comm_dtype="fp16")
    bucket = torch.full((3,), gradient)
    average = module.average_narrow(SimpleNamespace(size=lambda: ranks), bucket).wait()
    torch.testing.assert_close(average, torch.full((3,), gradient), rtol=1e-3, atol=0.0)
    assert average.dtype == torch.float32


BY_POSITION = (None, None, 0, None, True, None, 7, True)
"""The last two are the size of a bucket in MiB, and whether unused parameters are looked for."""


def test_after_install_who_builds_ddp_gets_the_bucket_and_the_hook_and_keeps_the_rest(
    load: Any, restored: None
) -> None:
    load(grad_comm_dtype="bf16", bucket_bytes=1000).install()
    for model in (
        DistributedDataParallel(Model(Block()), *BY_POSITION),
        DistributedDataParallel(
            module=Model(Block()), bucket_cap_mb=7, find_unused_parameters=True
        ),
        type("Own", (DistributedDataParallel,), {})(Model(Block()), find_unused_parameters=True),
    ):
        assert model.bucket_bytes_cap == 2000
        assert hooks(model) == 1
        assert model.find_unused_parameters
        model(torch.ones(2, 4)).sum().backward()


@pytest.mark.skipif(
    "bucket_cap_mb_list" not in inspect.signature(DistributedDataParallel.__init__).parameters,
    reason="this torch has one size for all buckets",
)
def test_after_install_a_list_of_sizes_gives_way_too(load: Any, restored: None) -> None:
    load(bucket_bytes=1000).install()
    model = DistributedDataParallel(Model(Block()), bucket_cap_mb_list=[1, 2])
    assert (model.bucket_bytes_cap, model.bucket_bytes_cap_list) == (1000, [])


def test_installing_twice_is_as_once_and_wrap_works_after_it(load: Any, restored: None) -> None:
    before = inspect.signature(DistributedDataParallel.__init__)
    module = load(grad_comm_dtype="bf16")
    module.install()
    once = DistributedDataParallel.__init__
    module.install()
    assert DistributedDataParallel.__init__ is once
    assert inspect.signature(once) == before
    assert hooks(module.wrap(Model(Block()))) == 1


def test_a_hook_of_the_scripts_own_is_refused_and_not_lost_silently(
    load: Any, restored: None
) -> None:
    load(grad_comm_dtype="bf16").install()
    model = DistributedDataParallel(Model(Block()))
    with pytest.raises(RuntimeError, match="can only be called once"):
        model.register_comm_hook(None, lambda state, bucket: None)


def test_a_probe_reduces_in_the_last_micro_batch_alone_and_in_none_that_is_unsynced() -> None:
    setup = make_setup(backend="ddp", gradient_accumulation=3)
    backend = backend_of(setup)
    model = Model(Block())
    task = Task(
        model=model,
        batches=iter(()),
        loss=lambda wrapped, batch: wrapped(batch).sum(),
        layers=(Block,),
        tokens=len,
    )
    engine = DdpRunner(task, setup, render(backend.template, backend.variables(setup), None))

    def reduced() -> int:
        tap = WireTap()
        loss = engine.forward(torch.ones(2, 4))
        with tap:
            engine.backward(loss)
        return tap.elements

    for _ in range(2):
        with engine.unsynced():
            assert reduced() == 0
        found = []
        for _ in range(3):
            found.append(reduced())
            engine.end_micro_batch()
        assert found == [0, 0, sum(item.numel() for item in model.parameters())]
        assert engine.step()
    engine.close()


def test_after_install_a_grad_scaler_starts_and_grows_as_measured(
    load: Any, restored: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.amp.GradScaler, "__init__", torch.amp.GradScaler.__init__)
    scale = LossScale(initial_power=9, window=77, hysteresis=1, minimum=0)
    module = load(precision="fp16", loss_scale=scale)
    module.install()
    module.install()
    for scaler in (
        torch.amp.GradScaler("cpu"),
        torch.amp.GradScaler("cpu", 2.0**20, growth_factor=4.0),
    ):
        assert scaler.get_scale() == 2.0**9
        assert scaler.get_growth_interval() == 77
        assert (scaler.get_growth_factor(), scaler.get_backoff_factor()) == (2.0, 0.5)
    assert not torch.amp.GradScaler("cpu", enabled=False).is_enabled()
