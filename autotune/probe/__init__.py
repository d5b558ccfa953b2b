"""The island that runs in every rank: the only part that imports torch and DeepSpeed.

It is started as ``python -m autotune.probe`` and imported by nobody.
"""
