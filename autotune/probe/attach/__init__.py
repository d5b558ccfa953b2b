"""The attachment: runs inside each rank of the user's own training script and measures it.

Nothing of the script changes. Hooks on torch and DeepSpeed tell where a backward pass and an
optimizer step begin and end (`hooks`, `engine`); `training` cuts what they tell into windows, one
an optimizer step; `course` decides what is done with each window, as `probe.measure` does for the
workloads that it builds itself.
"""
