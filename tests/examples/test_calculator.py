"""The four-function calculator: it calculates with tools alone, and asks when a number is none."""

import pytest
from tests.cli.conftest import Shell


@pytest.fixture
def calculator(tmp_path, processes):
    _, url = processes.start("provider", "tenuto.testing.provider", "examples.calculator.provider:answer")
    shell = Shell(tmp_path)
    shell.environment |= {
        "TENUTO_AGENT": "examples.calculator.agent:agent",
        "PROVIDER_URL": url,
        "PROVIDER_MODEL": "offline",
    }
    return shell


@pytest.mark.parametrize(
    ("question", "tool", "answer"),
    [
        ("multiply 3 and 4", "multiply", "The result is 12."),
        ("add 0.5 and -2", "add", "The result is -1.5."),
        ("subtract 2 from 1", "subtract", "The result is 1."),
        ("divide 1 by 8", "divide", "The result is 0.125."),
    ],
)
def test_it_calculates_with_its_tools(calculator, question, tool, answer):
    state = calculator.json("run", "--json", question)
    assert state["answer"] == answer
    replies = calculator.events(state["thread"], "model_replied")
    assert [call["name"] for reply in replies for call in reply["event"].get("calls", ())] == [tool]


def test_a_division_by_zero_is_read_by_the_model(calculator):
    state = calculator.json("run", "--json", "divide 3 by 0")
    assert state["status"] == "completed"
    assert "division by zero has no result" in state["answer"]


def test_a_garbled_number_makes_it_ask_and_go_on(calculator):
    calculator("run", "multiply 3 and 4kjhfs")
    (row,) = calculator.json("inbox", "--json")
    assert (row["kind"], row["prompt"]) == ("question", "'4kjhfs' is not a number. Which number is meant?")
    output = calculator("inbox", "answer", row["id"], "4")
    assert '→ multiply {"a":3.0,"b":4.0}\n' in output
    assert "The result is 12.\n" in output
