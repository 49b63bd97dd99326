"""The chat at a terminal. Without one, each line of the standard input is a prompt."""

import argparse
import os
import sys
from collections.abc import Iterator

from examples.flow_chat import __doc__ as about
from examples.flow_chat.agent import Chat, ChatJob
from examples.flow_chat.provider import ask_provider, ask_script
from tenuto.flow import Commander, LLMAsyncAdapter


def prompts(given: list[str]) -> Iterator[str]:
    """Blocks for a person; the adapter waits for it in a thread that does not hold the exit."""
    at_terminal = not given and sys.stdin.isatty()
    lines = iter(given) if given else iter(sys.stdin.readline, "")
    while True:
        if at_terminal:
            print("you: ", end="", flush=True)
        prompt = next(lines, "exit").strip()
        if prompt == "exit":
            return
        if prompt and not at_terminal:
            print(f"you: {prompt}", flush=True)
        if prompt:
            yield prompt


def show(text: str) -> None:
    print(text, end="", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m examples.flow_chat",
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("prompt", nargs="*", help="what to say, one round each, instead of being asked")
    said = LLMAsyncAdapter().llm_to_async_iterable(prompts(parser.parse_args().prompt))

    async def next_prompt() -> str | None:
        return await anext(said, None)

    ask_model = ask_provider if os.environ.get("PROVIDER_URL") else ask_script
    try:
        print(Commander[str]().run(ChatJob(Chat(ask_model, next_prompt, show))))
    except KeyboardInterrupt:
        print("\ngoodbye")


if __name__ == "__main__":
    main()
