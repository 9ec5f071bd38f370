"""How attention is computed: one container of ragged sequences, one family of kernels, the losses."""

from whichtoken.attention.pooling import Pooled, PoolGradient, pool_gradient, pool_outputs, pool_weights, softmax_pool
from whichtoken.attention.ragged import RaggedArray

__all__ = ["PoolGradient", "Pooled", "RaggedArray", "pool_gradient", "pool_outputs", "pool_weights", "softmax_pool"]
