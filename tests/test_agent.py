"""An agent is a value: what it refuses, and what changes its fingerprint."""

import functools
import math
from typing import Any

import pytest

from tenuto import Agent, ConfigurationError, ThreadState, tool
from tenuto.context import instructed
from tenuto.events import Limits, Policy, decode, encode
from tenuto.events import ThreadStarted as Started
from tenuto.models.scripted import ScriptedModel


@tool(effect="read")
def look(n: int) -> str:
    return str(n)


@tool(effect="once", approval=True)
def pay(n: int) -> str:
    return str(n)


def politely(state: ThreadState) -> str:
    return f"Be polite at step {state.step}."


def curtly(state: ThreadState) -> str:
    return "Be curt."


@pytest.mark.parametrize("name", ["", " ", "a b", "-a", "a" * 65, "ä", "a\n", "a/b"])
def test_a_name_is_short_and_plain(name: str) -> None:
    with pytest.raises(ConfigurationError, match="agent name"):
        Agent(name)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"tools": [look, look]}, "two tools are called look"),
        ({"tools": [lambda: None]}, "is not a tool"),
        ({"max_steps": -1}, "max_steps"),
        ({"max_steps": 2.5}, "max_steps is a whole number"),
        ({"max_steps": True}, "max_steps is a whole number"),
        ({"max_tokens": "9"}, "max_tokens"),
        ({"max_cost": math.nan}, "max_cost"),
        ({"max_seconds": math.inf}, "max_seconds"),
        ({"question_expires_after": -1}, "question_expires_after"),
        ({"max_consecutive_errors": -1}, "max_consecutive_errors"),
        ({"on_message_while_waiting": "drop"}, "on_message_while_waiting"),
    ],
)
def test_what_cannot_work_is_refused_at_once(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        Agent("ops", **options)


def test_what_it_allows_can_be_stored_and_read_again() -> None:
    agent = Agent("ops", max_steps=3, max_tokens=5, max_cost=1, max_seconds=0.5, question_expires_after=1.5)
    assert agent.limits == Limits(3, 5, 1.0, 0.5)
    assert agent.policy == Policy("queue", 3, 1500)
    started = Started(agent.name, agent.fingerprint, agent.limits, agent.policy)
    assert decode(encode(started)) == started


CHANGES: list[dict[str, Any]] = [
    {"instructions": "Be kind."},
    {"instructions": politely},
    {"instructions": curtly},
    {"tools": [look]},
    {"tools": [pay, look]},
    {"model": "large"},
    {"max_steps": 3},
    {"max_tokens": 3},
    {"max_consecutive_errors": 1},
    {"on_message_while_waiting": "withdraw"},
    {"question_expires_after": 1},
    {"parameters": {"temperature": 0}},
    {"parameters": {"temperature": 1}},
]


def test_every_change_of_behaviour_changes_the_fingerprint() -> None:
    plain: dict[str, Any] = {"instructions": "Be exact.", "tools": [look, pay]}
    prints = [Agent("ops", **(plain | change)).fingerprint for change in [{}, *CHANGES]]
    assert len(set(prints)) == len(prints)
    assert prints[0] == Agent("ops", **plain).fingerprint
    assert prints[0] != Agent("other", **plain).fingerprint


def test_instructions_can_be_anything_that_can_be_called() -> None:
    partial = functools.partial(lambda word, state: f"{word} {state.step}", "step")
    agent = Agent("ops", partial)
    assert instructed(agent.instructions, ThreadState(step=4)) == "step 4"
    assert agent.fingerprint
    assert instructed(Agent("ops", politely).instructions, ThreadState(step=2)) == "Be polite at step 2."


def test_the_name_of_its_model() -> None:
    assert Agent("ops").model_name == ""
    assert Agent("ops", model="small").model_name == "small"
    assert Agent("ops", model=ScriptedModel([], name="fake")).model_name == "fake"


def test_its_parts_are_in_order() -> None:
    agent = Agent("ops", tools=[pay, look])
    assert [schema.name for schema in agent.schemas] == ["pay", "look"]
    assert agent.by_name == {"pay": pay, "look": look}
    with pytest.raises(AttributeError):
        agent.name = "other"  # type: ignore[misc]  # frozen
