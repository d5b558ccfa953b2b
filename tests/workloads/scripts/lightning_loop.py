"""A training by Lightning, whose steps call backward in a closure."""

from __future__ import annotations

from typing import Any

import lightning
import tiny  # type: ignore[import-not-found]
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset


class Module(lightning.LightningModule):  # type: ignore[misc, unused-ignore]
    """The tiny model."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.model = tiny.model()

    def training_step(self, batch: Any, number: int) -> Tensor:
        loss: Tensor = tiny.loss(self.model(batch[0]))
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


rows = torch.cat([tiny.batch(0, number) for number in range(100)])
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=2,
    strategy="ddp",
    max_steps=50,
    accumulate_grad_batches=2,
    gradient_clip_val=0.05,
    enable_progress_bar=False,
    logger=False,
)
trainer.fit(Module(), DataLoader(TensorDataset(rows), batch_size=2))
