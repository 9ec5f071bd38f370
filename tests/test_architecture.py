"""Arrows point one way, and light things stay light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "whichtoken"
UPSTREAM = {"attention", "data", "models", "optim", "margin", "theory"}
DOWNSTREAM = {"experiments", "lab", "report", "estimators", "cli"}


def imported(path):
    """Names of the modules that a file imports anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("folder", sorted(UPSTREAM))
def test_upstream_knows_nothing_of_downstream(folder):
    for path in (SOURCE / folder).rglob("*.py"):
        parts = {name.split(".")[1] for name in imported(path) if name.startswith("whichtoken.")}
        assert not parts & DOWNSTREAM, path


@pytest.mark.parametrize("folder", ["attention", "theory"])
def test_imports_neither_torch_nor_models(folder):
    for path in (SOURCE / folder).rglob("*.py"):
        assert not any(
            name.startswith(("torch", "whichtoken.models", "whichtoken.optim")) for name in imported(path)
        ), path


@pytest.mark.parametrize(
    "module",
    [
        "whichtoken",
        "whichtoken.lab",
        "whichtoken.theory",
        "whichtoken.margin",
        "whichtoken.attention",
        "whichtoken.data",
        "whichtoken.optim",
        "whichtoken.models",
    ],
)
def test_import_is_light(module):
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


SOFTMAX = {"softmax", "log_softmax", "logsumexp", "scaled_dot_product_attention"}
# who may say softmax outside of `attention/`, and why
ALLOWED_SOFTMAX = {
    "models/attention_modules.py": "the textbook form in torch, which benchmarks and tests take for comparison",
    "models/key_query_attention.py": "a dense torch module that runs on any device; relative to the winner, in the suite",
    "models/group_probe.py": "dense attention between groups",
    "models/group_transformer.py": "dense attention between groups",
    "models/two_layer_attention.py": "dense attention between the tokens of a document",
    "theory/group_sparse/symmetric.py": "dense attention between groups",
    "estimators/group_attention.py": "one softmax over groups, the same for all samples",
    "estimators/scores.py": "class probabilities",
    "estimators/text_classifier.py": "class probabilities",
    "estimators/text_validation.py": "class probabilities",
    "optim/score_descent.py": "class probabilities",
    "optim/joint_regularization_path.py": "a mean of losses in the log domain",
    "optim/regularization_path.py": "a smooth maximum over constraints",
    "experiments/attention_regression/transformer.py": "a dense attention layer, written out for comparison",
    "experiments/mirror_descent/joint.py": "to convert: least attention of a trained head",
    "data/sparse_tokens.py": "to convert: features of simulated sequences",
    "theory/sparse_tokens/alignment.py": "weights of a quadrature",
    "theory/sparse_tokens/pilot.py": "posterior weights of candidates",
    "theory/sparse_tokens/feature_law.py": "to convert: pooled features of simulated scores",
}


def softmaxes(path):
    """Lines of a file on which softmax attention is computed: by name, or as exponentials over their sum."""
    for function in ast.walk(ast.parse(path.read_text())):
        if not isinstance(function, ast.FunctionDef):
            continue
        of_differences, of_anything = set(), set()  # names of exponentials
        for node in ast.walk(function):
            if isinstance(node, ast.Call) and name_of(node.func) in SOFTMAX:
                yield node.lineno
            if isinstance(node, ast.Call) and name_of(node.func) == "exp":  # np.exp(..., out=weights)
                of_anything |= {name_of(keyword.value) for keyword in node.keywords if keyword.arg == "out"}
            if isinstance(node, ast.Assign) and (calls := list(calls_of(node.value, "exp"))):
                names = {name_of(target) for target in node.targets} - {""}
                of_anything |= names
                if any(isinstance(part, ast.Sub) for call in calls for part in ast.walk(call)):
                    of_differences |= names
        for node in ast.walk(function):
            if isinstance(node, ast.AugAssign | ast.BinOp) and isinstance(node.op, ast.Div):
                above, below = (node.target, node.value) if isinstance(node, ast.AugAssign) else (node.left, node.right)
                over_a_sum = name_of(above) in of_anything and any(calls_of(below, "sum"))
                if name_of(above) in of_differences or over_a_sum:
                    yield node.lineno


def calls_of(node, name):
    return (call for call in ast.walk(node) if isinstance(call, ast.Call) and name_of(call.func) == name)


def name_of(node):
    """Last part of a dotted name; of an element, the name of its array."""
    if isinstance(node, ast.Subscript):
        return name_of(node.value)
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def test_softmax_attention_is_computed_in_one_place():
    found = {path.relative_to(SOURCE).as_posix(): sorted(set(softmaxes(path))) for path in SOURCE.rglob("*.py")}
    elsewhere = {name: lines for name, lines in found.items() if lines and not name.startswith("attention/")}
    assert set(elsewhere) == set(ALLOWED_SOFTMAX), {
        "compute it with whichtoken.attention": {k: v for k, v in elsewhere.items() if k not in ALLOWED_SOFTMAX},
        "no longer needed on the list": set(ALLOWED_SOFTMAX) - set(elsewhere),
    }


@pytest.mark.parametrize(
    "code",
    [
        "def f(s):\n    w = np.exp(s - s.max())\n    return w / w.sum()",
        "def f(s, w):\n    for k in range(9):\n        w[k] = math.exp(s[k] - top)\n    w[0] /= total",
        "def f(s):\n    return torch.softmax(s, dim=1)",
        "def f(w):\n    np.exp(w, out=w)\n    w /= w.sum()",
    ],
)
def test_a_softmax_is_noticed_however_it_is_written(code, tmp_path):
    (tmp_path / "head.py").write_text(code)
    assert list(softmaxes(tmp_path / "head.py"))
