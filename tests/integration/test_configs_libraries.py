"""What is read of configuration files, against the parsers of DeepSpeed, accelerate, transformers.

Nothing here starts a process: the parsers run in this one.
"""

from __future__ import annotations

import copy
import importlib
import json
import os
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autotune.backends import backend_of
from autotune.backends.accelerate import FILE_NAME, TEMPLATE, accelerate_variables
from autotune.configs import Refused, Understood, carry, read_accelerate
from autotune.configs import accelerate_keys as accelerate_table
from autotune.configs import deepspeed_keys as table
from autotune.configs.accelerate_deepspeed import compose
from autotune.configs.deepspeed import understand_deepspeed
from autotune.render import render
from autotune.setup import LossScale, Setup
from tests.build import make_setup
from tests.configs.launch import deepspeed_plugin, fsdp_plugin, launched, write

CONFIGS = Path(__file__).parents[1] / "configs"
LAUNCH = "accelerate.commands.launch"

pytest.importorskip("accelerate")


@pytest.fixture(autouse=True)
def a_folder_and_an_environment_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


def rendered(setup: Setup) -> dict[str, Any]:
    backend = backend_of(setup)
    found: dict[str, Any] = json.loads(render(backend.template, backend.variables(setup), None))
    return found


def accelerate_file(
    setup: Setup, own: Understood | None = None, *, deepspeed: Mapping[str, Any] | None = None
) -> Path:
    """A setup as accelerate's file, with DeepSpeed's beside it where it needs one."""
    named = "ds_config.json" if setup.backend == "deepspeed" else None
    if named is not None:
        config = carry(rendered(setup), deepspeed or {}, setup, auto=True)
        Path(named).write_text(json.dumps(config), encoding="utf-8")
    variables = accelerate_variables(
        setup, deepspeed_file=named, carried=None if own is None else own.config
    )
    path = Path(FILE_NAME)
    path.write_text(render(TEMPLATE, variables, None), encoding="utf-8")
    return path


def test_the_validated_blocks_are_those_of_the_installed_deepspeed() -> None:
    models: dict[str, tuple[str, str]] = {
        "fp16": ("runtime.precision_config", "DeepSpeedFP16Config"),
        "bf16": ("runtime.precision_config", "DeepSpeedBF16Config"),
        "zero_optimization": ("runtime.zero.config", "DeepSpeedZeroConfig"),
        "compile": ("compile.config", "CompileConfig"),
        "tensor_parallel": ("runtime.tensor_parallel.config", "TPTrainingConfig"),
        "comms_logger": ("comm.config", "CommsLoggerConfig"),
        "tensorboard": ("monitor.config", "TensorBoardConfig"),
        "csv_monitor": ("monitor.config", "CSVConfig"),
        "wandb": ("monitor.config", "WandbConfig"),
        "comet": ("monitor.config", "CometConfig"),
        "hybrid_engine": ("runtime.config", "HybridEngineConfig"),
        "weight_quantization": ("inference.config", "WeightQuantConfig"),
    }
    listed = {**table.VALIDATED}
    assert set(models) | {"bfloat16"} == set(listed)
    for name, (module, model) in models.items():
        assert fields_of(module, model) - {"dtype"} == set(listed[name]), name
    inner = {
        "OFFLOAD_PARAM": ("runtime.zero.offload_config", "DeepSpeedZeroOffloadParamConfig"),
        "OFFLOAD_OPTIMIZER": ("runtime.zero.offload_config", "DeepSpeedZeroOffloadOptimizerConfig"),
        "ZENFLOW": ("runtime.zenflow.zenflow_config", "ZenFlowConfig"),
        "LEAF_MODULE": ("runtime.zero.leaf_module_config", "DeepSpeedZeroLeafModuleConfig"),
    }
    for name, (module, model) in inner.items():
        assert fields_of(module, model) == set(getattr(table, name)), name


def fields_of(module: str, model: str) -> set[str]:
    """Names and aliases of a pydantic model of DeepSpeed."""
    found = getattr(importlib.import_module(f"deepspeed.{module}"), model).model_fields
    return {*found, *(field.alias for field in found.values() if field.alias)}


def test_the_removed_keys_are_those_of_the_installed_deepspeed() -> None:
    config: Any = importlib.import_module("deepspeed.runtime.config")
    assert set(table.REMOVED) == set(config._REMOVED_TOP_LEVEL_CONFIG_KEYS)
    assert set(table.REMOVED_ZERO) == set(config._REMOVED_ZERO_CONFIG_KEYS)


