"""One tool. Its `to_user` argument lets the model say what it is about to do, in the same breath."""

import json
from typing import Any

WEATHER = {"beijing": (10, "celsius"), "paris": (22, "celsius"), "san francisco": (72, "fahrenheit")}

SCHEMAS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "get_current_weather",
            "description": "The current weather in a city.",
            "parameters": {
                "type": "object",
                "properties": {
                    "to_user": {
                        "type": "string",
                        "description": "What to tell the user while the tool works, in one short sentence.",
                    },
                    "location": {"type": "string", "description": "The city, such as Paris."},
                },
                "required": ["location"],
            },
        },
    }
]


def run_tool(name: str, arguments: Any) -> str:
    """The tool's result as text for the model; a mistake of the model is a result, too."""
    if name != "get_current_weather":
        return f"Error: there is no tool {name!r}."
    location = arguments.get("location") if isinstance(arguments, dict) else None
    if not isinstance(location, str):
        return "Error: say which location."
    temperature, unit = WEATHER.get(location.lower(), (None, "celsius"))
    return json.dumps({"location": location, "temperature": temperature, "unit": unit})
