"""Naming agents: option, environment, project file; and what is said when one cannot be had."""

import pytest
from tests.cli.conftest import ROOT, Shell

MODULES = {
    "good.py": "from tenuto import Agent\nfrom tenuto.testing import ScriptedModel as M\n"
    "agent = Agent('good', model=M(['hi']))\npair = [agent, Agent('two', model=M([]))]\nnumber = 17\n",
    "bare.py": "from tenuto import Agent\nagent = Agent('bare')\n",
    "raises.py": "import os\nos.environ['NOT_SET_ANYWHERE']\n",
    "leaves.py": "import sys\nsys.exit('no licence')\n",
    "imports.py": "import no_such_library\n",
    "wrong.py": "def broken(:\n",
    "prints.py": "print('hello from the module')\nfrom good import agent\n",
    "package/__init__.py": "",
    "package/inner.py": "from good import agent\nclass desk:\n    agent = agent\n",
}


@pytest.fixture
def project(tmp_path):
    for name, text in MODULES.items():
        path = tmp_path / "project" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    shell = Shell(tmp_path, cwd=tmp_path / "project")
    del shell.environment["TENUTO_AGENT"]
    shell.environment["PYTHONPATH"] = str(ROOT / "src")
    return shell


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nowhere:agent", "there is no module 'nowhere'; looked in {cwd} and"),
        (
            "package.nowhere:agent",
            "there is no module 'package.nowhere'; looked in {cwd} and",
        ),
        ("good:nobody", "good has no 'nobody'; its agents are: agent"),
        ("good:number", "number is int, not an Agent or a list of agents"),
        ("raises:agent", "importing raises raised KeyError: 'NOT_SET_ANYWHERE' (raises.py:2 in <module>)"),
        ("leaves:agent", "importing leaves raised SystemExit: no licence (leaves.py:2 in <module>)"),
        ("imports:agent", "importing imports raised ModuleNotFoundError: No module named 'no_such_library'"),
        ("wrong:agent", "importing wrong raised SyntaxError: invalid syntax (wrong.py, line 1)"),
    ],
)
def test_an_agent_that_cannot_be_had_is_one_clear_line(project, name, said):
    for command in (["run", "--agent", name, "hello"], ["serve", name]):
        output = project(*command, code=1)
        assert output.startswith(f"tenuto: agent {name}: {said.format(cwd=project.cwd)}")
        assert output.count("\n") == 1
    assert not project.database.exists()


def test_what_a_module_prints_does_not_spoil_json(project):
    command = ["run", "--agent", "prints:agent", "--json", "hello"]
    output, errors = project.popen(*command).communicate(timeout=20)
    assert output.startswith("{")
    assert errors == "hello from the module\n"


def test_an_attribute_may_be_nested(project):
    assert project("run", "--agent", "package.inner:desk.agent", "hello").startswith("hi\n")


def test_a_provider_that_is_not_named_is_one_clear_line(project):
    for command in (["run", "--agent", "bare:agent", "hello"], ["serve", "bare:agent", "--port", "0"]):
        assert project(*command, code=1).startswith("tenuto: PROVIDER_URL is not set; for example: ")
    assert not project.database.exists()


def test_the_nearest_project_file_names_the_agents(project):
    inner = project.cwd / "deep" / "inside"
    inner.mkdir(parents=True)
    (project.cwd / "pyproject.toml").write_text('[tool.tenuto]\nagents = ["good:pair"]\n')
    project.cwd = inner
    output = project("run", "hello", code=1)
    assert output == "tenuto: which agent? There are good, two; name one with --agent MODULE:AGENT\n"
    # The option wins over the environment, and that over the file.
    project.environment["TENUTO_AGENT"] = "good:number"
    assert "number is int" in project("run", "hello", code=1)
    assert "no module 'x'" in project("run", "hello", "--agent", "x:y", code=1)


@pytest.mark.parametrize(
    "text",
    [
        '[tool.tenuto]\nagents = "good:agent"\n',
        '[tool.tenuto]\nagents = ["good"]\n',
        "[tool.tenuto\n",
        "tool = 1\n",
    ],
)
def test_a_project_file_that_is_wrong(project, text):
    (project.cwd / "pyproject.toml").write_text(text)
    output = project("run", "hello", code=1)
    assert output.startswith(f"tenuto: {project.cwd}/pyproject.toml")
    assert output.count("\n") == 1
