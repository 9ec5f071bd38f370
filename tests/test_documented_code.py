"""What README and docs show runs: code as it stands, commands with flags that exist, imports of what is exported."""

import ast
import importlib
import re
import shlex
from pathlib import Path
from textwrap import dedent

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"(?:^<!-- not run: ([^\n]*) -->\n)?^ *```(\w*|\{[^\n]*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
MOST_NOT_RUN = 5

# What a reader brings: the data and models that a page speaks of.
TEXTS = """
from whichtoken.datasets import synthetic_reviews
texts, labels = synthetic_reviews(200, rng)
new_texts = texts[:3]
records = [{"text": text, "label": label} for text, label in zip(texts, labels)]
"""
TRANSFORMER = """
import torch
import families
torch.manual_seed(0)
model, tokenizer = families.tiny_classifier(), families.tiny_tokenizer()
batch = tokenizer(["a good film", "the very bad plot"], padding=True, return_tensors="pt")
"""
BROUGHT = {
    "atlas.md": """
import torch
from whichtoken.datasets import AttentionTokens
problem = AttentionTokens().sample(rng)
start = 1e-3 * rng.standard_normal((10, 10))
tokens, queries, selected = problem.tokens, problem.queries, problem.token_scores.argmax(axis=1)
weights = rng.standard_normal((10, 10))
key_query_weights = torch.nn.Parameter(torch.randn(4, 10))
optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(10, 10))], lr=0.1)
""",
    "README.md": TEXTS
    + TRANSFORMER
    + """
from torch import nn
key_query_weights, all_others = [nn.Parameter(torch.ones(2, 2))], [nn.Parameter(torch.ones(2))]
""",
    "attention_regression.md": """
import torch
from whichtoken.datasets import AttentionRegression
problem = AttentionRegression(dim=4, tokens=200).sample(rng)
X, y, Y, queries, other_tokens = problem.tokens, problem.labels, problem.whitened_target, problem.tokens[:5], problem.tokens[5:]
S = torch.eye(8)
W_O, W_V, W_K, W_Q, A, B = (torch.nn.Parameter(torch.randn(8, 8)) for _ in range(6))
mha, head_dim = torch.nn.MultiheadAttention(8, 4), 2
chains = [mha.out_proj.weight, mha.in_proj_weight]
adamw = torch.optim.AdamW(mha.parameters())
""",
    "bag_classifier.md": """
X = [rng.standard_normal((length, 3)) for length in rng.integers(3, 7, 60)]
instance_labels = [bag[:, 0] > 1 for bag in X]
y = np.array([marks.any() for marks in instance_labels])
table, ids = np.concatenate(X), np.repeat(np.arange(60), [len(bag) for bag in X])
""",
    "engineer.md": TRANSFORMER,
    "group_classifier.md": """
groups = np.repeat(np.arange(4), 2)
X, X_new = rng.standard_normal((200, 8)), rng.standard_normal((40, 8))
y, y_new = (X[:, 2] > 0).astype(int), (X_new[:, 3] > 0).astype(int)
group = 1
""",
    "inspect.md": TRANSFORMER
    + """
gaps, right, documents = rng.random(40), rng.random(40) < 0.7, np.repeat(np.arange(10), 4)
batches = [{**batch, "labels": torch.tensor([0, 1])}]
Trainer = lambda *_, **options: options


class MyAttention(torch.nn.Module):
    heads = 2

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (torch.nn.Linear(8, 8) for _ in range(3))

    def forward(self, x):
        return torch.nn.functional.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x))


my_model, tokens = torch.nn.Sequential(MyAttention()), torch.randn(2, 5, 8)
""",
    "mirror_descent.md": """
tokens, queries, selected = rng.standard_normal((4, 3, 10)), rng.standard_normal((4, 10)), [0, 1, 2, 0]
start = 1e-3 * rng.standard_normal((10, 10))
import torch
model = torch.nn.Transformer(8, 2, 1, 1, 16, batch_first=True)
""",
    "practitioner.md": TEXTS
    + """
bags = [rng.standard_normal((length, 3)) for length in rng.integers(3, 7, 60)]
bag_labels = np.array([(bag[:, 0] > 1).any() for bag in bags])
table = rng.standard_normal((120, 4))
malignant = table[:, 0] > 0
""",
    "scale.md": """
import sys
sys.modules["test_documented_code"].write_growing_example(rng)
""",
    "text_classifier.md": TEXTS,
}


