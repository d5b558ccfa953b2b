"""Trains a small Llama with the Hugging Face Trainer; every setting is a flag of TrainingArguments.

torchrun --nproc-per-node 2 train_hf.py --deepspeed ds_config_hf.json --bf16 true --max_steps 40
accelerate launch --config_file fsdp.yaml train_hf.py --bf16 true --max_steps 40
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from tiny_model import SEQUENCE, VOCABULARY, accelerate_on_cpu, batches, leave
from torch import Tensor
from torch.utils.data import Dataset
from transformers import HfArgumentParser, LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback

logger = logging.getLogger(__name__)


@dataclass
class ModelArguments:
    """The model's size."""

    hidden_size: int = 64
    num_hidden_layers: int = 2
    num_attention_heads: int = 4


@dataclass
class TrainingArguments(transformers.TrainingArguments):
    """The library's own, with other defaults."""

    output_dir: str | None = "checkpoints"
    per_device_train_batch_size: int = 8
    learning_rate: float = 2e-3
    max_steps: int = 40
    logging_steps: float = 1
    save_strategy: str = "no"
    report_to: str = "none"
    disable_tqdm: bool | None = True
    use_cpu: bool = not torch.cuda.is_available()


class Sequences(Dataset[dict[str, Tensor]]):
    """Sequences in which each token gives the next one."""

    def __init__(self, samples: int, seed: int) -> None:
        self.tokens = next(batches(samples, seed, torch.device("cpu")))[:, :SEQUENCE]

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


class LogFile(TrainerCallback):
    """Appends what the Trainer logs to a file."""

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """One line of JSON, from the first rank."""
        if state.is_world_process_zero:
            path = Path(args.output_dir, "train.log")
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a") as file:
                file.write(json.dumps({"step": state.global_step, **logs}) + "\n")


def main() -> None:
    """Trains, logs the loss of each step, and saves the model."""
    parser = HfArgumentParser((ModelArguments, TrainingArguments))  # type: ignore[arg-type]
    sizes, arguments = parser.parse_args_into_dataclasses()
    accelerate_on_cpu()
    transformers.set_seed(arguments.seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=sizes.hidden_size,
        intermediate_size=4 * sizes.hidden_size,
        num_hidden_layers=sizes.num_hidden_layers,
        num_attention_heads=sizes.num_attention_heads,
        max_position_embeddings=SEQUENCE,
        use_cache=False,
    )
    model = LlamaForCausalLM(config)
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=Sequences(4096, arguments.seed),
        callbacks=[LogFile()],
    )
    trainer.train()
    if trainer.is_fsdp_enabled:
        trainer.accelerator.state.fsdp_plugin.set_state_dict_type("FULL_STATE_DICT")
    trainer.save_model()
    leave()


if __name__ == "__main__":
    main()
