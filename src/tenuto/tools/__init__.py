"""Tools: typed Python functions that a model may call, and that say what calling them does.

`declare.py` holds the decorator, `tool.py` the `Tool` and what becomes of a call that a model wants;
`signature.py` turns a function into a JSON schema, and a model's argument text into the one canonical JSON
that is shown, approved and run; `text.py` reads that text strictly, and says what a model reads of a value or
an error; `running.py` runs functions and gives them their context; `processes.py` runs programs.

Nothing here decides whether a call runs, appends an event or knows a thread. Arguments are never guessed
and never repaired: what is not valid comes back to the model as an error. pydantic is imported only when a
schema is first needed.
"""

from tenuto.tools.builtin import ask_person, wait_until
from tenuto.tools.declare import tool
from tenuto.tools.processes import run_process
from tenuto.tools.running import Progress, ToolContext, running_tool_threads
from tenuto.tools.text import InvalidArguments, error_text, result_text
from tenuto.tools.tool import DidNotHappen, Happened, Tool, Unknown, Until, Verdict

__all__ = [
    "DidNotHappen",
    "Happened",
    "InvalidArguments",
    "Progress",
    "Tool",
    "ToolContext",
    "Unknown",
    "Until",
    "Verdict",
    "ask_person",
    "error_text",
    "result_text",
    "run_process",
    "running_tool_threads",
    "tool",
    "wait_until",
]
