"""
Does a theorem hold at your size?
=================================

One gradient step writes the importance of each token into its embedding: the embedding of token *s* moves by half the step
size times its *signed frequency*, along the value vector. The theorem holds up to an error that vanishes as embeddings get
wider. How wide is wide enough for *your* documents? Ask.
"""

import matplotlib.pyplot as plt
import numpy as np

from whichtoken.theory.trained_embeddings import one_step_error, signed_frequency

rng = np.random.default_rng(0)
vocabulary, documents, length = 200, 1000, 40
labels = rng.choice([-1, 1], documents)

# %%
# Documents in which the first ten tokens are more frequent in the positive class, and the next ten in the negative one.
odds = np.ones((2, vocabulary))
odds[1, :10] = odds[0, 10:20] = 4.0
counts = np.array([rng.multinomial(length, weights / weights.sum()) for weights in odds[(labels + 1) // 2]])
telling = np.abs(signed_frequency(counts, labels)).argsort()[::-1][:20]
print("the most telling tokens:", sorted(telling.tolist()))

# %%
# The distance of the first step from its law, relative to the step, for growing dimension.
dims = [2**k for k in range(4, 13)]
errors = []
for dim in dims:
    runs = []
    for _ in range(5):
        embeddings, cls, value = (rng.standard_normal((rows, dim)) / np.sqrt(dim) for rows in (vocabulary, 1, 1))
        runs.append(one_step_error(embeddings, cls[0], value[0], counts, labels).relative)
    errors.append(runs)
means = np.mean(errors, axis=1)
slope = np.polyfit(np.log(dims), np.log(means), 1)[0]
print(f"the error falls as dim^{slope:.2f}, and is {means[-1]:.1%} at dimension {dims[-1]}")

figure, axes = plt.subplots(figsize=(6.4, 4), layout="constrained")
axes.loglog(dims, errors, "o", color="tab:blue", alpha=0.4)
axes.loglog(dims, means, color="tab:blue", label="measured, five draws of the embeddings")
for slope, style in ((-0.25, "--"), (-0.5, ":")):
    line = means[0] * (np.array(dims) / dims[0]) ** slope
    axes.loglog(dims, line, style, color="gray", label=f"slope {slope}" + ", as proven" * (slope == -0.25))
axes.set(xlabel="dimension of the embeddings", ylabel="error of the law / size of the step")
axes.set_title("One gradient step, and what the theorem leaves out")
axes.legend(frameon=False, loc="lower left")
plt.show()
