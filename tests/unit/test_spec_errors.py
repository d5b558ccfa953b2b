from __future__ import annotations

import os
from pathlib import Path

import pytest

from autotune.errors import UsageError
from autotune.spec import read_spec

SOUND = """\
version: 1
name: mine
workload:
  gpt: {layers: 2, width: 64, heads: 4, vocab: 128, sequence: 16}
  micro_batch: 4
  gradient_accumulation: 2
"""
GPT = "gpt: {layers: 2, width: 64, heads: 4, vocab: 128, sequence: 16}"
COUNT = "a whole number of at least 1"
LISTED = "; or a list of these, each once"
KNOBS = (
    "backend, precision, grad_comm_dtype, zero_stage, bucket_bytes, overlap_comm, "
    "activation_checkpointing, micro_batch, loss_scale"
)
SECTIONS = (
    "version, name, workload, launch, space, baseline, target, gates, budget, margin, templates, "
    "measure"
)
TARGET = "world_size, steps, learning_rate"
GATES = (
    "activation_headroom, underflow, gain, relative_error, cosine, worst_tensor, weights_move, "
    "gradient_norm, loss_band, wire_error"
)
MODELS = "gpt, hf, python, script"
NAMES = "up to 64 letters, digits, '.', '_' and '-', with a letter or digit at both ends"
MARGIN = "a percentage such as 1% or a number of at least 0 and below 1"


def error_of(folder: Path, content: str | bytes) -> str:
    """The error of a file of this content, with the folder cut off."""
    file = folder / "mine.yaml"
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(UsageError) as caught:
        read_spec(file)
    return str(caught.value).replace(f"{folder}{os.sep}", "")


def changed(old: str, new: str) -> str:
    assert SOUND.count(old) == 1
    return SOUND.replace(old, new)


