"""Start the talk and print what is said."""

import argparse
import os

from examples.group_talk import __doc__ as about
from examples.group_talk.provider import CHARACTERS, Script, ask_endpoint
from examples.group_talk.talk import GroupTalk, Role
from tenuto.flow import Commander

OPENING = "Welcome, all of you. Shall we paint the office?"


def show(line: str) -> None:
    print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m examples.group_talk",
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("opening", nargs="?", default=OPENING, help="what the host begins with")
    parser.add_argument("--speeches", type=int, default=6, help="how many are held at most (default: 6)")
    parser.add_argument("--seed", type=int, help="makes the dice of the offline script repeatable")
    arguments = parser.parse_args()
    ask_model = ask_endpoint if os.environ.get("PROVIDER_URL") else Script(arguments.seed)
    roles = [Role(name, character, ask_model) for name, character in CHARACTERS.items()]
    talk = GroupTalk(arguments.opening, roles, arguments.speeches, show)
    try:
        Commander[None]().run(talk, auto_exit=True)
    except KeyboardInterrupt:
        show("The host closes the talk.")
    else:
        show("Nobody has anything to add." if talk.speeches_left else "The time is up.")


if __name__ == "__main__":
    main()
