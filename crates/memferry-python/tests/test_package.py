"""The type stubs and the notebook."""

import ast
import asyncio
import inspect
import json
from pathlib import Path

import memferry
import pytest

PACKAGE = Path(memferry.__file__).parent
NOTEBOOK = Path(__file__).parent.parent / "examples" / "memferry.ipynb"

# Of all objects, or of the protocols of native classes.
IMPLIED = {"__new__", "__repr__", "__module__", "__doc__", "__buffer__", "__release_buffer__"}


STUB = ast.parse((PACKAGE / "__init__.pyi").read_text())
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def test_stubs_name_what_there_is():
    assert (PACKAGE / "py.typed").exists()
    public = [node for node in STUB.body if hasattr(node, "name") and not node.name.startswith("_")]
    assert {node.name for node in public} == set(memferry.__all__)
    for node in public:
        if isinstance(node, ast.ClassDef):
            stated = {member.name for member in node.body if isinstance(member, FUNCTIONS)}
            found = {name for name in vars(getattr(memferry, node.name)) if name.startswith("__") or name[0] != "_"}
            assert stated - IMPLIED == found - IMPLIED - {"__weakref__"}, node.name


def parameters(signature, is_method):
    """Kinds, names and defaults, without `self`. The name after `*` does not matter."""
    kinds = inspect.Parameter
    found = list(signature.parameters.values())[is_method:]
    return [(it.kind, None if it.kind is kinds.VAR_POSITIONAL else it.name, it.default) for it in found]


def stated_signature(node):
    """The signature of a function of the stub. Annotations are not evaluated."""
    bare = ast.parse(ast.unparse(node)).body[0]
    bare.decorator_list, bare.returns, bare.body = [], None, [ast.Pass()]
    arguments = bare.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    for argument in filter(None, every):
        argument.annotation = None
    names = {}
    exec(ast.unparse(bare), names)
    return inspect.signature(names[node.name])


def stated_functions():
    for node in STUB.body:
        if isinstance(node, FUNCTIONS):
            yield pytest.param(None, node, id=node.name)
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            for member in filter(lambda it: isinstance(it, FUNCTIONS), node.body):
                yield pytest.param(node.name, member, id=f"{node.name}.{member.name}")


@pytest.mark.parametrize("owner, node", stated_functions())
def test_stubs_state_the_signatures(owner, node):
    decorators = {ast.unparse(decorator) for decorator in node.decorator_list}
    if owner is None:
        function = getattr(memferry, node.name)
        assert inspect.iscoroutinefunction(function) == isinstance(node, ast.AsyncFunctionDef)
        assert parameters(inspect.signature(function), False) == parameters(stated_signature(node), False)
        return
    found = vars(getattr(memferry, owner))[node.name]
    assert inspect.isgetsetdescriptor(found) == ("property" in decorators)
    assert isinstance(found, staticmethod) == ("staticmethod" in decorators)
    if "property" in decorators:
        return
    if node.name == "__new__":
        # The signature of a native class is that of its constructor, without `cls`.
        found = parameters(inspect.signature(getattr(memferry, owner)), False)
    else:
        found = parameters(inspect.signature(getattr(memferry, owner).__dict__[node.name]), "staticmethod" not in decorators)
    assert found == parameters(stated_signature(node), "staticmethod" not in decorators)


def test_notebook():
    """Runs its code cells in order, with `await` at the top level as Jupyter has it."""
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    names = {"__name__": "__main__"}
    with asyncio.Runner() as runner:

        async def run(code):
            result = eval(code, names)
            if inspect.isawaitable(result):
                await result

        for cell in cells:
            if cell["cell_type"] == "code":
                source = "".join(cell["source"])
                code = compile(source, NOTEBOOK.name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
                runner.run(run(code))
    assert names["answer"].num_rows == 3
