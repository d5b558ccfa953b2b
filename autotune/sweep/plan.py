"""What a sweep knows before it starts, and what it has spent since."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from autotune.configs import Understood
from autotune.decide import Rules
from autotune.decide.budget import Amount
from autotune.numerics.thresholds import Thresholds
from autotune.outcome import PHASES, Phase
from autotune.request import USUAL_LEARNING_RATE
from autotune.setup import Setup
from autotune.space import Space
from autotune.spec import Spec
from autotune.workload import Script

USUAL_STEPS = 10_000  # of a real run that the file says nothing of


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that a sweep needs to know before it starts.

    Attributes:
        spec: The sweep file.
        space: Knobs and restrictions.
        baseline: The setup that the user has today.
        own: The user's own configuration file, all of which but the knobs stays in every setup.
    """

    spec: Spec
    space: Space
    baseline: Setup
    own: Understood | None = None

    @property
    def script(self) -> Script | None:
        """The user's script, where it is what the probes run."""
        model = self.spec.workload.model
        return model if isinstance(model, Script) else None

    @property
    def rules(self) -> Rules:
        """Of the race and the confirmation."""
        return Rules(margin=self.spec.margin)

    @property
    def budget(self) -> Amount:
        """For all phases together."""
        minutes, probes = self.spec.budget.minutes, self.spec.budget.probes
        infinite = Amount()
        return Amount(
            infinite.seconds if minutes is None else minutes * 60,
            infinite.probes if probes is None else probes,
        )

    @property
    def thresholds(self) -> Thresholds:
        """Limits of the gates."""
        return Thresholds(self.spec.gates)

    @property
    def learning_rate(self) -> float:
        """Of the short training runs: the real run's, if the file names it."""
        target = self.spec.target
        return (target and target.learning_rate) or USUAL_LEARNING_RATE

    @property
    def horizon(self) -> int:
        """Optimizer steps of the real run, over which loss scales are replayed."""
        target = self.spec.target
        return (target and target.steps) or USUAL_STEPS

    @property
    def target_world_size(self) -> int | None:
        """Ranks of the real run, if the file names them."""
        return self.spec.target.world_size if self.spec.target else None


@dataclass(frozen=True, slots=True)
class PhaseSpent:
    """What one phase has cost.

    Attributes:
        launches: Launches that became ready.
        probes: Probes with an answer.
        seconds: Wall time.
        launch_seconds: Part of it: from starting workers until they were warm.
        probe_seconds: Part of it: from request to answer of every probe.
    """

    launches: int = 0
    probes: int = 0
    seconds: float = 0.0
    launch_seconds: float = 0.0
    probe_seconds: float = 0.0

    def __add__(self, other: PhaseSpent) -> PhaseSpent:
        return PhaseSpent(
            self.launches + other.launches,
            self.probes + other.probes,
            self.seconds + other.seconds,
            self.launch_seconds + other.launch_seconds,
            self.probe_seconds + other.probe_seconds,
        )


@dataclass(slots=True)
class Spent:
    """What a run has cost so far, over all its sessions.

    Attributes:
        phases: Cost of each phase.
    """

    phases: dict[Phase, PhaseSpent] = field(
        default_factory=lambda: {phase: PhaseSpent() for phase in PHASES}
    )

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Spent:
        """The inverse of `to_dict`; nothing was spent where nothing is saved."""
        spent = cls()
        for phase in PHASES:
            if phase in saved:
                spent.phases[phase] = PhaseSpent(**saved[phase])
        return spent

    def to_dict(self) -> dict[str, Any]:
        """As JSON types."""
        return {phase: asdict(cost) for phase, cost in self.phases.items()}

    def add(self, phase: Phase, cost: PhaseSpent) -> None:
        """Adds to the cost of a phase."""
        self.phases[phase] += cost

    @property
    def total(self) -> PhaseSpent:
        """All phases together."""
        return sum(self.phases.values(), PhaseSpent())

    @property
    def amount(self) -> Amount:
        """What the budget is charged."""
        return Amount(self.total.seconds, self.total.probes)
