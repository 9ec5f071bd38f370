"""Sparser keys and queries in a transformer that reads handwritten digits: change p alone, and match the step size.

`python examples/sparser_attention.py 5` trains with five seeds instead of one.
"""

import sys
from itertools import product

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from whichtoken.optim import MirrorDescent, matched_lr

torch.set_num_threads(1)  # quicker than two for a model this small
pictures, digits = load_digits(return_X_y=True)
patches = (pictures / 16).reshape(-1, 4, 2, 4, 2).transpose(0, 1, 3, 2, 4).reshape(-1, 16, 4)  # 16 patches of 2 x 2
data = [torch.as_tensor(values) for values in train_test_split(patches, digits, test_size=0.3, random_state=0)]
X, X_test, y, y_test = data[0].float(), data[1].float(), data[2], data[3]


class Reader(torch.nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embedding = torch.nn.Linear(4, width)
        self.places = torch.nn.Parameter(0.02 * torch.randn(16, width))
        self.layer = torch.nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.readout = torch.nn.Linear(width, 10)

    def forward(self, X: torch.Tensor) -> torch.Tensor:
        return self.readout(self.layer(self.embedding(X) + self.places).mean(1))


for seed, p in product(range(int(sys.argv[1]) if len(sys.argv) > 1 else 1), (2.0, 1.1)):
    torch.manual_seed(seed)
    model = Reader()
    projections = model.layer.self_attn.in_proj_weight  # (96, 32): queries, keys and values
    others = [weights for weights in model.parameters() if weights is not projections]
    step_size = matched_lr(projections, lr=0.3, p=p)  # moves a typical weight as far as 0.3 does at p = 2
    optimizer = MirrorDescent([{"params": [projections], "p": p, "lr": step_size}, {"params": others}], lr=0.1)
    for _ in range(40):
        for batch in torch.randperm(len(X)).split(64):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(X[batch]), y[batch])
            loss.backward()
            optimizer.step()
    right = (model(X_test).argmax(1) == y_test).float().mean()
    sizes = projections[:64].detach().abs()  # queries and keys
    small = (sizes < 0.01 * sizes.max()).float().mean()
    print(
        f"seed {seed}, p = {p}: {right:.1%} of the test digits right, {small:.0%} of the weights below 1 % of the largest"
    )
