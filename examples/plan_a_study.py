"""Is a weak signal in one of many tokens detectable, and with how much data? Ask before training anything."""

from whichtoken.theory import sparse_tokens

plan = sparse_tokens.plan(length=20, signal_tokens=1, strength=5.0, prevalence=0.5, dim=100, target_error=0.1)

print(f"one of {plan.length} tokens carries a signal of {plan.strength} standard deviations, in width {plan.dim}")
print(f"no classifier has an error below {plan.bayes_floor:.3f}, no linear one below {plan.linear_oracle:.3f}")
for name in ("attention", "pooled", "vectorized"):
    forecast = getattr(plan, name)
    needed = "no amount of data" if forecast.samples_needed is None else f"{forecast.samples_needed} sequences"
    print(f"{name:>10}: error {forecast.error:.3f} with {plan.samples} sequences; {needed} for {plan.target_error}")
