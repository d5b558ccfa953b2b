"""Models of transformers, built from configurations that the tests write."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from autotune.errors import UsageError
from autotune.probe.task import Rank, Task
from autotune.probe.workload import build_task
from autotune.workload import Hf, HfTask, Workload

transformers = pytest.importorskip("transformers")

HERE = Rank(rank=0, world_size=2, device=torch.device("cpu"))
SIZE = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
TOKENS = {"vocab_size": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
LLAMA = {"model_type": "llama", **SIZE, **TOKENS, "max_position_embeddings": 32}
BERT = {"model_type": "bert", **SIZE, **TOKENS, "max_position_embeddings": 32}
GPT2 = {
    "model_type": "gpt2",
    **TOKENS,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 2,
    "n_positions": 32,
}
T5 = {
    "model_type": "t5",
    **TOKENS,
    "d_model": 32,
    "d_ff": 48,
    "d_kv": 16,
    "num_layers": 2,
    "num_heads": 2,
}
PARTS = ("layers", "attention_heads", "ffn_dim")
BART = {
    "model_type": "bart",
    **TOKENS,
    "d_model": 32,
    "max_position_embeddings": 32,
    **{f"{side}_{part}": 2 for side in ("encoder", "decoder") for part in PARTS},
}
VIT = {"model_type": "vit", **SIZE, "image_size": 16, "patch_size": 8, "num_labels": 3}
DINO = {**VIT, "model_type": "dinov2"}


def written(folder: Path, config: dict[str, Any], *architectures: str) -> Path:
    content = {**config, "architectures": list(architectures)} if architectures else config
    (folder / "config.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


def built(folder: Path, config: dict[str, Any], *architectures: str, **given: Any) -> Task:
    seed = given.pop("seed", 0)
    model = Hf(path=str(written(folder, config, *architectures)), **given)
    workload = Workload(model=model, micro_batch=2, gradient_accumulation=1, seed=seed)
    return build_task(workload, 2, HERE)


def error_of(folder: Path, config: dict[str, Any], *architectures: str, **given: Any) -> str:
    with pytest.raises(UsageError) as caught:
        built(folder, config, *architectures, **given)
    return str(caught.value)


def names_of(layers: tuple[type[nn.Module], ...]) -> set[str]:
    return {layer.__name__ for layer in layers}


FOLLOWS: dict[str, tuple[dict[str, Any], tuple[str, ...], str, set[str]]] = {
    "llama": (LLAMA, ("LlamaForCausalLM",), "LlamaForCausalLM", {"LlamaDecoderLayer"}),
    "llama without an architecture": (LLAMA, (), "LlamaForCausalLM", {"LlamaDecoderLayer"}),
    "gpt2": (GPT2, ("GPT2LMHeadModel",), "GPT2LMHeadModel", {"GPT2Block"}),
    "bert": (BERT, ("BertForMaskedLM",), "BertForMaskedLM", {"BertLayer"}),
    "bert in its first training": (BERT, ("BertForPreTraining",), "BertForMaskedLM", {"BertLayer"}),
    "bert as a decoder": (
        {**BERT, "is_decoder": True},
        ("BertModel",),
        "BertLMHeadModel",
        {"BertLayer"},
    ),
    "t5": (T5, ("T5ForConditionalGeneration",), "T5ForConditionalGeneration", {"T5Block"}),
    "bart, which is in two tables": (
        BART,
        ("BartForConditionalGeneration",),
        "BartForConditionalGeneration",
        {"BartEncoderLayer", "BartDecoderLayer"},
    ),
    "marian, which names no layers": (
        {**BART, "model_type": "marian", "decoder_start_token_id": 0, "forced_eos_token_id": 2},
        (),
        "MarianMTModel",
        {"MarianEncoderLayer", "MarianDecoderLayer"},
    ),
    "vit": (VIT, ("ViTForImageClassification",), "ViTForImageClassification", {"ViTLayer"}),
    "vit without an architecture": (VIT, (), "ViTForImageClassification", {"ViTLayer"}),
}


@pytest.mark.parametrize(
    ("config", "architectures", "model", "layers"), FOLLOWS.values(), ids=FOLLOWS.keys()
)
def test_the_task_and_the_layers_follow_from_the_configuration(
    tmp_path: Path,
    config: dict[str, Any],
    architectures: tuple[str, ...],
    model: str,
    layers: set[str],
) -> None:
    task = built(tmp_path, config, *architectures)
    assert type(task.model).__name__ == model
    assert names_of(task.layers) == layers
    batch = next(task.batches)
    loss = task.loss(task.model, batch)
    assert (loss.dtype, loss.shape) == (torch.float32, ())
    assert torch.isfinite(loss)
    loss.backward()
    assert task.tokens(batch) > 0
    trained = [item for item in task.model.parameters() if item.requires_grad]
    assert all(item.grad is not None for item in trained)


def test_the_sweep_file_says_another_task(tmp_path: Path) -> None:
    task = built(tmp_path, BERT, "BertForSequenceClassification", task="masked-lm")
    assert type(task.model).__name__ == "BertForMaskedLM"


@pytest.mark.parametrize(
    ("config", "architecture", "task", "words"),
    [
        (
            BERT,
            "BertForSequenceClassification",
            None,
            "type 'bert' is trained for does not follow from its configuration (architectures "
            "BertForSequenceClassification); give task. Allowed here: causal-lm, masked-lm",
        ),
        (LLAMA, "LlamaForCausalLM", "seq2seq-lm", "type 'llama' for seq2seq-lm; Allowed here: c"),
        (
            {"model_type": "wav2vec2", **SIZE},
            "Wav2Vec2ForCTC",
            None,
            "Supported are models for seq2seq-lm, causal-lm, masked-lm, image-classification; give "
            "any other as python: package.module:factory",
        ),
    ],
)
def test_a_task_that_does_not_follow_or_fit_is_refused_with_what_is_allowed(
    tmp_path: Path, config: dict[str, Any], architecture: str, task: HfTask | None, words: str
) -> None:
    assert words in error_of(tmp_path, config, architecture, task=task)


def test_a_file_serves_as_well_as_its_folder(tmp_path: Path) -> None:
    path = written(tmp_path, LLAMA) / "config.json"
    workload = Workload(model=Hf(path=str(path)), micro_batch=2, gradient_accumulation=1)
    assert type(build_task(workload, 2, HERE).model).__name__ == "LlamaForCausalLM"


def test_random_weights_are_fp32_and_of_the_seed_alone(tmp_path: Path) -> None:
    config = {**LLAMA, "dtype": "bfloat16"}
    first, again, other = (built(tmp_path, config, seed=seed).model for seed in (3, 3, 4))
    weights = [
        torch.cat([item.flatten() for item in model.parameters()])
        for model in (first, again, other)
    ]
    assert {item.dtype for item in first.parameters()} == {torch.float32}
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


@pytest.mark.parametrize("safe", [True, False], ids=["safetensors", "bin"])
def test_weights_in_the_folder_are_loaded_in_fp32(tmp_path: Path, safe: bool) -> None:
    model = transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(**LLAMA))
    with torch.no_grad():
        model.lm_head.weight.fill_(0.25)
    model.to(torch.bfloat16).save_pretrained(tmp_path)
    if not safe:
        (tmp_path / "model.safetensors").unlink()
        torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    workload = Workload(model=Hf(path=str(tmp_path)), micro_batch=2, gradient_accumulation=1)
    found = build_task(workload, 2, HERE).model
    head = dict(found.named_parameters())["lm_head.weight"]
    assert head.dtype == torch.float32
    assert bool((head == 0.25).all())
    assert found.training


def test_dropout_stays_as_configured_and_nothing_is_cached(tmp_path: Path) -> None:
    task = built(tmp_path, {**GPT2, "resid_pdrop": 0.3, "embd_pdrop": 0.0, "attn_pdrop": 0.0})
    dropouts = [item for item in task.model.modules() if isinstance(item, nn.Dropout)]
    assert {item.p for item in dropouts} == {0.0, 0.3}
    assert all(item.training for item in dropouts)
    assert task.model(**next(task.batches)).past_key_values is None


@pytest.mark.parametrize(
    ("config", "sequence"),
    [
        (LLAMA, 32),
        ({**BERT, "model_type": "roberta", "pad_token_id": 1}, 30),
        ({**LLAMA, "max_position_embeddings": 4096}, 512),
        (T5, 512),
    ],
    ids=["llama", "roberta, whose positions start after its padding", "a long one", "t5"],
)
def test_the_sequence_is_as_long_as_the_model_allows_and_at_most_512(
    tmp_path: Path, config: dict[str, Any], sequence: int
) -> None:
    task = built(tmp_path, config)
    batch = next(task.batches)
    assert batch["input_ids"].shape == (2, sequence)
    assert torch.isfinite(task.loss(task.model, batch))


def test_a_sequence_beyond_the_positions_is_refused(tmp_path: Path) -> None:
    assert "the model has 32 positions" in error_of(tmp_path, LLAMA, sequence=33)


def test_what_takes_no_part_in_the_loss_is_frozen(tmp_path: Path) -> None:
    model = built(tmp_path, DINO).model
    frozen = [name for name, item in model.named_parameters() if not item.requires_grad]
    assert frozen == ["dinov2.embeddings.mask_token"]


def test_layers_are_named_in_the_sweep_file(tmp_path: Path) -> None:
    task = built(tmp_path, LLAMA, layers=("LlamaMLP", "LlamaAttention"))
    assert names_of(task.layers) == {"LlamaMLP", "LlamaAttention"}


def test_layers_that_the_model_lacks_are_refused_with_those_it_has(tmp_path: Path) -> None:
    words = error_of(tmp_path, LLAMA, layers=("GPT2Block",))
    assert "LlamaForCausalLM has no modules of the class GPT2Block, which layers names." in words
    assert "Its layers are of LlamaDecoderLayer; its other modules of Embedding, Linear" in words


def test_layers_whose_weights_are_tied_to_others_are_refused(tmp_path: Path) -> None:
    words = error_of(tmp_path, BERT, "BertForMaskedLM", layers=("BertEmbeddings",))
    assert "hold BertEmbeddings, whose weights are tied to others outside of it" in words


@pytest.mark.parametrize(("key", "value"), [("sequence", 8), ("data", "/tokens.npy")])
def test_keys_for_text_are_refused_for_images(tmp_path: Path, key: str, value: Any) -> None:
    assert f"{key} are for text" in error_of(tmp_path, VIT, **{key: value})


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"hidden_size": 32}, "transformers cannot read the configuration"),
        ({"model_type": "never-heard-of"}, "transformers cannot read the configuration"),
        ({**LLAMA, "num_attention_heads": "two"}, "transformers cannot read the configuration"),
        (
            {**LLAMA, "quantization_config": {"quant_method": "gptq", "bits": 4}},
            "has quantization_config; master weights must be fp32",
        ),
        (
            {"model_type": "own", "auto_map": {"AutoConfig": "configuration_own.Own"}},
            "Give a model with code of its own as python: package.module:factory.",
        ),
    ],
    ids=["no type", "an unknown type", "a word for a number", "quantised", "code of its own"],
)
def test_a_configuration_that_cannot_be_trained_is_refused(
    tmp_path: Path, config: dict[str, Any], words: str
) -> None:
    assert words in error_of(tmp_path, config)


def test_without_transformers_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert "run `pip install 'transformers>=4.56'`" in error_of(tmp_path, LLAMA)
