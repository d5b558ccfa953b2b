"""The rendered FSDP2 module on real FSDP2, with one gloo rank."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from autotune.backends import backend_of
from autotune.render import render
from tests.build import make_setup

pytestmark = pytest.mark.usefixtures("process_group")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return torch.relu(self.linear(x))


class Nest(nn.Module):
    """A block whose own list must not be taken apart."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList([Block(), Block()])

    def forward(self, x: Tensor) -> Tensor:
        for expert in self.experts:
            x = expert(x)
        return x


class Model(nn.Module):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.fixture
def process_group(tmp_path: Path) -> Iterator[None]:
    precision = torch.get_float32_matmul_precision()
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()
    torch.set_float32_matmul_precision(precision)


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Renders a setup and imports it as the user's script does."""

    def load(**knobs: Any) -> ModuleType:
        setup = make_setup(backend="fsdp", **knobs)
        backend = backend_of(setup)
        text = render(backend.template, backend.variables(setup), None)
        (tmp_path / backend.file_name).write_text(text, encoding="utf-8")
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "fsdp_setup", raising=False)
        return importlib.import_module("fsdp_setup")

    return load


@pytest.fixture
def restored() -> Iterator[None]:
    """Takes an installed module out again."""
    before = torch.distributed.fsdp.fully_shard
    yield
    installed = torch.distributed.fsdp.fully_shard
    for item in [item for item in sys.modules.values() if isinstance(item, ModuleType)]:
        names = [name for name, value in vars(item).items() if value is installed]
        vars(item).update(dict.fromkeys(names, before))


def sharded(model: nn.Module) -> list[str]:
    names = dict(model.named_modules()).items()
    return [name for name, module in names if isinstance(module, FSDPModule)]


def reshards(module: Any) -> bool:
    group = module._get_fsdp_state()._fsdp_param_group
    return bool(group._reshard_after_forward)


def test_the_items_of_the_outermost_lists_are_sharded_by_default(load: Any) -> None:
    model = load().shard(Model(Block(), Nest()))
    assert sharded(model) == ["", "layers.0", "layers.1"]


def test_the_named_classes_are_sharded_inner_ones_too(load: Any) -> None:
    model = load().shard(Model(Nest(), nn.Identity()), layers=(Nest, Block))
    assert sharded(model) == [
        "",
        "layers.0",
        "layers.0.experts.0",
        "layers.0.experts.1",
    ]


def test_a_model_without_lists_is_sharded_as_a_whole(load: Any) -> None:
    assert sharded(load().shard(Block())) == [""]
    assert sharded(load().shard(Block(), layers=(Block,))) == [""]


def test_a_layer_that_is_used_twice_is_sharded_once(load: Any) -> None:
    shared = Block()
    assert sharded(load().shard(Model(shared, shared))) == ["", "layers.0"]


@pytest.mark.parametrize(("stage", "again"), [(2, False), (3, True)])
def test_layers_are_sharded_again_after_the_forward_at_stage_3_only(
    load: Any, stage: int, again: bool
) -> None:
    model = load(zero_stage=stage).shard(Model(Block()))
    assert reshards(model.layers[0]) is again
    assert not reshards(model)
    assert reshards(load(zero_stage=stage).shard(Block())) is again