def write_growing_example(rng):
    """The files that the page on data of any size speaks of."""
    import numpy as np
    import pandas as pd

    from whichtoken.datasets import synthetic_reviews

    texts, signs = synthetic_reviews(120, rng)
    reviews = pd.DataFrame({"review": texts, "sentiment": signs})
    Path("reviews").mkdir()
    Path("features").mkdir()
    reviews.to_csv("reviews.csv", index=False)
    reviews[:5].to_csv("new.csv", index=False)
    for place in range(3):
        reviews[40 * place : 40 * place + 40].to_csv(f"reviews/{place}.csv", index=False)
    stays = pd.DataFrame({"note": texts, "age": rng.integers(20, 90, 120), "ward": rng.choice(["A", "B"], 120)})
    stays.assign(readmitted=np.where(signs > 0, "yes", "no")).to_csv("stays.csv", index=False)
    tumor = np.arange(24) % 2
    for slide, sick in enumerate(tumor):
        bag = rng.standard_normal((6, 4)).astype(np.float32)
        bag[0, 0] += 6 * sick
        np.save(f"features/{slide}.npy", bag)
    names = [f"features/{slide}.npy" for slide in range(24)]
    slides = pd.DataFrame({"slide": range(24), "tumor": tumor, "grade": 1 + 2 * tumor, "features": names})
    slides.to_csv("slides.csv", index=False)


def blocks(page, *languages):
    """Code blocks of a page in some languages, each with the reason not to run it or None."""
    found = BLOCK.findall(page.read_text())
    return [(dedent(code), reason or None) for reason, language, code in found if language in languages]


def code_pages():
    return [page for page in PAGES if blocks(page, "python")]


def readme_first(page):
    return pytest.param(page, id=page.stem, marks=pytest.mark.smoke if page.stem == "README" else ())


@pytest.mark.docs
@pytest.mark.parametrize("page", [readme_first(page) for page in code_pages()])
def test_code_runs_from_top_to_bottom(page, monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "inspection"))
    names = {}
    exec("import numpy as np\nrng = np.random.default_rng(0)\n" + BROUGHT.get(page.name, ""), names)
    for number, (code, reason) in enumerate(blocks(page, "python"), 1):
        if reason is None:
            # compiled kernels are kept beside the file they are from
            file = tmp_path / f"{page.stem}_block_{number}.py"
            file.write_text(code)
            exec(compile(code, file, "exec"), names)


def test_few_blocks_are_shown_and_not_run():
    reasons = [reason for page in PAGES for _, reason in blocks(page, "python") if reason]
    assert len(reasons) <= MOST_NOT_RUN


def imports(code):
    return [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.ImportFrom)]


def users_code():
    """Pages and examples, but for the page for those who write files of the product itself."""
    return [page for page in code_pages() if page.name != "extending.md"] + sorted((ROOT / "examples").rglob("*.py"))


@pytest.mark.parametrize("page", users_code(), ids=lambda page: page.stem)
def test_only_what_is_exported_is_imported(page):
    codes = [page.read_text()] if page.suffix == ".py" else [code for code, _ in blocks(page, "python")]
    for node in (node for code in codes for node in imports(code) if node.module.startswith("whichtoken")):
        module = importlib.import_module(node.module)
        for name in (alias.name for alias in node.names):
            assert name in getattr(module, "__all__", ()) or f"{node.module}.{name}" in packages(), node.module
            assert getattr(module, name) is not None