def test_the_known_keys_are_those_of_the_installed_accelerate() -> None:
    config: Any = importlib.import_module("accelerate.commands.config.config_args")
    launch: Any = importlib.import_module(LAUNCH)
    fields = set(config.ClusterConfig.__dataclass_fields__)
    assert fields | {"fp16", "dynamo_backend"} == accelerate_table.TOP_LEVEL
    parser = launch.launch_command_parser()
    arguments = {action.dest for action in parser._actions}
    fsdp = {name for name in arguments if name.startswith("fsdp_")}
    assert fsdp | {"fsdp_ignored_modules"} == accelerate_table.FSDP
    assert arguments >= accelerate_table.DEEPSPEED
    assert arguments >= set(accelerate_table.SHARING)
    parallel = {name for name in arguments if name.startswith("parallelism_config")}
    assert parallel == accelerate_table.PARALLELISM
    for prefix, keys in accelerate_table.NESTED.values():
        assert {name for name in arguments if name.startswith(prefix)} == {
            prefix + key for key in keys
        }


VALUES: tuple[Any, ...] = (
    *(True, False, None, 0, 1, 2, 3, -1, 0.5, 2e8, 1.5, 10**20, float("inf")),
    *("auto", "2e8", "200000000", "true", "yes", "x", "", "none", "cpu", "fp32", "BF16", "3"),
    *([], ["x"], {}, {"x": 1}),
)
BASES: tuple[dict[str, Any], ...] = (
    {"train_micro_batch_size_per_gpu": 2},
    {
        "train_micro_batch_size_per_gpu": 2,
        "fp16": {"enabled": True},
        "zero_optimization": {"stage": 2},
    },
    {
        "train_micro_batch_size_per_gpu": 2,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
    },
)
PLACES: tuple[tuple[str, ...], ...] = (
    *((key,) for key in sorted(table.TOP_LEVEL - set(table.BATCH[:1]))),
    *((block, key) for block, keys in table.VALIDATED.items() for key in keys),
    *((block, key) for block, keys in table.READ.items() for key in keys if key != "use_gds"),
    *(("zero_optimization", "offload_optimizer", key) for key in table.OFFLOAD_OPTIMIZER),
    *(("zero_optimization", "offload_param", key) for key in table.OFFLOAD_PARAM),
    *(("zero_optimization", "zenflow", key) for key in table.ZENFLOW),
    *(("checkpoint", "writer", key) for key in ("type", "data_parallel")),
    *(("timers", "throughput", key) for key in ("enabled", "x")),
    *(("fp16", "x"), ("zero_optimization", "x"), ("amp",), ("x",)),
)


def put(config: dict[str, Any], place: tuple[str, ...], value: Any) -> None:
    for name in place[:-1]:
        if not isinstance(config.get(name), dict):
            config[name] = {}
        config = config[name]
    config[place[-1]] = copy.deepcopy(value)


def refuses(config: dict[str, Any]) -> bool:
    deepspeed: Any = importlib.import_module("deepspeed.runtime.config")
    filled = {
        key: value
        for key, value in config.items()
        if not (key in (*table.BATCH, "gradient_clipping") and value == "auto")
    }
    filled.setdefault("train_micro_batch_size_per_gpu", 1)
    try:
        deepspeed.DeepSpeedConfig(copy.deepcopy(filled))
    except (ValueError, TypeError, AssertionError, AttributeError, deepspeed.DeepSpeedConfigError):
        return True
    return False


def test_whatever_deepspeed_refuses_is_refused() -> None:
    draw = random.Random(7)
    refused = 0
    for _ in range(1500):
        config = copy.deepcopy(draw.choice(BASES))
        for _ in range(draw.choice((1, 1, 2))):
            put(config, draw.choice(PLACES), draw.choice(VALUES))
        if refuses(config):
            refused += 1
            assert isinstance(understand_deepspeed(config), Refused), config
    assert refused > 300


@pytest.mark.parametrize("value", ["0", 3.0, True, "2"])
def test_a_stage_is_the_number_that_deepspeed_reads(value: Any) -> None:
    zero: Any = importlib.import_module("deepspeed.runtime.zero.config")
    found = understand_deepspeed({**BASES[0], "zero_optimization": {"stage": value}})
    assert isinstance(found, Understood)
    assert found.knobs["zero_stage"] == int(zero.DeepSpeedZeroConfig(stage=value).stage)


