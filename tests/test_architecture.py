"""Arrows point one way, and light things stay light."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest
from importlinter.cli import lint_imports

SOURCE = Path(__file__).parent.parent / "src" / "whichtoken"


@cache
def tree(path):
    """A source file, parsed once for all tests."""
    return ast.parse(path.read_text())


def test_arrows_point_one_way(monkeypatch):
    """The layers stand in pyproject.toml; lazy imports count."""
    monkeypatch.chdir(SOURCE.parents[1])
    assert lint_imports(no_cache=True) == 0, "run: lint-imports"


def test_the_page_of_the_architecture_names_files_that_are_there():
    page = (SOURCE.parents[1] / "docs" / "architecture.md").read_text()
    paths = re.findall(r"`([a-z_]+/[a-z_/]*\.(?:py|toml))`", page)
    assert len(paths) > 40
    assert [path for path in paths if not (SOURCE / path).exists()] == []


def test_what_lies_beside_claims_and_is_none_starts_with_an_underscore():
    for path in (SOURCE / "claims").glob("*/*.py"):
        bases = [base for node in tree(path).body if isinstance(node, ast.ClassDef) for base in node.bases]
        is_claim = any(ast.unparse(base).startswith(("Experiment[", "Claim[")) for base in bases)
        assert is_claim or path.name.startswith("_"), path


def private_uses(path):
    """Private modules and names of another package that a file uses: line and dotted name.

    A name that begins with an underscore belongs to the folder of the file that defines it, a private module to the folder
    that it lies in; only files in that folder or below it may use them.
    """
    home = path.relative_to(SOURCE).parts[:-1]
    modules = {}  # local name -> dotted name
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ImportFrom):
            above = (*home, "")[: len(home) + 1 - node.level] if node.level else ()
            base = (*above, *(node.module or "").split(".")) if node.level else tuple((node.module or "").split("."))
            if node.level or base[0] == "whichtoken":
                inside = [part for part in base if part and part != "whichtoken"]
                modules |= {name.asname or name.name: (node.lineno, (*inside, name.name)) for name in node.names}
        elif isinstance(node, ast.Import):
            parts = {name.asname: name.name.split(".") for name in node.names if name.asname}
            modules |= {
                local: (node.lineno, tuple(dotted[1:])) for local, dotted in parts.items() if dotted[0] == "whichtoken"
            }
    used = list(modules.values())
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            used.append((node.lineno, (*modules[node.value.id][1], node.attr)))
    for line, dotted in used:
        for place, part in enumerate(dotted):
            if part.startswith("_") and not part.startswith("__"):
                owner = dotted[:place]
                if (SOURCE.joinpath(*owner).with_suffix(".py")).is_file():
                    owner = owner[:-1]
                if home[: len(owner)] != owner:
                    yield line, ".".join(dotted)


def test_nobody_uses_a_private_name_of_another_package():
    found = {path.relative_to(SOURCE).as_posix(): sorted(set(private_uses(path))) for path in SOURCE.rglob("*.py")}
    assert {path: uses for path, uses in found.items() if uses} == {}, "give it a public name, or move it"


@pytest.mark.parametrize(
    "code",
    [
        "from whichtoken.claims._checks import AtLeast",
        "def f():\n    from whichtoken.app.cli.demo import _step",
        "from whichtoken.app.cli import demo\nnames = demo._step",
        "import whichtoken.app.cli.demo as demo\nnames = demo._step",
        "from ..app.cli.demo import _step",
    ],
)
def test_a_private_name_is_noticed_however_it_is_reached(code, monkeypatch):
    monkeypatch.setitem(globals(), "tree", lambda _: ast.parse(code))
    assert list(private_uses(SOURCE / "lab" / "planted.py"))


@pytest.mark.parametrize("code", ["from whichtoken.lab.plan import _grid", "from . import plan\nnames = plan._grid"])
def test_a_private_name_of_the_own_package_may_be_used(code, monkeypatch):
    monkeypatch.setitem(globals(), "tree", lambda _: ast.parse(code))
    assert not list(private_uses(SOURCE / "lab" / "planted.py"))


SOFTMAX = {"softmax", "log_softmax", "logsumexp", "scaled_dot_product_attention"}
# who may say softmax outside of `attention/`, and why
ALLOWED_SOFTMAX = {
    "claims/group_sparse/_layers.py": "dense attention between groups",
    "claims/sparse_tokens/attention_map.py": "brute force, which is to share no code with what it judges",
    "claims/trained_embeddings/_tuples.py": "dense attention between the tokens of a sequence",
    "estimators/common.py": "class probabilities",
    "estimators/bags/planning.py": "posterior weights of curves",
    "estimators/groups/selection.py": "one softmax over groups, the same for all samples",
    "estimators/text/learning.py": "class probabilities",
    "estimators/text/model.py": "class probabilities",
    "flows/regularization_path.py": "a smooth maximum over constraints, and a mean of losses in the log domain",
    "inspection/effects.py": "class probabilities",
    "inspection/reading.py": "a transformer's own attention, read again from its queries and keys, on its own device",
    "theory/group_sparse/symmetric.py": "dense attention between groups",
    "theory/group_sparse/transformer.py": "dense attention between groups",
    "theory/sparse_tokens/alignment.py": "weights of a quadrature",
    "theory/sparse_tokens/feature_law.py": "moments of the weights under a law; no sequence is attended to",
    "theory/sparse_tokens/pilot.py": "posterior weights of candidates",
    "theory/trained_embeddings/lemmas.py": "a mean of losses in the log domain",
    "theory/trained_embeddings/score_descent_kernels.py": "class probabilities",
    "theory/trained_embeddings/two_layer.py": "dense attention between the tokens of a document",
}


def softmaxes(path):
    """Lines of a file on which softmax attention is computed: by name, or as exponentials over their sum."""
    for function in ast.walk(tree(path)):
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
    found = {path.relative_to(SOURCE): sorted(set(softmaxes(path))) for path in SOURCE.rglob("*.py")}
    elsewhere = {path: lines for path, lines in found.items() if lines and path.parts[0] != "attention"}
    assert {path.as_posix() for path in elsewhere} == set(ALLOWED_SOFTMAX), {
        "compute it with whichtoken.attention": {
            path: lines for path, lines in elsewhere.items() if path.as_posix() not in ALLOWED_SOFTMAX
        },
        "no longer needed on the list": set(ALLOWED_SOFTMAX) - {path.as_posix() for path in elsewhere},
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


# a name that stands in several modules, and why
SHARED_NAMES = {
    "Point": "the parameters of one claim, by the contract of an experiment",
    "explain": "a command, and the verb of the rooms of texts and of bags",
    "inspect": "a command and the function that it calls",
    "plan": "a command and the function that it calls",
    "kinds": "the kinds of things that a command makes",
    "reproduce": "a command and the function that it calls",
    "save_explainer": "the verb of the rooms of texts and of bags",
    "stress": "a command and the function that it calls",
}


def public_names():
    """Pairs of a public class or function and the module that defines it."""
    for path in SOURCE.rglob("*.py"):
        for node in tree(path).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
                yield node.name, path.relative_to(SOURCE).as_posix()


def test_a_name_leads_to_one_place():
    homes = {}
    for name, module in public_names():
        homes.setdefault(name, set()).add(module)  # overloads stand in one module
    doubled = {name: modules for name, modules in homes.items() if len(modules) > 1}
    assert {name: modules for name, modules in doubled.items() if name not in SHARED_NAMES} == {}
    assert set(SHARED_NAMES) == set(doubled), "no longer needed on the list"


# compiled or batched for speed, and held to `norms.signed_power` by tests/conformance/test_power_map.py
POWER_MAPS = ["mirror_descent.py", "mirror_steps.py", "norms.py"]


def test_the_power_map_is_said_once():
    signed = re.compile(r"\b(copysign|sign)\(.*(\*\*|pow\(|_power\()")
    assert sorted(path.name for path in SOURCE.rglob("*.py") if signed.search(path.read_text())) == POWER_MAPS
