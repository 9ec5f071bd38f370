"""Where sequences come from: one generator or reader per file."""

from whichtoken.data.attention_tokens import AttentionProblem, AttentionTokens

__all__ = ["AttentionProblem", "AttentionTokens"]