SHARDED = [
    make_setup(backend="fsdp", precision=precision, grad_comm_dtype=precision, **others)
    for precision in ("fp32", "bf16", "fp16")
    for others in ({"zero_stage": 3}, {"zero_stage": 2, "activation_checkpointing": True})
]


@pytest.mark.parametrize("setup", SHARDED, ids=lambda setup: setup.key)
def test_accelerate_makes_the_plugin_that_an_fsdp_setup_says(setup: Setup) -> None:
    plugin = fsdp_plugin(launched(accelerate_file(setup)))
    assert plugin["fsdp_version"] == 2
    assert plugin["reshard_after_forward"] is (setup.zero_stage == 3)
    assert plugin["activation_checkpointing"] is setup.activation_checkpointing
    assert type(plugin["cpu_offload"]).__name__ == "OffloadPolicy"  # the one that does nothing
    policy = plugin["mixed_precision_policy"]
    if setup.precision == "fp32":
        assert policy is None
    else:
        dtype = {"bf16": "torch.bfloat16", "fp16": "torch.float16"}[setup.precision]
        assert str(policy.param_dtype) == str(policy.reduce_dtype) == dtype
    found = read_accelerate(Path(FILE_NAME))
    assert isinstance(found, Understood)
    assert found.knobs["zero_stage"] == setup.zero_stage
    assert found.knobs["precision"] == setup.precision


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_accelerate_starts_ddp_in_the_precision_of_the_setup(precision: Any) -> None:
    setup = make_setup(backend="ddp", precision=precision, zero_stage=0, bucket_bytes=26214400)
    environment = launched(accelerate_file(setup))
    mixed = "no" if precision == "fp32" else precision
    assert environment["ACCELERATE_MIXED_PRECISION"] == mixed
    assert not {"ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED"} & set(environment)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_accelerate_hands_deepspeed_the_configuration_of_the_setup(
    stage: int, precision: Any
) -> None:
    setup = make_setup(
        precision=precision,
        grad_comm_dtype="fp32",
        zero_stage=stage,
        bucket_bytes=None if stage == 0 else 4000,
        overlap_comm=None if stage == 0 else True,
        loss_scale=LossScale(initial_power=9) if precision == "fp16" else None,
    )
    plugin = deepspeed_plugin(launched(accelerate_file(setup)))
    config = plugin.deepspeed_config
    assert plugin.zero_stage == config["zero_optimization"]["stage"] == stage
    assert config["fp16"]["enabled"] is (precision == "fp16")
    assert config["bf16"]["enabled"] is (precision == "bf16")
    assert config["communication_data_type"] == "fp32"
    assert config["gradient_accumulation_steps"] == setup.gradient_accumulation
    written = json.loads(Path("ds_config.json").read_text(encoding="utf-8"))
    assert {**config, "steps_per_print": None} == {**written, "steps_per_print": None}


@pytest.mark.parametrize("name", ["fsdp2.yaml", "ddp.yaml"])
def test_the_baseline_of_a_file_launches_as_the_file_does(name: str) -> None:
    path = CONFIGS / name
    found = read_accelerate(path)
    assert isinstance(found, Understood)
    knobs = {key: value for key, value in found.knobs.items() if "." not in key}
    setup = Setup(
        **{"bucket_bytes": None, "activation_checkpointing": False, **knobs},
        overlap_comm=None,
        micro_batch=1,
        gradient_accumulation=1,
        loss_scale=None,
    )
    theirs, ours = launched(path), launched(accelerate_file(setup, found))
    assert ours == theirs
    if setup.backend == "fsdp":
        assert fsdp_plugin(ours) == fsdp_plugin(theirs)


@pytest.mark.parametrize("mixed", ["no", "bf16", "fp16"])
@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"zero_stage": 3, "zero3_save_16bit_model": True, "offload_param_device": "cpu"},
        {"zero_stage": 1, "gradient_accumulation_steps": 4, "gradient_clipping": 0.5},
        {"zero_stage": 0, "gradient_clipping": 0.0},
        {"zero_stage": 2, "offload_optimizer_device": "nvme", "offload_optimizer_nvme_path": "/x"},
        {"gradient_accumulation_steps": "auto", "gradient_clipping": "auto"},
    ],
    ids=str,
)
def test_accelerates_own_keys_are_composed_as_its_plugin_composes_them(
    keys: dict[str, Any], mixed: str
) -> None:
    file = {
        "distributed_type": "DEEPSPEED",
        "mixed_precision": mixed,
        "deepspeed_config": keys,
        "num_processes": 2,
    }
    config = deepspeed_plugin(launched(write(file))).deepspeed_config
    del config["steps_per_print"]
    assert compose(keys, mixed) == config


