"""What softmax self-attention regression computes on long contexts, how far from it a finite context is, and how fast it trains.

One head with value matrix A and key-query matrix B predicts the label of token x_i as A h_i, where h_i averages the
tokens x_j with weights proportional to exp(x_i.B x_j). For Gaussian tokens and ever longer contexts this is the linear map
A Sigma B^T, so that training is an asymmetric matrix factorization. Goel, Soltanolkotabi, Bartlett, "Training Dynamics of
Softmax Self-Attention: Fast Global Convergence via Preconditioning", arXiv 2603.01514; the finite-context errors, rates and
floors below are derived here by the delta method and by linearization.

==============  ==========================================================================================================
symbol          meaning
==============  ==========================================================================================================
n               number of tokens in the context (for floors: of training pairs, which are the context)
Sigma, M        covariance of the tokens (d, d), target matrix (outputs, d): y = M x + noise
z               whitened token Sigma^(-1/2) x
P, Q            whitened factors: P = A Sigma^(1/2) (outputs, d), Q = Sigma^(1/2) B Sigma^(1/2) (d, d)
Y               whitened linear map, P Q^T for a model and M Sigma^(1/2) for the target
b               Q^T z, the tilt that query z puts on the tokens: weights proportional to exp(b.z_j)
D               E exp(|b|^2) = det(I - 2 Q Q^T)^(-1/2), by how much the tilts raise the variance of a mean
eta, delta      dimensionless step; damping of the Gram matrices relative to their largest eigenvalue
==============  ==========================================================================================================
"""

from whichtoken.extras import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
