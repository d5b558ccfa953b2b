"""The gates for a script: judged by what its own probes trained, so hardly anything is started."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autotune.decide.budget import Amount
from autotune.events import Judged, PhaseStarted
from autotune.numerics.findings import Finding, Missing, Trained
from autotune.numerics.gates import refusal
from autotune.numerics.names import gates_name
from autotune.numerics.training import Run, Training, judge_training
from autotune.outcome import Measurement
from autotune.setup import Setup
from autotune.sweep.bench import Bench
from autotune.sweep.examine import Examination, summary

REFERENCE = "reference"  # name of the finding about the run that others are compared with


def make_examination(bench: Bench) -> Examination:
    """What sends the setups of this run through the gates."""
    return Examination(bench) if bench.plan.script is None else ScriptExamination(bench)


class ScriptExamination(Examination):
    """Compares a script's first steps under each setup with those under fp32."""

    def run(self, setups: Sequence[Setup], allowed: Amount) -> bool:
        """Whether all were examined. Their probes have the losses; only fp32 may have to be run."""
        left = self.left(setups)
        if left:
            self._bench.emit(
                PhaseStarted(phase="numerics", setups=len(left), launches=None, examining=True)
            )
            key, references = self._references()
            for setup in left:
                found = self._compare(setup, key, references)
                self._bench.store.find(gates_name(setup), found)
        self._bench.save("numerics")
        return not self.left(setups)

    def _references(self) -> tuple[str, tuple[Run, ...]]:
        """Key and runs of what the others are compared with.

        The baseline if it computes and reduces in fp32, else the same in fp32, which is run once
        for it; where that does not train here, the baseline as it is.
        """
        baseline = self._bench.plan.baseline
        exact = replace(baseline, precision="fp32", grad_comm_dtype="fp32", loss_scale=None)
        for setup in (exact, baseline):
            runs = self._runs(setup)
            if not runs and setup == exact:
                runs = self._run_reference(exact)
            if runs:
                return setup.key, runs
        return baseline.key, ()

    def _runs(self, setup: Setup) -> tuple[Run, ...]:
        measured = (
            probe.outcome.measurement
            for probe in self._bench.probes
            if probe.setup == setup and probe.outcome.kind == "ok"
        )
        return tuple(run for item in measured if item is not None and (run := _run(item)))

    def _run_reference(self, setup: Setup) -> tuple[Run, ...]:
        known = self._bench.store.findings().get(REFERENCE)
        if isinstance(known, Trained):
            return known.training.references
        if isinstance(known, Missing) or self._bench.plan.space.refusal(setup) is not None:
            return ()
        with self._bench.launch("numerics") as launch:
            outcome = None if launch is None else self._bench.measure(launch, setup)
        measured = None if outcome is None else outcome.measurement
        run = None if measured is None else _run(measured)
        if outcome is None or run is None:
            reason = "the launch failed" if outcome is None else f"{outcome.kind}: {outcome.reason}"
            self._bench.store.find(REFERENCE, Missing(reason=reason))
            return ()
        training = Training(run=run, skipped_steps=0, reference=setup.key, references=(run,))
        self._bench.store.find(REFERENCE, Trained(setup=setup.key, training=training))
        return (run,)

    def _compare(self, setup: Setup, key: str, references: tuple[Run, ...]) -> Finding:
        probes = [probe for probe in self._bench.probes if probe.setup == setup]
        measured = [probe.outcome.measurement for probe in probes if probe.outcome.kind == "ok"]
        last = measured[-1] if measured else None
        run = None if last is None else _run(last)
        if last is None or run is None or not references:
            reason = "its probes did not tell the losses of the script's steps"
            self._bench.emit(Judged(text=f"{setup.key}: not examined ({reason})"))
            return Missing(reason=reason)
        training = Training(
            run=run, skipped_steps=last.trained_skips, reference=key, references=references
        )
        results = judge_training(setup, training, self._bench.plan.thresholds)
        is_baseline = setup == self._bench.plan.baseline
        refused = None if is_baseline or refusal(results) is None else setup
        self._bench.emit(Judged(text=summary(setup, results), refused=refused))
        return Trained(setup=setup.key, training=training)


def _run(measured: Measurement) -> Run | None:
    """What a probe trained; None where it did not tell."""
    if not measured.trained_losses:
        return None
    return Run(losses=measured.trained_losses, norms=measured.gradient_norms)
