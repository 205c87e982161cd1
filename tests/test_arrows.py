"""Who may import whom: positional and eval stand alone, heavy packages have one home each, the CLI starts fast."""

import ast
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EVERYWHERE = set(sys.stdlib_module_names)
ALLOWED = {"positional": {"positional", "torch"}, "eval": {"eval", "torch", "numpy", "scipy"}}
ENTRY = {  # a program of its own, which loads models and texts and draws
    "eval/__main__.py": {"transformers", "tqdm"},
    "eval/checkpoint.py": {"transformers"},
    "eval/draw.py": {"matplotlib"},
    "eval/fork.py": {"transformers"},
    "eval/heatmap.py": {"matplotlib"},
    "eval/load.py": {"transformers"},
    "eval/weights.py": {"safetensors"},
}
HEAVY = {"torch", "transformers", "datasets", "wandb", "accelerate", "matplotlib"}
LIGHT = ["cli", "config", "settings", "rows", "table", "progress"]


def files(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


@cache
def all_nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text())))


def nodes_run_at_import(path: Path) -> list[ast.AST]:
    """Everything but the bodies of functions, which run later or never."""
    todo, found = [ast.parse(path.read_text())], []
    while todo:
        node = todo.pop()
        found.append(node)
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            todo += ast.iter_child_nodes(node)
    return found


def imported(nodes: list[ast.AST]) -> set[str]:
    """The dotted names that these nodes import."""
    names = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: a relative import hides where it leads"
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def packages(nodes: list[ast.AST]) -> set[str]:
    return {name.partition(".")[0] for name in imported(nodes)}


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", files("positional") + files("eval"), ids=named)
def test_positional_and_eval_stand_alone(path):
    allowed = ALLOWED[path.relative_to(ROOT).parts[0]] | ENTRY.get(named(path), set()) | EVERYWHERE
    assert packages(all_nodes(path)) <= allowed


@pytest.mark.parametrize("package", ["positional", "eval", "lab"])
def test_a_package_has_files_to_check(package):
    assert len(files(package)) > 3  # a folder that moved would make every test here pass


@pytest.mark.parametrize(
    ("package", "home"), [("datasets", "lab/sources.py"), ("peft", "lab/finetune/lora.py"), ("wandb", "lab/track.py")]
)
def test_a_package_of_one_purpose_is_imported_in_one_file(package, home):
    everything = files("lab") + files("positional") + files("eval")
    assert [named(path) for path in everything if package in packages(all_nodes(path))] == [home]


@pytest.mark.parametrize(("name", "home"), [("flash_attn", "flash2"), ("flash_attn.cute", "flash4")])
def test_each_flash_attn_is_imported_in_the_one_file_of_its_backend(name, home):
    importing = [path for path in files("lab") if name in imported(all_nodes(path))]
    assert [named(path) for path in importing] == [f"lab/attention/{home}.py"]


@pytest.mark.parametrize("name", LIGHT)
def test_what_the_command_line_starts_with_imports_nothing_heavy(name):
    """Nor does anything of ours that it imports, to any depth: `lab --help` must not take seconds."""
    todo, seen, found = [f"lab.{name}"], set(), set()
    while todo:
        module = todo.pop()
        seen.add(module)
        for dotted in imported(nodes_run_at_import(file_of(module))):
            found.add(dotted.partition(".")[0])
            todo += [part for part in parents(dotted) if part not in seen and file_of(part)]
    assert not found & HEAVY


def parents(name: str) -> list[str]:
    """`a`, `a.b`, `a.b.c`: importing the last runs them all."""
    parts = name.split(".")
    return [".".join(parts[:n]) for n in range(1, len(parts) + 1)]


def file_of(module: str) -> Path | None:
    """The file of a module of this repository."""
    base = ROOT / module.replace(".", "/")
    return next((path for path in (base.with_suffix(".py"), base / "__init__.py") if path.exists()), None)


def test_importing_inside_a_function_is_not_importing_at_module_level(tmp_path):
    path = tmp_path / "one.py"
    path.write_text("import a\nif True:\n    import b\ndef f():\n    import c\nclass C:\n    import d\n")
    assert packages(nodes_run_at_import(path)) == {"a", "b", "d"}
    assert packages(all_nodes(path)) == {"a", "b", "c", "d"}