def test_the_command_line_decides_how_many_processes_start() -> None:
    found = read_accelerate(CONFIGS / "fsdp2.yaml")
    assert isinstance(found, Understood)
    own = accelerate_file(SHARDED[0], found)
    assert launched(own, "--num_processes", "3")["nproc_per_node"] == "3"
    assert launched(accelerate_file(SHARDED[0]), "--num_processes", "4")["nproc_per_node"] == "4"


def test_without_topology_of_its_own_a_file_leaves_it_to_the_command_line() -> None:
    path = accelerate_file(SHARDED[0])
    with pytest.raises(ValueError, match="num_processes"):
        launched(path, "--num_machines", "1")


PERTURBED: Mapping[str, Any] = {
    "fsdp_sharding_strategy": "SHARD_GRAD_OP",
    "fsdp_backward_prefetch": "BACKWARD_POST",
    "fsdp_forward_prefetch": True,
    "fsdp_use_orig_params": False,
    "fsdp_backward_prefetch_policy": "BACKWARD_PRE",
    "fsdp_cpu_offload": True,
    "fsdp_mixed_precision": "fp16",
    "fsdp_reduce_dtype": "fp32",
    "fsdp_limit_all_gathers": False,
    "fsdp_reshard_after_forward": False,
    "fsdp_offload_params": True,
    "fsdp_activation_checkpointing": True,
    "fsdp_auto_wrap_policy": "NO_WRAP",
    "fsdp_transformer_layer_cls_to_wrap": "Block",
    "fsdp_state_dict_type": "FULL_STATE_DICT",
    "fsdp_cpu_ram_efficient_loading": False,
    "fsdp_ignored_modules": "head",
    "nonsense": 1,
}
PLAIN_FSDP = {
    "distributed_type": "FSDP",
    "mixed_precision": "bf16",
    "fsdp_config": {"fsdp_version": 2, "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP"},
}


@pytest.mark.parametrize("key", PERTURBED)
def test_a_key_of_fsdp_is_inert_exactly_where_changing_it_changes_nothing(key: str) -> None:
    values = {**PLAIN_FSDP["fsdp_config"], key: PERTURBED[key]}  # type: ignore[dict-item]
    changed = {**PLAIN_FSDP, "fsdp_config": values}
    before = fsdp_plugin(launched(write(PLAIN_FSDP)))
    after = fsdp_plugin(launched(write(changed)))
    found = read_accelerate(write(changed))
    assert isinstance(found, Understood)
    inert = [item.key for item in found.inert]
    assert inert == ([f"fsdp_config.{key}"] if after == before else [])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("fsdp_reshard_after_forward", "SHARD_GRAD_OP"),
        ("fsdp_backward_prefetch_policy", "BACKWARD_PRE"),
        ("fsdp_backward_prefetch", "BACKWARD_PRE"),
        ("fsdp_sharding_strategy", "SHARD_GRAD_OP"),
    ],
)
def test_a_key_of_version_1_is_inert_exactly_where_changing_it_changes_nothing(
    key: str, value: str
) -> None:
    # Without a device the plugin cannot be made that broadcasts the weights.
    plain = dict.fromkeys(("fsdp_sync_module_states", "fsdp_cpu_ram_efficient_loading"), False)
    file = {"distributed_type": "FSDP", "mixed_precision": "bf16", "fsdp_config": plain}
    changed = {**file, "fsdp_config": {**plain, key: value}}
    same = fsdp_plugin(launched(write(file))) == fsdp_plugin(launched(write(changed)))
    found = read_accelerate(write(changed))
    assert isinstance(found, Refused)
    assert [item.key for item in found.inert] == ([f"fsdp_config.{key}"] if same else [])


@pytest.mark.parametrize(
    ("key", "value"), [("enable_cpu_affinity", True), ("rdzv_backend", "c10d")]
)
def test_a_key_at_the_top_is_inert_where_changing_it_changes_nothing(key: str, value: Any) -> None:
    changed = {**PLAIN_FSDP, key: value}
    assert launched(write(changed)) == launched(write(PLAIN_FSDP))
    found = read_accelerate(write(changed))
    assert isinstance(found, Understood)
    assert [item.key for item in found.inert] == [key]


