"""Arrows point one way, and light things stay light."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "whichtoken"
# the rooms from the ground up: a module imports from its own room and from those before it, lazy imports included; what
# stands beside the rooms is the ground, which everything may use
ROOMS = [
    "data", "attention", "margin", "theory", "models", "optim", "training", "flows", "estimators", "inspection", "lab",
    "experiments", "report", "workbench", "commands", "cli",
]  # fmt: skip
EXCEPTION = ("lab", "experiments")  # lab.discovery finds experiments by the name of their package


@cache
def tree(path):
    """A source file, parsed once for all tests."""
    return ast.parse(path.read_text())


def imported(path):
    """Names of the modules that a file imports anywhere in it."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def height(module):
    """0 for the ground, then the number of the room."""
    room = module.split(".")[1] if "." in module else ""
    return ROOMS.index(room) + 1 if room in ROOMS else 0


def test_every_room_exists():
    assert {path.stem for path in SOURCE.iterdir()} >= set(ROOMS)


def test_arrows_point_one_way():
    wrong = []
    for path in SOURCE.rglob("*.py"):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        if parts in {("__init__",), ("__main__",)}:
            continue
        here = height(f"whichtoken.{parts[0]}")
        for name in imported(path):
            if name.startswith("whichtoken.") and height(name) > here:
                wrong.append((parts[0], name.split(".")[1], str(path)))
    assert not [arrow for arrow in wrong if arrow[:2] != EXCEPTION]


def test_what_lies_beside_claims_and_is_none_starts_with_an_underscore():
    for path in (SOURCE / "experiments").glob("*/*.py"):
        bases = [base for node in tree(path).body if isinstance(node, ast.ClassDef) for base in node.bases]
        is_claim = any(isinstance(base, ast.Subscript) and "Experiment" in ast.unparse(base) for base in bases)
        assert is_claim or path.name.startswith("_"), path


def test_display_imports_nothing_of_the_product():
    for path in (SOURCE / "display").rglob("*.py"):
        foreign = [name for name in imported(path) if name.startswith("whichtoken.") and "display" not in name]
        assert not foreign, path


@pytest.mark.parametrize("folder", ["attention", "theory"])
def test_imports_neither_torch_nor_models(folder):
    for path in (SOURCE / folder).rglob("*.py"):
        assert not any(
            name.startswith(("torch", "whichtoken.models", "whichtoken.optim")) for name in imported(path)
        ), path


SOFTMAX = {"softmax", "log_softmax", "logsumexp", "scaled_dot_product_attention"}
# who may say softmax outside of `attention/`, wherever the file stands, and why
ALLOWED_SOFTMAX = {
    "attention_modules.py": "the textbook form in torch, which benchmarks and tests take for comparison",
    "key_query_attention.py": "a dense torch module that runs on any device; relative to the winner, in the suite",
    "one_step.py": "a check by brute force, which shares no code with what it checks",
    "group_probe.py": "dense attention between groups",
    "group_transformer.py": "dense attention between groups",
    "two_layer_attention.py": "dense attention between the tokens of a document",
    "symmetric.py": "dense attention between groups",
    "attention.py": "one softmax over groups, the same for all samples",
    "_scores.py": "class probabilities",
    "forecast.py": "posterior weights of curves",
    "model.py": "class probabilities",
    "validation.py": "class probabilities",
    "score_descent_kernels.py": "class probabilities",
    "bounds.py": "a mean of losses in the log domain",
    "joint_path.py": "a mean of losses in the log domain",
    "path.py": "a smooth maximum over constraints",
    "reading.py": "a transformer's own attention, read again from its queries and keys, on its own device",
    "decision.py": "class probabilities",
    "transformer.py": "a dense attention layer, written out for comparison",
    "attention_map.py": "brute force, which is to share no code with what it judges",
    "theorem.py": "brute force over the places of a sequence, which must share no code",
    "alignment.py": "weights of a quadrature",
    "pilot.py": "posterior weights of candidates",
    "feature_law.py": "moments of the weights under a law; no sequence is attended to",
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
    assert sorted(path.name for path in elsewhere) == sorted(ALLOWED_SOFTMAX), {
        "compute it with whichtoken.attention": {k: v for k, v in elsewhere.items() if k.name not in ALLOWED_SOFTMAX},
        "no longer needed on the list": set(ALLOWED_SOFTMAX) - {path.name for path in elsewhere},
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
    "plan": "a command and the function that it calls",
    "reproduce": "a command and the function that it calls",
    "number": "read as `stored.number` beside the other values of a model folder",
    "Explanation": "the protocol, and the explanation of a text that fits it",
    "pool_all": "on arrays and compiled, digit for digit the same",
    "log_weights_of": "on arrays and compiled, digit for digit the same",
    "view_of": "in each room of estimators, its explanations as people read them",
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
POWER_MAPS = ["mirror_kernels.py", "mirror_steps.py", "norms.py"]


def test_the_power_map_is_said_once():
    signed = re.compile(r"\b(copysign|sign)\(.*(\*\*|pow\(|_power\()")
    assert sorted(path.name for path in SOURCE.rglob("*.py") if signed.search(path.read_text())) == POWER_MAPS


LONGEST_FILE = 400  # lines


def test_files_are_short():
    lengths = {path.relative_to(SOURCE).as_posix(): len(path.read_text().splitlines()) for path in SOURCE.rglob("*.py")}
    assert {name: lines for name, lines in lengths.items() if lines > LONGEST_FILE} == {}


MOST_PARAMETERS = 8
FEW_BY_PLACE = 4  # of a function with more, all others are given by name
EXCEPT = {"run_descent", "fit_attention"}  # all but two by name, for the descents that share it


def exported():
    """Functions that a room or a theory offers."""
    names = set()
    for path in [*SOURCE.glob("*/__init__.py"), *SOURCE.glob("theory/*/__init__.py")]:
        for node in tree(path).body:
            if isinstance(node, ast.Assign) and name_of(node.targets[0]) == "__all__":
                names |= set(ast.literal_eval(node.value))
    return names


def long_signatures(path):
    """Functions with many parameters that are neither compiled, nor a constructor, nor a command."""
    parsed = tree(path)
    constructors = {
        id(item)
        for node in ast.walk(parsed)
        if isinstance(node, ast.ClassDef)
        for item in node.body
        if isinstance(item, ast.FunctionDef) and item.name == "__init__"
    }
    for node in ast.walk(parsed):
        if not isinstance(node, ast.FunctionDef) or id(node) in constructors:
            continue
        compiled = any(
            "jit" in ast.unparse(decorator) or "vectorize" in ast.unparse(decorator)
            for decorator in node.decorator_list
        )
        given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        count = len([argument for argument in given if argument.arg not in ("self", "cls")])
        if count > MOST_PARAMETERS and not compiled:
            yield node.name, count, len(node.args.posonlyargs) + len(node.args.args)


def test_functions_take_few_parameters():
    """But for constructors, compiled kernels, commands, and exported functions whose parameters are given by name."""
    found, offered = {}, exported()
    for path in SOURCE.rglob("*.py"):
        name = path.relative_to(SOURCE).as_posix()
        for function, count, by_place in long_signatures(path) if not name.startswith("commands/") else ():
            by_name = function in offered and by_place <= FEW_BY_PLACE
            if not by_name and function not in EXCEPT:
                found.setdefault(name, []).append((function, count, by_place))
    assert found == {}