def packages():
    """Names of the rooms and of the theories, which are imported whole."""
    import whichtoken

    folder = ROOT / "src" / "whichtoken" / "theory"
    theories = {path.stem for path in folder.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    rooms = filter(str.islower, whichtoken.__all__)
    return {f"whichtoken.{name}" for name in rooms} | {f"whichtoken.theory.{name}" for name in theories}


def commands():
    """Every command line on a page, as arguments of `whichtoken`."""
    for page in PAGES:
        for code, _ in blocks(page, "", "sh"):
            for line in code.splitlines():
                words = shlex.split(line, comments=True) if line.startswith("whichtoken ") else []
                if words:
                    yield pytest.param(words[1:], id=f"{page.stem}: {' '.join(words[1:4])}")


@pytest.mark.parametrize("arguments", list(commands()))
def test_command_and_flags_exist(arguments):
    from typer.main import get_command

    from whichtoken.app.cli.main import app

    command, rest = get_command(app), list(arguments)
    context = command.context_class(command, info_name="whichtoken")
    while hasattr(command, "commands"):
        command, rest = command.commands[rest[0]], rest[1:]
        context = command.context_class(command, info_name=command.name, parent=context)
    found, left, _ = command.make_parser(context).parse_args(rest)  # an unknown flag, or a value too many, is an error
    needed = {parameter.name for parameter in command.params if parameter.required}
    assert not left
    assert needed <= {name for name, value in found.items() if value is not None}


QUICK = {"list", "plan", "fit", "predict", "evaluate", "explain"}


@pytest.mark.docs
def test_quick_commands_of_the_readme_run():
    """In their order, on small files of the names and columns that they speak of."""
    import numpy as np
    import pandas as pd

    from whichtoken.app.cli.main import app
    from whichtoken.datasets import SparseTokens
    from whichtoken.datasets.review_sentences import synthetic_reviews

    rng = np.random.default_rng(0)
    texts, signs = synthetic_reviews(120, rng)
    pd.DataFrame({"review": texts, "sentiment": signs}).to_csv("reviews.csv", index=False)
    pd.DataFrame({"review": texts[:5]}).to_csv("new.csv", index=False)
    pd.DataFrame({"review": texts[:30], "sentiment": signs[:30]}).to_csv("labeled.csv", index=False)
    tokens, active = SparseTokens(length=4, signal_tokens=1, strength=6.0, prevalence=0.5, dim=3).sample(120, rng)
    molecules = pd.DataFrame(tokens.reshape(480, 3), columns=["x", "y", "z"])
    molecules = molecules.assign(molecule=np.arange(480) // 4, active=np.repeat(active, 4).astype(int))
    molecules.to_csv("molecules.csv", index=False)
    molecules.rename(columns={"molecule": "bag", "active": "label"}).to_csv("bags.csv", index=False)
    cells = pd.DataFrame(
        rng.standard_normal((120, 4)), columns=["size_mean", "size_worst", "shape_mean", "shape_worst"]
    )
    cells.assign(malignant=(cells["size_mean"] > 0).astype(int)).to_csv("cells.csv", index=False)
    for arguments in (parameter.values[0] for parameter in commands() if parameter.id.startswith("README")):
        if arguments[0] in QUICK:
            assert not app(arguments, standalone_mode=False), arguments


@pytest.mark.docs
def test_commands_from_a_spreadsheet_to_a_cluster_run():
    """In their order, with workers in this process."""
    import numpy as np
    from distributed import LocalCluster

    from whichtoken.app.cli.main import app

    write_growing_example(np.random.default_rng(0))
    with LocalCluster(
        n_workers=2, threads_per_worker=1, processes=False, protocol="tcp", host="127.0.0.1", silence_logs=50,
        dashboard_address="127.0.0.1:0", worker_dashboard_address="127.0.0.1:0", scheduler_kwargs={"dashboard": False},
    ) as cluster:  # fmt: skip
        there = cluster.scheduler_address.removeprefix("tcp://")
        for arguments in (parameter.values[0] for parameter in commands() if parameter.id.startswith("scale")):
            words = [word.replace("scheduler:8786", there) for word in arguments]
            assert not app(words, standalone_mode=False), arguments
    assert len(list(Path("labeled-there").glob("*.csv"))) == 3
