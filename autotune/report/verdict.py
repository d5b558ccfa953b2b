"""The part of the result that says what was decided, about whom, and how sure it is."""

from __future__ import annotations

from typing import Any

from autotune.decide import Claim, Estimate, Verdict
from autotune.report.evidence import Evidence


def verdict_part(found: Evidence) -> dict[str, Any]:
    """From ``verdict`` to ``candidates``, as JSON types."""
    decided = _unconfirmed(found) if found.verdict is None else _decided(found.verdict)
    known = found.verdict
    return {
        **decided,
        "baseline": found.baseline.key,
        "noise_floor": found.noise_floor,
        "margin": found.rules.margin,
        "control": _control(known.control) if known and known.control else None,
        "equivalent": [setup.key for setup in known.equivalent] if known else [],
        "candidates": [_candidate(claim) for claim in known.claims] if known else [],
    }


def _decided(verdict: Verdict) -> dict[str, Any]:
    claim = verdict.claim
    return {
        "verdict": verdict.name,
        "why": verdict.why,
        "winner": verdict.winner.key,
        "challenger": claim.setup.key if claim else None,
        "ratio": claim.backward.ratio if claim else None,
        "end_to_end_ratio": claim.end_to_end.ratio if claim else None,
        "interval": list(claim.backward.interval) if claim else None,
        "confidence": claim.backward.confidence if claim else None,
        "launches": verdict.launches,
    }


def _unconfirmed(found: Evidence) -> dict[str, Any]:
    best = found.best
    return {
        "verdict": "unconfirmed",
        "why": _why_unconfirmed(found),
        "winner": best.setup.key if best else None,
        "challenger": best.setup.key if best and best.setup != found.baseline else None,
        "ratio": best.ratio if best else None,
        "end_to_end_ratio": best.end_to_end_ratio if best else None,
        "interval": None,
        "confidence": None,
        "launches": len({probe.launch for probe in found.probes}),
    }


def _why_unconfirmed(found: Evidence) -> str:
    if found.confirmation is not None:
        done, wanted = len(found.confirmation.rows), found.confirmation.wanted
        return f"the confirmation was interrupted after {done} of {wanted} launches"
    if found.best is None:
        return "the baseline was not measured"
    if all(probe.setup == found.baseline for probe in found.probes):
        return "only the baseline was measured"
    return "no confirmation has run"


def _control(estimate: Estimate) -> dict[str, Any]:
    return {"ratio": estimate.ratio, "interval": list(estimate.interval)}


def _candidate(claim: Claim) -> dict[str, Any]:
    return {
        "key": claim.setup.key,
        "ratio": claim.backward.ratio,
        "interval": list(claim.backward.interval),
        "end_to_end_ratio": claim.end_to_end.ratio,
        "end_to_end_interval": list(claim.end_to_end.interval),
    }
