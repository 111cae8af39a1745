"""The type stubs and the notebook."""

import ast
import asyncio
import inspect
import json
from pathlib import Path

import memferry

PACKAGE = Path(memferry.__file__).parent
NOTEBOOK = Path(__file__).parent.parent / "examples" / "memferry.ipynb"

# Of all objects, or of the protocols of native classes.
IMPLIED = {"__new__", "__repr__", "__module__", "__doc__", "__buffer__", "__release_buffer__"}


def test_stubs_name_what_there_is():
    assert (PACKAGE / "py.typed").exists()
    stub = ast.parse((PACKAGE / "__init__.pyi").read_text())
    public = [node for node in stub.body if hasattr(node, "name") and not node.name.startswith("_")]
    assert {node.name for node in public} == set(memferry.__all__)
    for node in public:
        if isinstance(node, ast.ClassDef):
            stated = {member.name for member in node.body if isinstance(member, ast.FunctionDef)}
            found = set(vars(getattr(memferry, node.name)))
            assert stated - IMPLIED == found - IMPLIED - {"__weakref__"}, node.name


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
