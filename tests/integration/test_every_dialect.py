"""Random setups of the whole space, in every dialect, by the parsers that will read them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from autotune.backends import RESTRICTIONS
from autotune.consult import Answer, Question, consult
from autotune.export import DIALECTS, Exported, Subject, compare, export, fitting, write
from autotune.setup import BACKENDS, PRECISIONS, WIRE_DTYPES, Setup
from autotune.space import complete, make_space
from autotune.wiring.exports import asked_context, named_subject

# A list of setups costs one process, so there are few examples of many setups, and no shrinking.
SETTINGS = settings(
    max_examples=1,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
COUNTS = st.integers(1, 2**31)


@st.composite
def named(draw: st.DrawFn) -> dict[str, Any]:
    """Values of all knobs that some backend can train together."""
    backend = draw(st.sampled_from(BACKENDS))
    knobs = {
        "backend": backend,
        "precision": draw(st.sampled_from(PRECISIONS)),
        "grad_comm_dtype": draw(st.sampled_from(WIRE_DTYPES)),
        "zero_stage": draw(st.integers(2 if backend == "fsdp" else 0, 3)),
        "bucket_bytes": draw(st.integers(4, 2**33)),
        "overlap_comm": draw(st.booleans()),
        "activation_checkpointing": draw(st.booleans()),
        "micro_batch": draw(COUNTS),
        "gradient_accumulation": draw(COUNTS),
        "loss_scale.initial_power": draw(st.integers(4, 32)),
        "loss_scale.window": draw(COUNTS),
        "loss_scale.hysteresis": draw(st.integers(1, 100)),
        "loss_scale.minimum": draw(st.integers(1, 16)),
    }
    return knobs


def possible(knobs: dict[str, Any]) -> bool:
    space = make_space({}, asked_context(knobs), RESTRICTIONS)
    rest = {name: value for name, value in knobs.items() if name != "gradient_accumulation"}
    return complete(rest, space)[1] is None


@dataclass(frozen=True)
class Read:
    """One setup in one dialect, and what became of it."""

    setup: Setup
    dialect: str
    exported: Exported
    answer: Answer

    def faults(self) -> Iterator[str]:
        """What is lost on the way, in words."""
        where = f"{self.setup.key} in {self.dialect}"
        if self.answer.refused is not None:
            yield f"{where}: {self.answer.refused}"
            return
        for item in compare(self.setup, self.exported.notes, self.answer.effective):
            yield f"{where}: {item}"


def read_all(subjects: Sequence[Subject], folder: Path) -> list[Read]:
    """Every subject in every dialect that can say it and that somebody can be asked about."""
    made = []
    for number, subject in enumerate(subjects):
        for name in fitting(subject.setup.backend):
            reader = DIALECTS[name].reader
            assert reader is not None, f"nobody proves {name}"
            exported = export(subject, name)
            place = folder / f"{number}-{name}"
            write(exported, place)
            made.append((subject.setup, name, exported, Question(reader, place)))
    answers = consult([question for *_, question in made])
    return [
        Read(setup, name, exported, answer)
        for (setup, name, exported, _), answer in zip(made, answers, strict=True)
    ]


@pytest.mark.timeout(600)
@SETTINGS
@given(drawn=st.lists(named().filter(possible), min_size=16, max_size=16))
def test_whatever_is_called_expressed_is_what_the_consumer_reads(
    drawn: list[dict[str, Any]],
) -> None:
    subjects = [named_subject(knobs, None) for knobs in drawn]
    with tempfile.TemporaryDirectory() as folder:
        found = read_all(subjects, Path(folder))
    assert [fault for item in found for fault in item.faults()] == []
    for item in found:
        knobs = [name for name, value in item.setup.to_dict().items() if value is not None]
        assert sorted(note.knob for note in item.exported.notes) == sorted({*knobs} - {"backend"})
    assert any(not item.answer.missing for item in found)
