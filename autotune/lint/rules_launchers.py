"""Rules for FSDP, for the files of accelerate and for the arguments of transformers."""

from __future__ import annotations

from autotune.lint.rules import Rule

FSDP = (
    Rule(
        id="fsdp1-reshard",
        level="warning",
        what="A sharding strategy in reshard_after_forward, with FSDP version 1.",
        why="accelerate goes by fsdp_sharding_strategy, which its launcher always exports "
        "(FULL_SHARD by default), and its plugin by FULL_SHARD where none is exported: "
        "SHARD_GRAD_OP written here gives FULL_SHARD. accelerate's questionnaire writes it so, and "
        "transformers 5 hands its own strategy on so.",
        source="accelerate 1.15.0, utils/launch.py:313, utils/dataclasses.py and "
        "accelerator.py:1947; transformers 5.24.0, training_args.py:2869; asked",
        fix="accelerate: write fsdp_sharding_strategy. transformers: use version 2 with "
        "reshard_after_forward false.",
        fixable=True,
    ),
    Rule(
        id="fsdp2-hybrid",
        level="error",
        what="HYBRID_SHARD with FSDP version 2.",
        why="accelerate reads it over and shards over all ranks, across nodes too; transformers "
        "stops.",
        source="accelerate 1.15.0, utils/dataclasses.py (FullyShardedDataParallelPlugin); "
        "transformers 5.24.0, training_args.py (_apply_legacy_fsdp_to_config); asked",
        fix="Set parallelism_config_dp_replicate_size and _dp_shard_size in parallelism_config of "
        "an accelerate file.",
    ),
    Rule(
        id="fsdp-version-absent",
        level="info",
        what="The version of FSDP is not said, so that it depends on who reads the file.",
        why="accelerate and transformers 4 take 1, transformers 5 takes 2, and they compute "
        "differently: accelerate runs the forward under autocast at version 1 only.",
        source="accelerate 1.15.0, commands/launch.py and accelerator.py:1674; transformers "
        "5.24.0, training_args.py:2826; transformers 4.57.3, training_args.py:2003-2045",
        fix="Write it out.",
        fixable=True,
    ),
    Rule(
        id="fsdp1-prefetch-old-name",
        level="warning",
        what="Backward prefetch is off, because an old name asks for it.",
        why="fsdp_backward_prefetch_policy is read by nobody, and without "
        "fsdp_backward_prefetch version 1 prefetches nothing.",
        source="accelerate 1.15.0, utils/dataclasses.py; issue #2275, #2288; asked; torch says of "
        "no prefetch that it may be much slower (distributed/fsdp/api.py:91)",
        fix="Write fsdp_backward_prefetch.",
        fixable=True,
    ),
    Rule(
        id="fsdp1-prefetch-off",
        level="info",
        what="FSDP version 1 without backward_prefetch: nothing is prefetched in the backward.",
        why="accelerate and transformers take none by default, torch's own default is "
        "BACKWARD_PRE.",
        source="accelerate 1.15.0, utils/dataclasses.py; transformers 5.24.0, "
        "training_args.py:2875; torch 2.13.0, distributed/fsdp/api.py:60-94; asked",
        fix="Write BACKWARD_PRE, or NO_PREFETCH if that is meant.",
        fixable=True,
    ),
)

ACCELERATE = (
    Rule(
        id="acc-no-unquoted",
        level="error",
        what="mixed_precision: no without quotes.",
        why="YAML reads it as false, and accelerate stops with AttributeError.",
        source="PyYAML 6.0; accelerate 1.15.0, utils/launch.py (args.mixed_precision.lower()); "
        "tried",
        fix="Write 'no'.",
        fixable=True,
    ),
    Rule(
        id="acc-topology",
        level="info",
        what="Ranks, machines or ports stand in the file.",
        why="It then fits one cluster; the command line says them as well, and goes before.",
        source="accelerate 1.15.0, commands/launch.py; accelerate's own Slurm example",
        fix="Say them to accelerate launch.",
    ),
    Rule(
        id="acc-doubled",
        level="error",
        what="Keys beside deepspeed_config_file that accelerate refuses there.",
        why="accelerate stops: DeepSpeed's own file has to say them.",
        source="accelerate 1.15.0, utils/dataclasses.py (_deepspeed_config_checks); asked",
        fix="Delete them here, and say them in DeepSpeed's file.",
        fixable=True,
    ),
    Rule(
        id="acc-clipping-zero",
        level="warning",
        what="deepspeed_config.gradient_clipping is 0.",
        why="accelerate does not hand 0 on, and DeepSpeed then clips at 1.0.",
        source="accelerate 1.15.0, utils/dataclasses.py (if self.gradient_clipping); DeepSpeed "
        "#8068; asked",
        fix="Use a deepspeed_config_file with gradient_clipping 0.",
        versions={"deepspeed": ">=0.19.3"},
    ),
)

HUGGINGFACE = (
    Rule(
        id="hf-fsdp-key-dropped",
        level="warning",
        what="A key of fsdp_config that transformers drops.",
        why="Keys are picked by name, and every other one is dropped without a warning: "
        "mixed_precision_policy and reduce_dtype always, backward_prefetch at version 2.",
        source="transformers 5.24.0, training_args.py:2775-2885 (_process_fsdp_args); asked",
        fix="Delete it; a wire dtype needs code.",
        fixable=True,
    ),
    Rule(
        id="hf-fsdp-off",
        level="warning",
        what="fsdp_config without fsdp.",
        why="Nothing in it is read; the model is not sharded, unless a launcher's file says so.",
        source="transformers 5.24.0, training_args.py:2776; asked",
        fix="Write fsdp: true.",
        fixable=True,
    ),
    Rule(
        id="hf-two-checkpointings",
        level="error",
        what="Activation checkpointing by the Trainer and by FSDP.",
        why="The Trainer refuses both together.",
        source="transformers 5.24.0, trainer.py:879-883",
        fix="Keep that of fsdp_config.",
        fixable=True,
    ),
    Rule(
        id="hf-deepspeed-mismatch",
        level="error",
        what="The DeepSpeed configuration contradicts the arguments.",
        why='transformers stops with "Please correct the following DeepSpeed config values"; it '
        'compares with !=, so that "8" is not 8.',
        source="transformers 5.24.0, integrations/deepspeed.py:114-262; asked",
        fix='Write "auto" in DeepSpeed\'s configuration.',
        fixable=True,
    ),
    Rule(
        id="hf-removed-argument",
        level="warning",
        what="An argument that transformers 5 no longer has.",
        why="HfArgumentParser stops at keys that no class has.",
        source="transformers 4.57.3 and 5.24.0, training_args.py compared; hf_argparser.py "
        "(parse_dict); tried",
        fix="Write what took its place.",
        versions={"transformers": ">=5"},
        fixable=True,
    ),
)

LAUNCHERS = (*FSDP, *ACCELERATE, *HUGGINGFACE)