# What the file says, and the complete error without "mine.yaml:".
WRONG = {
    "a misspelt knob": (
        SOUND + "space:\n  precison: bf16\n",
        "8: space.precison: is not a known key; did you mean precision? allowed: " + KNOBS,
    ),
    "a misspelt section": (
        SOUND + "budgt: {minutes: 3}\n",
        "7: budgt: is not a known key; did you mean budget? allowed: " + SECTIONS,
    ),
    "a knob outside the space": (
        SOUND + "zero_stage: 2\n",
        "7: zero_stage: is not a known key; it belongs under baseline or space; allowed: "
        + SECTIONS,
    ),
    "a key unlike any other": (
        SOUND + "target: {qqq: 1}\n",
        "7: target.qqq: is not a known key; allowed: " + TARGET,
    ),
    "a misspelt value in a list": (
        SOUND + "space:\n  precision: [fp32,\n    bf61]\n",
        "9: space.precision[1]: 'bf61' is not allowed; did you mean bf16? "
        "allowed: fp32, tf32, bf16, fp16",
    ),
    "a misspelt single value": (
        SOUND + "space: {backend: DeepSped}\n",
        "7: space.backend: 'DeepSped' is not allowed; did you mean deepspeed? "
        "allowed: deepspeed, fsdp, ddp" + LISTED,
    ),
    "a YAML 1.1 boolean": (
        SOUND + "space: {overlap_comm: [yes, no]}\n",
        "7: space.overlap_comm[0]: 'yes' is not allowed; did you mean true? "
        "allowed: true or false\n"
        "7: space.overlap_comm[1]: 'no' is not allowed; did you mean false? "
        "allowed: true or false",
    ),
    "a stage that does not exist": (
        SOUND + "space: {zero_stage: [1, 4]}\n",
        "7: space.zero_stage[1]: 4 is not allowed; allowed: a whole number from 0 to 3",
    ),
    "a boolean for a number": (
        SOUND + "space: {zero_stage: true}\n",
        "7: space.zero_stage: true is not allowed; allowed: a whole number from 0 to 3" + LISTED,
    ),
    "a number in quotes": (
        changed("micro_batch: 4", "micro_batch: '4'"),
        "5: workload.micro_batch: '4' is not allowed; did you mean 4, without quotes? allowed: "
        + COUNT,
    ),
    "no micro-batch at all": (
        changed("micro_batch: 4", "micro_batch: 0"),
        "5: workload.micro_batch: 0 is not allowed; allowed: " + COUNT,
    ),
    "a bucket of half a byte": (
        SOUND + "space: {bucket_bytes: [25e6, 0.5]}\n",
        "7: space.bucket_bytes[1]: 0.5 is not allowed; "
        "allowed: a whole number from 1 to 1099511627776",
    ),
    "one bucket written in two ways": (
        SOUND + "space: {bucket_bytes: [25e6, 25000000]}\n",
        "7: space.bucket_bytes: 25000000 is listed twice; list each value once",
    ),
    "an empty list": (
        SOUND + "space:\n  backend: []\n",
        "8: space.backend: [] is not allowed; allowed: deepspeed, fsdp, ddp" + LISTED,
    ),
    "a key without a value": (
        SOUND + "space:\n  backend:\n",
        "8: space.backend: has no value; allowed: deepspeed, fsdp, ddp"
        + LISTED
        + "; or delete the key",
    ),
    "a list in the baseline": (
        SOUND + "baseline: {precision: [fp32]}\n",
        "7: baseline.precision: a list is not allowed; allowed: fp32, tf32, bf16, fp16",
    ),
    "a fractional floor of the loss scale": (
        SOUND + "space:\n  loss_scale:\n    minimum: 0.5\n",
        "9: space.loss_scale.minimum: 0.5 is not allowed; allowed: " + COUNT + LISTED,
    ),
    "a loss scale above fp32": (
        SOUND + "baseline: {loss_scale: {initial_power: 128}}\n",
        "7: baseline.loss_scale.initial_power: 128 is not allowed; "
        "allowed: a whole number from 0 to 32",
    ),
    "DeepSpeed's own name of a knob": (
        SOUND + "space: {loss_scale: {initial_scale_power: 16}}\n",
        "7: space.loss_scale.initial_scale_power: is not a known key; "
        "did you mean initial_power? allowed: initial_power, window, hysteresis, minimum",
    ),
    "another version": (
        changed("version: 1", "version: 2"),
        "1: version: 2 is not allowed; allowed: 1",
    ),
    "true for a version": (
        changed("version: 1", "version: true"),
        "1: version: true is not allowed; allowed: 1",
    ),
    "no version": (
        changed("version: 1\n", ""),
        "1: version: is missing; add it: 1",
    ),
    "a name that leaves the folder": (
        changed("name: mine", "name: ../mine"),
        "2: name: '../mine' is not allowed; allowed: " + NAMES,
    ),
    "a name with a line break": (
        changed("name: mine", 'name: "mine\\n"'),
        "2: name: 'mine\\n' is not allowed; allowed: " + NAMES,
    ),
    "a number for a name": (
        changed("name: mine", "name: 2024"),
        "2: name: 2024 is not allowed; did you mean '2024', in quotes? allowed: " + NAMES,
    ),
    "no model": (
        changed(f"  {GPT}\n", ""),
        "3: workload: names no model; add exactly one of " + MODELS,
    ),
    "two models": (
        changed("  micro_batch", "  python: a:b\n  micro_batch"),
        "5: workload: gpt and python are both given; keep one",
    ),
    "a model that is on the hub alone": (
        changed(GPT, "hf: openai-community/gpt2"),
        "4: workload.hf: 'openai-community/gpt2' is not on this machine, and nothing is "
        "downloaded; give a local folder: hf download openai-community/gpt2 --local-dir gpt2",
    ),
    "a file for a script": (
        changed(GPT, "script: train.py"),
        "4: workload.script: 'train.py' is not allowed; allowed: a mapping with the keys command, "
        "launcher",
    ),
    "nothing but an empty workload": (
        "version: 1\nname: mine\nworkload: {}\n",
        "3: workload: names no model; add exactly one of " + MODELS + "\n"
        "3: workload.micro_batch: is missing; add it: " + COUNT + "\n"
        "3: workload.gradient_accumulation: is missing; add it: " + COUNT,
    ),
    "a file for a factory": (
        changed(GPT, "python: train.py"),
        "4: workload.python: 'train.py' is not allowed; allowed: package.module:factory",
    ),
    "arguments for the built-in model": (
        changed("  micro_batch", "  args: {depth: 2}\n  micro_batch"),
        "5: workload.args: args go to a python factory; delete them or use python instead of gpt",
    ),
    "arguments that a probe sets": (
        changed(GPT, "python: a:b\n  args: {micro_batch: 2, seed: 1}"),
        "5: workload.args: micro_batch, seed cannot be given here: each probe sets it itself",
    ),
    "heads that do not divide": (
        changed("heads: 4", "heads: 3"),
        "4: workload.gpt.heads: 3 does not divide width (64); allowed: a divisor of width",
    ),
    "an odd head": (
        changed("heads: 4", "heads: 64"),
        "4: workload.gpt.heads: 64 heads over width 64 have the odd size 1; "
        "allowed: an even width / heads, because rotary positions turn pairs",
    ),
    "key heads that do not divide": (
        changed("heads: 4", "heads: 4, kv_heads: 3"),
        "4: workload.gpt.kv_heads: 3 does not divide heads (4); allowed: a divisor of heads",
    ),
    "a misspelt word for ranks": (
        SOUND + "launch: {local: {ranks: all}}\n",
        "7: launch.local.ranks: 'all' is not allowed; "
        "allowed: auto or a whole number from 1 to 1024",
    ),
    "zero ranks": (
        SOUND + "launch: {local: {ranks: 0}}\n",
        "7: launch.local.ranks: 0 is not allowed; allowed: auto or a whole number from 1 to 1024",
    ),
    "another launcher": (
        SOUND + "launch: {slurm: {}}\n",
        "7: launch.slurm: is not a known key; allowed: local",
    ),
    "a budget without an end": (
        SOUND + "budget: {}\n",
        "7: budget: no limit is given; allowed: minutes, probes or both",
    ),
    "negative minutes": (
        SOUND + "budget: {minutes: -1}\n",
        "7: budget.minutes: -1 is not allowed; allowed: a number above 0 and up to 43200",
    ),
    "endless minutes": (
        SOUND + "budget: {minutes: .inf}\n",
        "7: budget.minutes: .inf is not a finite number; put it in quotes if it is text",
    ),
    "a number that only floats to infinity": (
        SOUND + "budget: {minutes: 1e999}\n",
        "7: budget.minutes: '1e999' is too large a number; put it in quotes if it is text",
    ),
    "a margin without its per cent": (
        SOUND + "margin: 1\n",
        "7: margin: 1 is not allowed; allowed: " + MARGIN,
    ),
    "a margin of everything": (
        SOUND + "margin: 100%\n",
        "7: margin: '100%' is not allowed; allowed: " + MARGIN,
    ),
    "templates that are nowhere": (
        SOUND + "templates: nowhere\n",
        "7: templates: 'nowhere' is not a folder; allowed: a path from the sweep file's folder",
    ),
    "a cap below the warm-up": (
        SOUND + "measure: {warm_up_steps: 20}\n",
        "7: measure.warm_up_cap: 12 is below warm_up_steps (20); allowed: at least 20",
    ),
    "no learning rate at all": (
        SOUND + "target: {learning_rate: 0}\n",
        "7: target.learning_rate: 0 is not allowed; allowed: a number above 0",
    ),
    "a gate as it is shown, with a hyphen": (
        SOUND + "gates: {relative-error: 0.02}\n",
        "7: gates.relative-error: is not a known key; did you mean relative_error? allowed: "
        + GATES,
    ),
    "a gate without a number": (
        SOUND + "gates: {same_gradient: 0.1}\n",
        "7: gates.same_gradient: is not a known key; did you mean gradient_norm? allowed: " + GATES,
    ),
    "what the gain should be": (
        SOUND + "gates: {gain: 1}\n",
        "7: gates.gain: 1 is not allowed; allowed: a number above 0 and up to 0.5",
    ),
    "what the cosine should be": (
        SOUND + "gates:\n  cosine: 0.999\n",
        "8: gates.cosine: 0.999 is not allowed; allowed: a number above 0 and up to 0.5",
    ),
    "a list of limits": (
        SOUND + "gates: {relative_error: [0.01, 0.02]}\n",
        "7: gates.relative_error: a list is not allowed; allowed: a number above 0 and up to 10",
    ),
    "a word for a limit": (
        SOUND + "gates: {weights_move: off}\n",
        "7: gates.weights_move: 'off' is not allowed; allowed: a number from 0 to 1",
    ),
    "more bits than fp16 has": (
        SOUND + "gates: {activation_headroom: 16}\n",
        "7: gates.activation_headroom: 16 is not allowed; allowed: a number from 0 to 15",
    ),
    "a gate without its limit": (
        SOUND + "gates:\n  underflow:\n",
        "8: gates.underflow: has no value; allowed: a number above 0 and up to 0.5; "
        "or delete the key",
    ),
    "steps of a gate among the limits": (
        SOUND + "gates: {gate_steps: 50}\n",
        "7: gates.gate_steps: is not a known key; it belongs under measure; allowed: " + GATES,
    ),
    "a training run too short for a gate": (
        SOUND + "measure: {gate_steps: 7}\n",
        "7: measure.gate_steps: 7 is not allowed; allowed: a whole number from 8 to 1000",
    ),
    "a trace too short": (
        SOUND + "measure: {trace_steps: 19}\n",
        "7: measure.trace_steps: 19 is not allowed; allowed: a whole number from 20 to 1000",
    ),
    "a section that is a number": (
        SOUND + "target: 8\n",
        "7: target: 8 is not allowed; allowed: a mapping with the keys " + TARGET,
    ),
    "a list for a file": (
        "- version: 1\n",
        "1: a list is not allowed; allowed: a mapping with the keys " + SECTIONS,
    ),
    "a key given twice": (
        SOUND + "name: other\n",
        "7: name: the key stands twice, first in line 2; keep one",
    ),
    "a merge key": (
        SOUND + "space: &s {backend: fsdp}\nbaseline:\n  <<: *s\n",
        "9: baseline: merge keys (<<) are not read; write the keys out",
    ),
    "a Python tag": (
        changed("name: mine", "name: !!python/object/apply:os.getcwd []"),
        "2: name: tags ('tag:yaml.org,2002:python/object/apply:os.getcwd') are not read; delete it",
    ),
    "an octal number": (
        changed("micro_batch: 4", "micro_batch: 010"),
        "5: workload.micro_batch: '010' is read as different numbers by different programs; "
        "write decimal digits without a leading zero, or put it in quotes if it is text",
    ),
    "an alias of itself": (
        SOUND + "space: &s\n  backend: [*s]\n",
        "7: space.backend[0]: an alias inside what it stands for; write it out",
    ),
    "a tab": (
        SOUND + "space:\n\tbackend: fsdp\n",
        "8: not valid YAML: a tab; indent with spaces",
    ),
    "a lost indent": (
        changed("  micro_batch", " micro_batch"),
        "5: not valid YAML: the indentation fits no line above",
    ),
    "an open bracket": (
        SOUND + "space: {backend: [fsdp\n",
        "7: not valid YAML: a bracket is not closed",
    ),
    "two documents": (
        SOUND + "---\n" + SOUND,
        "7: not valid YAML: a second document (---); a sweep file holds one",
    ),
    "an empty file": (
        "# nothing\n",
        "1: the file is empty; copy a sweep file from sweeps/",
    ),
    "text in another encoding": (
        SOUND.encode() + b"# caf\xe9\n",
        "7: byte 0xe9 is not UTF-8; save the sweep file as UTF-8 text",
    ),
    "a binary file": (
        b"\x00\x01\x02\x03",
        "1: the character U+0000 cannot stand in YAML",
    ),
    "a factory of nested brackets": (
        "a: " + "[" * 100_000,
        "1: not valid YAML: nested more than 32 levels deep",
    ),
}


