"""Rules for files of every kind."""

from __future__ import annotations

from autotune.lint.rules import Rule

TABLES = (
    "parsers of DeepSpeed 0.19.8, accelerate 1.15.0 and transformers 5.24.0, read and asked: tests "
    "compare the key tables with them"
)

ANY = (
    Rule(
        id="inert-key",
        level="warning",
        what="A key that nobody reads where it stands.",
        why="The file says one thing and the training does another; of 24 public accelerate files "
        "for FSDP, 8 held such a key.",
        source=f"{TABLES}; where the consumer is installed, each key is changed and what its "
        "parser makes of the file is compared",
        fix="Delete it, or say it where it is read.",
        fixable=True,
    ),
    Rule(
        id="misspelt-key",
        level="warning",
        what="A key that nobody knows, and that is close to one that is known.",
        why="It is read over without a word, so that the default is used.",
        source=TABLES,
        fix="Write the name that was meant.",
        fixable=True,
    ),
    Rule(
        id="misplaced-key",
        level="warning",
        what="A key at the top level that is read inside another block only.",
        why="It is read over without a word: loss-scale keys outside of fp16 left a public project "
        "at DeepSpeed's defaults.",
        source="DeepSpeed 0.19.8, runtime/config.py (each block is read by itself); asked",
        fix="Move it into its block.",
        fixable=True,
    ),
    Rule(
        id="old-name",
        level="info",
        what="An old name that is still understood.",
        why="It goes in some later version, and then is ignored or refused.",
        source="DeepSpeed 0.19.8, runtime/zero/config.py and runtime/precision_config.py; "
        "accelerate 1.15.0, commands/config/config_args.py (process_config); transformers 5.24.0, "
        "training_args.py",
        fix="Write the new name.",
        fixable=True,
    ),
    Rule(
        id="duplicate-key",
        level="error",
        what="A key that stands twice in one mapping.",
        why="DeepSpeed refuses its file; YAML and JSON readers of the others take the last one and "
        "drop the rest without a word.",
        source="DeepSpeed 0.19.8, runtime/config_utils.py (dict_raise_error_on_duplicate_keys); "
        "PyYAML 6.0 and json of Python: tried",
        fix="Keep one.",
        fixable=True,
    ),
    Rule(
        id="unknown-key",
        level="error",
        what="A key at which the consumer stops, because it does not know it.",
        why="The job ends when it reads the file.",
        source="DeepSpeed 0.19.8 (pydantic, extra=forbid); accelerate 1.15.0, "
        "commands/config/config_args.py (unknown keys at the top level); asked",
        fix="Write the name that was meant, or delete the key.",
        fixable=True,
    ),
    Rule(
        id="wrong-type",
        level="error",
        what="A value that the consumer refuses, or takes for something else.",
        why='Nothing converts it: "8" is not 8 to DeepSpeed\'s batch sizes, the text "false" is '
        'true to a switch of transformers, YAML reads 1e-5 as text, and "auto" where nobody fills '
        "it in is a word.",
        source="DeepSpeed 0.19.8 and accelerate 1.15.0, asked; transformers 5.24.0, "
        "hf_argparser.py (parse_dict hands values on as they are): tried; TRL, scripts/utils.py "
        "(TrlParser makes defaults of argparse of them, which converts texts): read; PyYAML 6.0, "
        "resolver.py",
        fix="Write the value in its own type (a number without quotes, 1.0e-5), or delete it.",
        fixable=True,
    ),
    Rule(
        id="unfilled-placeholder",
        level="info",
        what="A value that some script has to fill in.",
        why="The file as it stands cannot be read by its consumer.",
        source="public templates that a shell script fills with sed",
        fix="Lint the file that the script makes.",
    ),
    Rule(
        id="fp16-and-bf16",
        level="error",
        what="fp16 and bf16 are both switched on.",
        why="DeepSpeed stops with an assertion, transformers with ValueError.",
        source="DeepSpeed 0.19.8, runtime/config.py:511; transformers 5.24.0, training_args.py "
        "(_validate_args); asked",
        fix="Keep one; bf16 where the hardware has it.",
    ),
    Rule(
        id="refused-combination",
        level="error",
        what="Values that the consumer refuses together.",
        why="The job ends when it reads the file or builds the engine.",
        source="DeepSpeed 0.19.8, runtime/config.py, runtime/zero/config.py, runtime/engine.py:"
        "2313-2323 and :2481, zero/stage_1_and_2.py:346-351, zero/stage3.py:392-396; accelerate "
        "1.15.0, utils/dataclasses.py and utils/launch.py; the parsers were asked",
        fix="The finding says what they need.",
    ),
    Rule(
        id="consumer-refuses",
        level="error",
        what="The installed consumer refuses the file.",
        why="The job ends when it reads the file.",
        source="the installed DeepSpeed, accelerate or transformers, asked when the file was "
        "linted",
        fix="Its own words say what is wrong.",
    ),
)
