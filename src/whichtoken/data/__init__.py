"""Where sequences come from: one generator or reader per file."""

from whichtoken.data.attention_tokens import AttentionProblem, AttentionTokens
from whichtoken.data.group_sparse import GroupSparse
from whichtoken.data.sparse_tokens import SparseTokens

__all__ = ["AttentionProblem", "AttentionTokens", "GroupSparse", "SparseTokens"]