@pytest.mark.parametrize(("content", "expected"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_file_is_refused_with_its_line_and_what_is_allowed(
    tmp_path: Path, content: str | bytes, expected: str
) -> None:
    lines = "\n".join(f"mine.yaml:{line}" for line in expected.splitlines())
    assert error_of(tmp_path, content) == lines


@pytest.mark.parametrize("content", [case[0] for case in WRONG.values()], ids=WRONG.keys())
def test_an_error_never_speaks_of_our_tools(tmp_path: Path, content: str | bytes) -> None:
    error = error_of(tmp_path, content)
    for jargon in ("Traceback", "pydantic", "Input should be", "[type=", "http", "<block"):
        assert jargon not in error


def test_every_fault_of_a_file_is_listed_in_its_order(tmp_path: Path) -> None:
    content = (
        "version: 3\nname: mine\nworkload:\n  hf: x\n  micro_batch: 4\n"
        "space:\n  precision: bf61\nmargin: 2\nname: yours\n"
    )
    assert [line.split(":")[1] for line in error_of(tmp_path, content).splitlines()] == [
        "1",  # version
        "3",  # gradient_accumulation is missing
        "4",  # hf
        "7",  # precision
        "8",  # margin
        "9",  # name stands twice
    ]


def test_a_value_used_by_alias_is_reported_where_it_is_used(tmp_path: Path) -> None:
    content = SOUND + "space:\n  zero_stage: &stage 7\nbaseline:\n  zero_stage: *stage\n"
    assert [line.split(":")[1] for line in error_of(tmp_path, content).splitlines()] == ["8", "10"]


def test_a_list_of_faults_without_end_is_cut(tmp_path: Path) -> None:
    error = error_of(tmp_path, SOUND + "".join(f"k{index}: 1\n" for index in range(2000)))
    lines = error.splitlines()
    assert len(lines) == 51
    assert lines[-1] == "mine.yaml: and more; mend these first"


def test_a_key_with_a_line_break_stays_on_one_line(tmp_path: Path) -> None:
    error = error_of(tmp_path, SOUND + '"a\\nb": 1\n')
    assert error.startswith("mine.yaml:7: 'a\\nb': is not a known key;")
    assert "\n" not in error


@pytest.mark.parametrize(
    "bomb",
    [
        "a: &a [1, 1]\n" + "".join(f"k{i}: &k{i} [{'*a, ' * 100}]\n" for i in range(100)),
        "l0: &l0 [1]\n" + "".join(f"l{i + 1}: &l{i + 1} [{f'*l{i}, ' * 9}]\n" for i in range(30)),
    ],
    ids=["wide", "deep"],
)
def test_an_alias_bomb_is_refused(tmp_path: Path, bomb: str) -> None:
    assert "more than 20000 values, aliases written out" in error_of(tmp_path, bomb)
