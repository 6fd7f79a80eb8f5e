"""Progress on standard error: a bar on a terminal and in a notebook, else a line now and then."""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.segment import Segment

from pseudocore.runtime.reporting import listening

_SECONDS_BETWEEN_LINES, _VERBOSELY = 30.0, 3.0
_VERBOSITY = "PSEUDOCORE_VERBOSITY"

Advance = Callable[[int, Mapping[str, float]], None]
"""Called with how much is done and numbers to show."""


def set_verbosity(level: str) -> None:
    """`quiet`, `verbose` or neither, here and in child processes; the environment's stays if empty."""
    if level:
        os.environ[_VERBOSITY] = level


def is_quiet() -> bool:
    """Whether progress and hints are left out; results, warnings and errors never are."""
    return os.environ.get(_VERBOSITY) == "quiet"


def is_verbose() -> bool:
    """Whether progress is reported more often, and errors with where they came from."""
    return os.environ.get(_VERBOSITY) == "verbose"


class PlainConsole(Console):
    """A console on which names, paths and reasons from files appear with their control characters
    spelled out: an escape sequence could rewrite what the terminal shows, or its title.
    """

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            text, style, control = segment
            yield segment if control else Segment(visible(text), style)


def visible(text: str) -> str:
    """The text with control and direction-changing characters as `\\x1b`; lines and tabs stay."""
    if text.isprintable():
        return text
    return "".join(_spelled(char) if ord(char) in _CONTROLS else char for char in text)


def _spelled(char: str) -> str:
    return char.encode("unicode_escape").decode()


_CONTROLS = frozenset(
    {*range(9), *range(11, 32), *range(127, 160)}
    | {0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)}
)


console = PlainConsole(stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True)
"""Standard error; what is printed through it while a bar is drawn appears above the bar."""


@contextmanager
def progress(title: str, total: int, done: int = 0) -> Iterator[Advance]:
    """Show how far a loop is.

    Args:
        title: What is under way.
        total: Number of steps.
        done: Steps done before. Defaults to none.

    Returns:
        A context whose value is called with the number of steps done and numbers to show.
    """
    if is_quiet():
        yield lambda done, numbers: None
        return
    if not (console.is_terminal or console.is_jupyter):
        yield _lines(title, total)
        return
    room = console.width - len(title) - 2 * len(str(total)) - 38  # what the other columns leave
    with _PARTS.beside(_bar(disable=total == 0)) as bar:
        task = bar.add_task(title, total=total, completed=done, numbers="", rate="")

        def advance(done: int, numbers: Mapping[str, float]) -> None:
            speed = bar.tasks[0].speed
            rate = f"{speed:.3g}/s" if speed else ""
            bar.update(task, completed=done, rate=rate, numbers=_text(numbers, room))

        yield advance


@contextmanager
def parts() -> Iterator[None]:
    """Show how far training, sampling and selecting inside methods and inferences are."""
    with listening(_PARTS):
        try:
            yield
        finally:
            _PARTS.end()


def _bar(disable: bool = False) -> Progress:
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=16),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}", markup=False),
        TimeRemainingColumn(),
        TextColumn("{task.fields[numbers]}", style="dim", markup=False),
    )
    return Progress(*columns, console=console, transient=True, disable=disable)


class _Parts:
    """What is under way inside a step: beside the bar that is drawn, or as a bar of its own. Parts
    of less than a second are not shown.
    """

    def __init__(self) -> None:
        self._title, self._began, self._shown = "", 0.0, 0.0
        self._around: Progress | None = None
        self._own: Progress | None = None

    def __call__(self, title: str, done: int, total: int) -> None:
        now = time.monotonic()
        if title != self._title:
            self.end()
            self._title, self._began, self._shown = title, now, now
        is_terminal = console.is_terminal or console.is_jupyter
        pause = 0.1 if is_terminal else _pause()
        if is_quiet() or now - self._began < 1.0 or now - self._shown < pause:
            return
        self._shown = now
        if not is_terminal:
            console.print(f"{title}: {done}/{total}")
        elif self._around is not None:
            self._around.update(TaskID(0), numbers=f"{title} {done}/{total}")
        else:
            if self._own is None:
                self._own = _bar()
                self._own.add_task(title, total=total, numbers="", rate="")
                self._own.start()
            self._own.update(TaskID(0), completed=done, total=total)
        if done >= total:
            self.end()

    def end(self) -> None:
        """Take it off the screen."""
        self._title = ""
        if self._own is not None:
            self._own.stop()
            self._own = None

    @contextmanager
    def beside(self, bar: Progress) -> Iterator[Progress]:
        """While `bar` is drawn, parts are named beside it: there is one place on a terminal."""
        self.end()
        before, self._around = self._around, bar
        try:
            with bar:
                yield bar
        finally:
            self._around = before


_PARTS = _Parts()


def _pause() -> float:
    return _VERBOSELY if is_verbose() else _SECONDS_BETWEEN_LINES


def _lines(title: str, total: int) -> Advance:
    last = time.monotonic()

    def advance(done: int, numbers: Mapping[str, float]) -> None:
        nonlocal last
        if time.monotonic() - last >= _pause():
            last = time.monotonic()
            console.print(f"{title}: {done}/{total}  {_text(numbers)}")

    return advance


def _text(numbers: Mapping[str, float], room: int = 1000) -> str:
    """`loss 0.31  accuracy 0.9`, as many of them as there is room for."""
    text = ""
    for name, value in numbers.items():
        longer = f"{text}  {name} {value:.3g}".lstrip()
        if len(longer) > room:
            break
        text = longer
    return text
