"""fp32 gradients of single micro-batches at a random sample of the weights."""

from __future__ import annotations

import base64
import math
from typing import Any

import torch
from torch import Tensor, nn

from autotune.probe import memory
from autotune.probe.control import Control
from autotune.probe.line import Line
from autotune.probe.workload import Rank, build_task
from autotune.readings import GradientSample
from autotune.request import ReadingRequest

ELEMENTS = 20_000


class Sampler:
    """Keeps some elements of every gradient, and frees the gradient."""

    def __init__(self, model: nn.Module, seed: int) -> None:
        parameters = [item for item in model.parameters() if item.requires_grad]
        sizes = [item.numel() for item in parameters]
        generator = torch.Generator().manual_seed(seed)
        total = sum(sizes)
        # Sorted, so that each parameter owns a run of them.
        picks = torch.randint(total, (min(ELEMENTS, total),), generator=generator).sort().values
        self.values = torch.zeros(len(picks))
        starts = torch.tensor([0, *sizes]).cumsum(0)
        for number, parameter in enumerate(parameters):
            low, high = torch.searchsorted(picks, starts[number : number + 2])
            inside = (picks[low:high] - starts[number]).to(parameter.device)
            parameter.register_post_accumulate_grad_hook(self._hook(inside, int(low), int(high)))

    def _hook(self, inside: Tensor, low: int, high: int) -> Any:
        def keep(parameter: Tensor) -> None:
            assert parameter.grad is not None
            self.values[low:high] = parameter.grad.flatten()[inside].float().cpu()
            parameter.grad = None

        return keep


def read_sample(
    request: ReadingRequest, place: Rank, control: Control, line: Line
) -> GradientSample:
    """Samples ``request.steps`` micro-batches or a few more; the same on every rank."""
    line.announce("sample")
    task = build_task(request.workload, request.setup.micro_batch, place)
    model = task.model.float()
    sampler = Sampler(model, request.workload.seed)
    rows = []
    for _ in range(math.ceil(request.steps / place.world_size)):
        sampler.values.zero_()
        task.loss(model, next(task.batches)).backward()
        rows.append(sampler.values.clone())
    everywhere = control.gather(torch.stack(rows)).flatten(0, 1)
    del model, task, sampler
    memory.release(place.device)
    return GradientSample(
        micro_batches=everywhere.shape[0],
        elements=everywhere.shape[1],
        data=base64.b64encode(everywhere.numpy().astype("<f4").tobytes()).decode(),
    )
