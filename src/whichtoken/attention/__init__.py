"""How attention is computed: one container of ragged sequences, one family of kernels, the losses; said once, used by all."""

from whichtoken.attention.items import Items
from whichtoken.attention.pooling import Pooled, PoolGradient, pool_gradient, pool_outputs, pool_weights, softmax_pool

__all__ = ["Items", "PoolGradient", "Pooled", "pool_gradient", "pool_outputs", "pool_weights", "softmax_pool"]
