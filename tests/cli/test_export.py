"""tenuto export: the stored form, checked without the database by the rule that is written down."""

import calendar
import hashlib
import json
import time
import urllib.request


def check(thread, lines):
    """The chain by the formula of docs/architecture.md and events.py, not by their code; the last hash."""
    previous = bytes(32)
    for number, line in enumerate(lines, 1):
        stored = json.loads(line)
        body = line.split('"body":', 1)[1][:-1].encode()  # its text to the letter
        assert stored["seq"] == number
        hashed = hashlib.sha256(bytes.fromhex(stored["salt"]) + body).hexdigest()
        assert stored["body_hash"] == hashed
        place = f"\n{thread}\n{number}\n{stored['v']}\n{stored['type']}\n{milliseconds(stored['at'])}\n"
        previous = hashlib.sha256(previous + place.encode() + bytes.fromhex(hashed)).digest()
        assert stored["hash"] == previous.hex()
    return previous.hex()


def milliseconds(at):
    assert at.endswith("Z")
    whole, _, rest = at[:-1].partition(".")
    return calendar.timegm(time.strptime(whole, "%Y-%m-%dT%H:%M:%S")) * 1000 + int(rest)


def test_the_chain_can_be_checked_from_the_export_alone(shell):
    thread = shell.started("ask Welche Farbe? 日本 👩‍👧")
    lines = shell("export", thread[:8]).splitlines()
    head = check(thread, lines)
    assert shell("verify", thread, "--heads") == f"{thread} {len(lines)} {head}\n"
    assert json.loads(lines[1])["body"]["text"] == "ask Welche Farbe? 日本 👩‍👧"


def test_to_a_file_and_never_over_one_that_is_there(shell):
    thread = shell.started("hello")
    file = shell.place / "thread.jsonl"
    assert shell("export", thread, "-o", str(file)) == ""
    text = file.read_text()
    assert text == shell("export", thread)
    assert file.stat().st_mode & 0o777 == 0o600
    file.write_text("mine")
    output = shell("export", thread, "-o", str(file), code=1)
    assert output == f"tenuto: {file} is there already; --force writes over it\n"
    assert file.read_text() == "mine"
    shell("export", thread, "-o", str(file), "--force")
    assert file.read_text() == text
    assert sorted(path.name for path in shell.place.glob("*thread*")) == ["thread.jsonl"]


def test_a_folder_that_is_not_there(shell):
    thread = shell.started("hello")
    output = shell("export", thread, "-o", str(shell.place / "no" / "a"), code=1)
    assert output.startswith("tenuto: [Errno 2] No such file or directory: ")


def test_it_is_what_the_server_exports(shell):
    thread = shell.started("hello")
    local = shell("export", thread)
    with shell.serving() as (_, url):
        with urllib.request.urlopen(f"{url}/v1/threads/{thread}/export") as answer:
            assert answer.read().decode() == local
        del shell.environment["TENUTO_DATABASE"]
        shell.environment["TENUTO_URL"] = url
        assert shell("export", thread) == local
