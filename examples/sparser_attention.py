"""Put an l_1.1 geometry on the projections of an ordinary torch attention layer; the rest keeps plain gradient descent."""

import torch

from whichtoken.optim import MirrorDescent

torch.set_num_threads(1)  # quicker than two for a layer this small
torch.manual_seed(0)
X = torch.randn(512, 8, 16)  # 512 sequences of 8 tokens: the one with the largest first coordinate carries the label
y = torch.sign(X[torch.arange(512), X[:, :, 0].argmax(1), 1])


class Classifier(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = torch.nn.MultiheadAttention(16, num_heads=1, batch_first=True)
        self.readout = torch.nn.Linear(16, 1)

    def forward(self, X: torch.Tensor) -> torch.Tensor:
        mixed, _ = self.attention(X, X, X)  # (n, T, d)
        return self.readout(mixed.mean(1))[:, 0]


for p in (2.0, 1.1):
    torch.manual_seed(1)
    model = Classifier()
    projections = model.attention.in_proj_weight  # queries, keys and values
    others = [weights for weights in model.parameters() if weights is not projections]
    optimizer = MirrorDescent([{"params": [projections], "p": p}, {"params": others}], lr=0.5)
    for _ in range(500):
        optimizer.zero_grad()
        margins = y * model(X)
        loss = torch.nn.functional.softplus(-margins).mean()
        loss.backward()
        optimizer.step()
    sizes = projections.detach().abs()
    small = (sizes < 0.01 * sizes.max()).float().mean()
    print(
        f"p = {p}: loss {loss:.3f}, right {(margins > 0).float().mean():.0%}, weights below 1 % of the largest {small:.0%}"
    )
