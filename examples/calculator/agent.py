"""Add, subtract, multiply, divide; and ask when a number is not one."""

from tenuto import Agent, ask_person, tool


@tool(effect="read")
def add(a: float, b: float) -> float:
    """Add two numbers."""
    return a + b


@tool(effect="read")
def subtract(a: float, b: float) -> float:
    """Subtract b from a."""
    return a - b


@tool(effect="read")
def multiply(a: float, b: float) -> float:
    """Multiply two numbers."""
    return a * b


@tool(effect="read")
def divide(a: float, b: float) -> float:
    """Divide a by b."""
    if b == 0:
        raise ValueError("division by zero has no result")
    return a / b


agent = Agent(
    "calculator",
    instructions=(
        "You are a calculator. Use the tools for every operation, one at a time, and never calculate "
        "yourself. When a number in the request is garbled or missing, do not guess: call ask_person, and go "
        "on with the answer. Say the result in one short sentence."
    ),
    tools=[add, subtract, multiply, divide, ask_person],
    max_steps=12,
)
