"""Runs the blocks that the state machine of race and confirmation asks for."""

from __future__ import annotations

import math

from autotune.decide import Block, Entry, State, absorb, next_block, observe, resume
from autotune.decide.budget import Amount
from autotune.events import BlockStarted, SetupLeft
from autotune.launch import Launch
from autotune.outcome import Probe
from autotune.sweep.bench import Bench


class Blocks:
    """One race or one confirmation: each block in a fresh launch, its probes in given order."""

    def __init__(self, bench: Bench, round: int = 0) -> None:
        self._bench = bench
        self._round = round

    def resume(self, state: State) -> State:
        """The state after the probes that the store holds."""
        return resume(state, self._bench.probes, self._round)

    def run(self, state: State, allowed: Amount) -> State:
        """Runs blocks until the state is decided, the budget ends, or Ctrl-C.

        Args:
            state: Where to begin.
            allowed: What may be spent when it ends, counted from the sweep's start.
        """
        while (block := next_block(state)) is not None and self._affords(block, allowed):
            with self._bench.launch(state.stage) as launch:
                if launch is not None:
                    self._bench.emit(
                        BlockStarted(
                            phase=block.stage, number=block.number, entries=len(block.entries)
                        )
                    )
                    state = self._serve(launch, state, block)
        return state

    def _affords(self, block: Block, allowed: Amount) -> bool:
        cost = self._bench.costs.block(len(block.entries))
        return not self._bench.interrupted and self._bench.left(allowed).covers(cost)

    def _serve(self, launch: Launch, state: State, block: Block) -> State:
        """Probes the entries of one block until they are done or the launch is of no more use."""
        for entry in block.entries:
            if self._bench.interrupted or not launch.alive:
                break
            if entry not in state.entries:
                continue
            probe = self._probe(launch, entry, block, state)
            before, state = state, absorb(state, observe(probe))
            self._announce(before, state)
            if probe.baseline and probe.outcome.kind != "ok":
                self._bench.baseline_failed(probe.outcome)
                break
            if len(state.rows) > len(before.rows):
                self._bench.baseline_measured()
        return state

    def _probe(self, launch: Launch, entry: Entry, block: Block, state: State) -> Probe:
        probe = self._bench.probe(
            launch,
            entry.setup,
            phase=block.stage,
            baseline=entry.setup == state.baseline,
            control=entry.control,
            block=block.number,
            round=self._round,
        )
        self._bench.keep(probe, self._ratio(probe))
        return probe

    def _ratio(self, probe: Probe) -> float | None:
        """Over the baseline of this launch, for show; None before that was probed."""
        measured = probe.outcome.measurement
        if probe.baseline or measured is None:
            return None
        for other in reversed(self._bench.probes):
            if other.launch == probe.launch and other.baseline and other.outcome.measurement:
                return math.exp(observe(probe).backward - observe(other).backward)
        return None

    def _announce(self, before: State, after: State) -> None:
        for out in after.out[len(before.out) :]:
            self._bench.emit(SetupLeft(phase=after.stage, setup=out.setup, reason=out.reason))
