"""Which token does softmax attention pick, why, and how surely."""

__version__ = "0.1.0"
