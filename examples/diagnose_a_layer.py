"""Look at a trained attention layer: how sharp, how balanced, and how well determined by its context is each head?"""

import torch

from whichtoken.models import attention_diagnostics

torch.manual_seed(0)
layer = torch.nn.MultiheadAttention(64, num_heads=4, batch_first=True)
tokens = torch.randn(500, 64)

for number, head in enumerate(attention_diagnostics(layer, context=2048, covariance=torch.cov(tokens.T))):
    print(
        f"head {number}: logit norm {head.logit_norm:.3f}, imbalance {head.imbalance:.3f}, "
        f"error of a context of 2048 tokens {head.relative_error:.1%}"
    )