@pytest.mark.parametrize(
    ("precision", "computed"),
    [("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)],
)
def test_it_computes_in_the_setups_precision_over_fp32_masters(
    load: Any, precision: str, computed: torch.dtype
) -> None:
    model = load(precision=precision).shard(Model(Block()))
    output = model(torch.ones(2, 4))
    output.float().sum().backward()
    assert output.dtype == computed
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert {parameter.grad.dtype for parameter in model.parameters()} == {torch.float32}


@pytest.mark.parametrize(
    ("precision", "flag"), [("fp32", "highest"), ("tf32", "high"), ("bf16", "highest")]
)
def test_it_sets_the_matmul_flag_whatever_it_was(load: Any, precision: str, flag: str) -> None:
    for before in ("medium", "high", "highest"):
        torch.set_float32_matmul_precision(before)
        load(precision=precision).shard(Model(Block()))
        assert torch.get_float32_matmul_precision() == flag


@pytest.mark.parametrize(("on", "calls"), [(True, 2), (False, 1)])
def test_activation_checkpointing_runs_each_layers_forward_again(
    load: Any, on: bool, calls: int
) -> None:
    blocks = [Block(), Block()]
    model = load(activation_checkpointing=on).shard(Model(*blocks))
    model(torch.ones(2, 4, requires_grad=True)).sum().backward()
    assert [block.calls for block in blocks] == [calls, calls]


def test_what_is_checkpointed_is_what_is_sharded(load: Any) -> None:
    model = load(activation_checkpointing=True).shard(Model(Block(), Nest()))
    layers = model.layers
    assert sharded(model) == ["", "layers.0", "layers.1"]
    assert all(isinstance(layer, CheckpointWrapper) for layer in layers)


def test_nested_checkpointed_layers_train_to_the_same_gradient(load: Any) -> None:
    torch.manual_seed(0)
    plain = Model(Nest(), Block())
    model = Model(Nest(), Block())
    model.load_state_dict(plain.state_dict())
    model = load(activation_checkpointing=True).shard(model, layers=(Nest, Block))
    for each in (plain, model):
        each(torch.ones(2, 4)).sum().backward()
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert mine.grad is not None
        assert theirs.grad is not None
        torch.testing.assert_close(mine.grad.full_tensor(), theirs.grad)


def test_the_scaler_skips_an_overflow_and_halves(load: Any) -> None:
    module = load(precision="fp16")
    model = module.shard(Model(Block()))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scaler = module.scaler("cpu")
    before = [parameter.full_tensor().clone() for parameter in model.parameters()]
    scaler.scale(model(torch.full((2, 4), 6e4)).float().sum() * 1e4).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 2.0**15
    for parameter, old in zip(model.parameters(), before, strict=True):
        assert torch.equal(parameter.full_tensor(), old)


def policies(model: Any) -> list[MixedPrecisionPolicy]:
    modules = [item for item in model.modules() if isinstance(item, FSDPModule)]
    return [item._get_fsdp_state()._mp_policy for item in modules]


@pytest.mark.parametrize(("precision", "dtype"), [("bf16", torch.bfloat16), ("fp32", None)])
def test_after_install_who_shards_gets_the_dtypes_and_keeps_the_rest_of_the_policy(
    load: Any, restored: None, precision: str, dtype: torch.dtype | None
) -> None:
    load(precision=precision, grad_comm_dtype="fp32").install()
    own = MixedPrecisionPolicy(torch.float16, torch.float16, torch.float64, False)
    model = Model(Block(), Block())
    fully_shard(model.layers[0], mp_policy=own)
    torch.distributed.fsdp.fully_shard([model.layers[1]])
    fully_shard(model)
    assert policies(model) == [
        MixedPrecisionPolicy(dtype, torch.float32),
        MixedPrecisionPolicy(dtype, torch.float32, torch.float64, False),
        MixedPrecisionPolicy(dtype, torch.float32),
    ]


def test_after_install_modules_that_are_imported_later_have_it_too(
    load: Any, restored: None
) -> None:
    load(precision="bf16").install()
    later: Any = importlib.import_module("torch.distributed._composable.fsdp")
    importlib.reload(later)
    assert policies(later.fully_shard(Block()))[0].param_dtype == torch.bfloat16


@pytest.mark.parametrize(("stage", "again"), [(2, False), (3, True)])
@pytest.mark.parametrize("asked", [None, True, False])
def test_after_install_all_but_the_root_reshard_as_measured(
    load: Any, restored: None, asked: bool | None, stage: int, again: bool
) -> None:
    load(zero_stage=stage).install()
    model = Model(Block())
    for module in (model.layers[0], model):
        fully_shard(module, reshard_after_forward=asked)
    model(torch.ones(2, 4))  # finds the root
    assert reshards(model.layers[0]) is again
    assert not reshards(model)


def test_after_install_a_number_of_ranks_and_the_other_arguments_stay(
    load: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}
    script: Any = ModuleType("script")
    script.shard = lambda module, **options: asked.update(options)
    monkeypatch.setitem(sys.modules, "script", script)
    module = load(zero_stage=2)
    monkeypatch.setattr(module, "fully_shard", script.shard)
    module.install()
    script.shard(Block(), reshard_after_forward=4, mesh="mesh")
    assert (asked["reshard_after_forward"], asked["mesh"]) == (4, "mesh")
    assert asked["mp_policy"] == module.policy()


def test_installing_twice_is_as_once_and_shard_works_after_it(load: Any, restored: None) -> None:
    module = load(precision="bf16", grad_comm_dtype="bf16", zero_stage=3)
    module.install()
    once = torch.distributed.fsdp.fully_shard
    module.install()
    assert torch.distributed.fsdp.fully_shard is once
    model = module.shard(Block())
    assert policies(model) == [module.policy()]
    model(torch.ones(2, 4))
    assert reshards(model)  # the whole model as one, which install() would keep gathered


@pytest.mark.parametrize(("precision", "flag"), [("fp32", "highest"), ("tf32", "high")])
def test_install_sets_the_matmul_flag(load: Any, restored: None, precision: str, flag: str) -> None:
    torch.set_float32_matmul_precision("medium")
    load(precision=precision).install()
    assert torch.get_float32_matmul_precision() == flag
