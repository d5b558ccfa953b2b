"""The island that asks the real consumers of a configuration what they make of it.

It runs in a process of its own, ``python -m autotune.consumer QUESTIONS ANSWERS``, because it
imports torch, deepspeed, accelerate and the rest. Nobody imports it; `autotune.consult` starts it.
"""
