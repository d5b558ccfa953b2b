"""Generate and tune DeepSpeed and FSDP configurations by measuring them."""

__version__ = "0.1.0"
