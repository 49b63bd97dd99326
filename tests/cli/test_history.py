"""What the arrow keys bring back: one line each, bounded, for its owner alone."""

import readline

import pytest

from tenuto.cli.history import LINES, History, history_file


@pytest.fixture(autouse=True)
def the_line_editor_as_it_was():
    yield
    readline.clear_history()
    readline.set_auto_history(True)


def items():
    return [readline.get_history_item(n + 1) for n in range(readline.get_current_history_length())]


def test_it_is_kept_between_chats_and_bounded(tmp_path):
    file = tmp_path / "state" / "history"
    first = History(file)
    for line in ("one", "one", "two\nlines 日本", " ", "\udc80"):
        first.add(line)
    assert file.read_text(encoding="utf-8") == "one\ntwo lines 日本\n?\n"
    assert file.stat().st_mode & 0o777 == 0o600
    file.chmod(0o644)
    History(file)
    assert items() == ["one", "two lines 日本", "?"]
    assert file.stat().st_mode & 0o777 == 0o600
    file.write_text("".join(f"line {n}\n" for n in range(2 * LINES + 1)))
    History(file)
    assert items() == [f"line {n}" for n in range(LINES + 1, 2 * LINES + 1)]
    assert file.read_text().count("\n") == LINES


def test_without_a_place_it_lasts_as_long_as_the_chat(tmp_path):
    (tmp_path / "file").write_text("")
    for place in (None, tmp_path / "file" / "below" / "history"):
        history = History(place)
        history.add("one")
        assert items() == ["one"]


def test_where_it_is(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert history_file() == tmp_path / "tenuto" / "history"
    monkeypatch.setenv("XDG_STATE_HOME", "relative is to be ignored")  # as the specification says
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert history_file() == tmp_path / "home" / ".local" / "state" / "tenuto" / "history"