def test_mixed_precision_without_quotes_stops_accelerate() -> None:
    path = Path("accelerate.yaml")
    path.write_text("distributed_type: MULTI_GPU\nmixed_precision: no\n", encoding="utf-8")
    with pytest.raises(AttributeError, match="lower"):
        launched(path)
    assert isinstance(read_accelerate(path), Refused)


def test_keys_beside_a_deepspeed_file_stop_accelerate() -> None:
    Path("ds.json").write_text('{"zero_optimization": {"stage": 2}}', encoding="utf-8")
    keys = {"deepspeed_config_file": "ds.json"}
    for doubled in ({"mixed_precision": "no"}, {"deepspeed_config": {**keys, "zero_stage": 2}}):
        file = {"distributed_type": "DEEPSPEED", "deepspeed_config": keys, **doubled}
        environment = launched(write(file))
        with pytest.raises(ValueError, match="will be ignored"):
            deepspeed_plugin(environment)
        assert isinstance(read_accelerate(write(file)), Refused)


def flags(precision: str) -> SimpleNamespace:
    """What transformers' TrainingArguments would hold for the flags of a script."""
    return SimpleNamespace(
        world_size=1,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        max_grad_norm=0.7,
        learning_rate=1e-4,
        adam_beta1=0.9,
        adam_beta2=0.99,
        adam_epsilon=1e-8,
        weight_decay=0.1,
        save_on_each_node=False,
        fp16=precision == "fp16",
        bf16=precision == "bf16",
        fp16_full_eval=False,
        bf16_full_eval=False,
    )


def through_transformers(config: Mapping[str, Any], precision: str) -> dict[str, Any]:
    """The configuration that a Trainer hands to DeepSpeed, as DeepSpeed reads it."""
    integration: Any = importlib.import_module("transformers.integrations.deepspeed")
    utils: Any = importlib.import_module("accelerate.utils")
    deepspeed: Any = importlib.import_module("deepspeed.runtime.config")
    filled = integration.HfTrainerDeepSpeedConfig(copy.deepcopy(dict(config)))
    filled.trainer_config_process(flags(precision))
    assert filled.mismatches == []
    plugin = utils.DeepSpeedPlugin(hf_ds_config=filled)
    plugin.set_mixed_precision("no" if precision == "fp32" else precision)
    read = vars(deepspeed.DeepSpeedConfig(plugin.deepspeed_config))
    plain = {name: value for name, value in read.items() if name != "_param_dict"}
    return {
        name: value.model_dump() if hasattr(value, "model_dump") else value
        for name, value in plain.items()
        if hasattr(value, "model_dump") or not type(value).__module__.startswith("deepspeed")
    }


BATCHES = {"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto"}
TRAINERS: tuple[dict[str, Any], ...] = (
    json.loads((CONFIGS / "hf_auto.json").read_text(encoding="utf-8")),
    {**BATCHES, "zero_optimization": {"stage": 2}},
    {**BATCHES, "bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 1}},
    {**BATCHES, "train_batch_size": "auto", "zero_optimization": {"stage": 3}},
)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("config", TRAINERS, ids=lambda config: ",".join(config)[:60])
def test_transformers_hands_deepspeed_the_same_of_the_file_and_of_its_baseline(
    config: dict[str, Any], precision: Any
) -> None:
    pytest.importorskip("transformers")
    found = understand_deepspeed(config)
    assert isinstance(found, Understood)
    knobs: dict[str, Any] = {"bucket_bytes": None, "overlap_comm": None, **found.knobs}
    scale = {key.split(".")[1]: knobs.pop(key) for key in list(knobs) if "." in key}
    setup = Setup(
        **{**knobs, "precision": precision, "grad_comm_dtype": precision},
        activation_checkpointing=False,
        micro_batch=2,
        gradient_accumulation=2,
        loss_scale=LossScale(**scale) if precision == "fp16" else None,
    )
    theirs = through_transformers(config, precision)
    ours = through_transformers(carry(rendered(setup), config, setup, auto=True), precision)
    assert theirs.pop("communication_data_type") is None
    assert str(ours.pop("communication_data_type")).startswith("torch.")
    assert ours == theirs
