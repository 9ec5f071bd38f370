"""
Plan a study before it starts
=============================

Is a weak signal in one of many tokens detectable, and with how much data? Exact asymptotics answer before anything is
trained: a power analysis for attention, mean pooling and a linear model on all positions.
"""

import matplotlib.pyplot as plt

from whichtoken.theory import sparse_tokens

task = {"length": 20, "signal_tokens": 1, "strength": 5.0, "prevalence": 0.5, "dim": 100}
plan = sparse_tokens.plan(**task, target_error=0.1)
print(f"one of {plan.length} tokens carries a signal of {plan.strength} standard deviations, in width {plan.dim}")
print(f"no classifier has an error below {plan.bayes_floor:.3f}, no linear one below {plan.linear_oracle:.3f}")
models = {"attention": "attention", "pooled": "mean pooling", "vectorized": "linear, all positions"}
for name in models:
    forecast = getattr(plan, name)
    needed = "no amount of data" if forecast.samples_needed is None else f"{forecast.samples_needed} sequences"
    print(f"{name:>10}: error {forecast.error:.3f} with {plan.samples} sequences; {needed} for {plan.target_error}")

# %%
# The learning curves that theory expects.
sizes = [200, 800, 3200]
plans = [sparse_tokens.plan(**task, samples=size) for size in sizes]
figure, axes = plt.subplots(figsize=(6.4, 4), layout="constrained")
for name, words in models.items():
    axes.plot(sizes, [getattr(forecast, name).error for forecast in plans], "o-", label=words)
axes.axhline(plan.bayes_floor, color="black", linestyle=":", label="no classifier does better")
axes.axhline(plan.linear_oracle, color="gray", linestyle="--", label="no linear one does better")
axes.set(xscale="log", xlabel="labeled sequences", ylabel="predicted test error", ylim=(0, 0.52))
axes.set_xticks(sizes, map(str, sizes))
axes.minorticks_off()
axes.set_title("One token of twenty, before anything is trained")
axes.legend(frameon=False, loc="center right", bbox_to_anchor=(1, 0.33))
plt.show()
