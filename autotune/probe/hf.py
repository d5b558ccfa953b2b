"""Models that transformers builds from a configuration on this machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from autotune.errors import UsageError
from autotune.probe.hf_batches import Batch, Images, Text, count_labels, image_batches, text_batches
from autotune.probe.hf_kind import KINDS, choose_task
from autotune.probe.hf_layers import freeze_unused, layers_of
from autotune.probe.protocol import check_layers, check_model, endless
from autotune.probe.task import Rank, Task
from autotune.workload import Hf, HfTask

WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
USUAL_PIXELS, USUAL_CHANNELS = 224, 3  # where the configuration leaves them open, as for ResNet
FEW_TOKENS = 16
CONFIGURED = (OSError, ValueError, KeyError, ImportError)  # what transformers finds wrong with it


def hf_task(model: Hf, micro_batch: int, seed: int, place: Rank) -> Task:
    """A model of transformers with fp32 weights, batches of what it reads, and its own loss.

    Weights are loaded where its folder has them, else drawn from torch's seed. Dropout stays as
    the configuration says.

    Raises:
        UsageError: transformers is missing or cannot build it, or the sweep file asks for a task,
            a sequence, data or layers that do not fit it.
    """
    config = read_config(model.path)
    task = choose_task(config, model.task)
    prepare(config, task)
    built = build_model(config, Path(model.path), task, place.device)
    name = type(built).__name__
    check_model(built, name)
    if task == "image-classification":
        _refuse_text_keys(model)
        batches = image_batches(images_of(config), micro_batch, seed, place)
    else:
        text = text_of(config, built)
        batches = text_batches(task, text, model, micro_batch, seed, place)
    freeze_unused(built, first_loss(built, batches[0]))
    return Task(
        model=built,
        batches=endless(batches, name),
        loss=model_loss,
        layers=check_layers(layers_of(built, model.layers), built, name),
        tokens=lambda batch: count_labels(task, batch),
    )


def model_loss(model: nn.Module, batch: Any) -> Tensor:
    """The model's own loss, in fp32.

    Raises:
        UsageError: It has none.
    """
    loss = model(**batch).loss
    if loss is None:
        raise UsageError(
            f"{type(model).__name__} computes no loss from labels; give it as python: "
            "package.module:factory, with a loss of its own."
        )
    whole: Tensor = loss.float()
    return whole


def first_loss(model: nn.Module, batch: Batch) -> Tensor:
    """The loss of a little of a batch's first sample, without dropout."""
    cut = {
        name: value[:1, :FEW_TOKENS] if value.dim() == 2 else value[:1]
        for name, value in batch.items()
    }
    model.eval()
    loss = model_loss(model, cut)
    model.train()
    return loss


def load_transformers() -> Any:
    """The library, told that it must not download.

    Raises:
        UsageError: It cannot be imported.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        import transformers
    except ImportError as error:
        raise UsageError(
            f"A model of hf needs transformers, which cannot be imported ({error}); run "
            "`pip install 'transformers>=4.56'`."
        ) from error
    library: Any = transformers
    library.utils.logging.disable_progress_bar()
    return library


def read_config(path: str) -> Any:
    """The configuration in a folder or a file.

    Raises:
        UsageError: It is none, or of a model that needs code of its own or quantised weights.
    """
    transformers = load_transformers()
    try:
        config = transformers.AutoConfig.from_pretrained(
            path, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # of any kind: the checks are those of each model's own class
        own = "trust_remote_code" in str(error)
        raise UsageError(
            f"transformers cannot read the configuration {path}: {error}"
            + (" Give a model with code of its own as python: package.module:factory." * own)
        ) from error
    if getattr(config, "quantization_config", None) is not None:
        raise UsageError(
            f"{path} has quantization_config; master weights must be fp32: give the model before "
            "its quantisation."
        )
    return config


def prepare(config: Any, task: HfTask) -> None:
    """Switches off what only inference needs, and fills in what training needs."""
    text = config.get_text_config()
    for part in (config, text):
        part.use_cache = False
        part.return_dict = True
    if task == "seq2seq-lm":
        # The labels, shifted, are what the decoder reads; the shift needs both.
        if getattr(config, "pad_token_id", None) is None:
            config.pad_token_id = 0
        if getattr(config, "decoder_start_token_id", None) is None:
            config.decoder_start_token_id = config.pad_token_id


def build_model(config: Any, path: Path, task: HfTask, device: torch.device) -> nn.Module:
    """The model with fp32 weights, on the device and ready to train.

    Raises:
        UsageError: transformers cannot build it.
    """
    auto = getattr(load_transformers(), KINDS[task].auto)
    fixed = {"config": config, "dtype": torch.float32, "trust_remote_code": False}
    try:
        if has_weights(path):
            made: nn.Module = auto.from_pretrained(path, local_files_only=True, **fixed)
        else:
            with device:
                made = auto.from_config(**fixed)
    except CONFIGURED as error:
        raise UsageError(f"transformers cannot build the model of {path}: {error}") from error
    return made.to(device).train()


def has_weights(path: Path) -> bool:
    """Whether it is a folder with weights, in one file or several."""
    return path.is_dir() and any(any(path.glob(pattern)) for pattern in WEIGHTS)


def text_of(config: Any, model: nn.Module) -> Text:
    """What a language model reads."""
    text = config.get_text_config()
    embeddings = model.get_input_embeddings()  # type: ignore[operator]
    return Text(
        vocabulary=getattr(text, "vocab_size", None) or embeddings.weight.shape[0],
        positions=positions_of(text, model),
        avoid=getattr(text, "pad_token_id", None),
        mask=getattr(text, "mask_token_id", None),
    )


def positions_of(config: Any, model: nn.Module) -> int | None:
    """Longest sequence; None where the model has no limit, such as T5."""
    names = ("max_position_embeddings", "max_target_positions")
    known = [getattr(config, name, None) for name in names]
    # RoBERTa and its kin leave the positions up to the padding's unused.
    known += [
        item.num_embeddings - item.padding_idx - 1
        for name, item in model.named_modules()
        if name.endswith("position_embeddings")
        and isinstance(item, nn.Embedding)
        and item.padding_idx is not None
    ]
    return min((limit for limit in known if limit is not None and limit > 0), default=None)


def images_of(config: Any) -> Images:
    """What a classifier of images reads."""
    vision = getattr(config, "vision_config", config)
    size = getattr(vision, "image_size", USUAL_PIXELS)
    height, width = (size, size) if isinstance(size, int) else size
    return Images(
        channels=getattr(vision, "num_channels", USUAL_CHANNELS),
        height=height,
        width=width,
        classes=config.num_labels,
        problem=getattr(config, "problem_type", None),
    )


def _refuse_text_keys(model: Hf) -> None:
    given = [name for name in ("sequence", "data") if getattr(model, name) is not None]
    if given:
        raise UsageError(
            f"{' and '.join(given)} are for text, and {model.path} classifies images; delete them "
            "from the sweep file."
        )
