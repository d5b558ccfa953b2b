"""Names under which a run keeps its findings: what they are about, and what they hang on."""

from __future__ import annotations

from autotune.setup import Setup, scaler_of


def reducer_of(setup: Setup) -> str:
    """Setups with the same answer reduce as much, as often and in the same code."""
    if setup.backend != "deepspeed":
        return setup.backend
    return "deepspeed stages 0 and 1" if setup.zero_stage < 2 else "deepspeed stages 2 and 3"


def communication_name(setup: Setup) -> str:
    """Name of the finding about the setup's communication."""
    return f"communication {reducer_of(setup)}"


def wires_name(setup: Setup, world_size: int) -> str:
    """Name of the finding about wire dtypes at the real run's world size."""
    return f"wires mb{setup.micro_batch} at {world_size}"


def trace_name(setup: Setup) -> str:
    """Name of the trace of fp16 training on the setup's batches."""
    return f"trace mb{setup.micro_batch}x{setup.gradient_accumulation}"


def scale_name(setup: Setup, steps: int) -> str:
    """Name of the choice of a loss scale."""
    scaler = scaler_of(setup.backend, setup.zero_stage)
    return f"{scaler} mb{setup.micro_batch}x{setup.gradient_accumulation} over {steps}"


def gates_name(setup: Setup) -> str:
    """Name of the finding about a setup at the gates."""
    return f"gates {setup.key}"
