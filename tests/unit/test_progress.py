"""What reaches a terminal."""

import io

from rich.table import Table

from pseudocore.workflows.progress import PlainConsole


def test_control_characters_are_spelled_out() -> None:
    """Escape sequences of a file's name, C1 codes and changes of direction; our own colours stay."""
    screen = io.StringIO()
    console = PlainConsole(file=screen, force_terminal=True, color_system="standard", markup=False)
    hostile = "a\x1b]0;title\x07b\x9b2Jc\u202ed\re\u2068"
    table = Table(title="t")
    table.add_column("[x]", style="red")
    table.add_row(hostile)
    console.print(hostile, table, sep="\n")
    shown = screen.getvalue()
    for char in "\x07\x9b\u202e\r\u2068":
        assert char not in shown
    assert "\x1b]" not in shown
    assert "a\\x1b]0;title" in shown
    assert "\x1b[31m" in shown


def test_plain_text_and_lines_stay() -> None:
    screen = io.StringIO()
    PlainConsole(file=screen, soft_wrap=True).print("ä ± 日本 x\ny")
    assert screen.getvalue() == "ä ± 日本 x\ny\n"
