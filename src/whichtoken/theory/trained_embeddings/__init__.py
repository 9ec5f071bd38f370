r"""Predictions for a one-layer softmax attention model with trained embeddings and a `<cls>` vector.

f(X) = softmax(p^T E_X^T) E_X v on sequences of tokens, logistic loss, labels -1 and +1 (Wu, Shevchenko, Oymak, Mondelli,
"Attention with Trained Embeddings Provably Selects Important Tokens"). The model sees a sequence only through its token
counts, and the tokens only through a score and a value each.

===========  ==================  ========================================================================
symbol       name in the code    meaning
===========  ==================  ========================================================================
S, n, T      vocabulary, ...     tokens, sequences, tokens of a sequence
c_Xs         counts              how often token s occurs in sequence X
E_s, p, v    embeddings, cls,    embedding of a token, of `<cls>`, and the output vector, all in R^d
             value
a_s, g_s     scores, values      a_s = p.E_s decides who is attended to, g_s = v.E_s what is said
q_Xs         weights             attention of X on token s, proportional to c_Xs e^{a_s}
alpha_s      signed_frequency    (1/n) sum_X y_X c_Xs / T_X
gamma_s      (y times values)    y v.E_s, how much token s speaks for the right label
eta_0        lr                  the first gradient step
mu           local_optimality    advantage of the selected tokens over the second ones (Definition 16)
===========  ==================  ========================================================================
"""

from whichtoken.extras import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
