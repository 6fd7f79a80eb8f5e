"""How a step is run: eagerly on a CPU; on a GPU as one captured CUDA graph, of kernels fused by
torch.compile when that pays.
The only file that knows.

A step launches some hundreds of small kernels, and on a fast GPU launching them takes longer than
running them. A captured graph launches them all at once; compiling first makes fewer and better
ones, for half a minute's work at the start.

Randomness stays a function of (seed, step). The first call notes what a step draws and from which
streams. From then on each draw has a generator of its own, registered with the graph and re-seeded
from its stream before every replay: captured, compiled and eager runs make the same draws. A
compiled step cannot draw, so its draws are made first and handed in; any other draws where it needs
to.

A step that is a hundred passes through a network takes far too long to compile whole. Such a method
says `in_pieces = True` and wraps the functions it repeats, an augmentation for example, in
`compile_region`: these are compiled once and the rest is captured as it is. Gradients
(`runtime/autodiff.py`) are such pieces too, except those of networks with kernels of our own, which
are faster.

A step that cannot be captured (it reads a value back to the host, or branches on one) is run
eagerly, and `Stepper.note` says why.
"""

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal, NamedTuple, TypeVar, cast

import torch
from torch import Tensor

from pseudocore.core.problem import Problem, own_kernels
from pseudocore.core.rng import Device, Rng
from pseudocore.core.tree import clone, flatten

Compile = Literal["auto", "on", "off"]
COMPILE_HELP = (
    "auto captures steps as CUDA graphs on a GPU and compiles those of long runs; on compiles them anywhere; off runs torch's own "
    "kernels eagerly."
)
Step = Callable[[Problem, Any, Rng], tuple[Any, Any]]
Result = TypeVar("Result")

WARM_UP = 3
"""Steps before capture, so that libraries have made their handles and workspaces; they count as
real steps.
"""

PAYS_FROM = 5000
"""Steps from which `auto` compiles: about half a minute once, for about 2 ms a step."""


AT_ONCE = 4
"""Branches of a captured step that run side by side: each takes its own memory, and more gain
little.
"""

_branches: list[torch.cuda.Stream] = []
"""The same ones every time, as each keeps the memory it was given."""

Pieces = Literal["none", "all", "all but passes"]
_compiled_pieces: ContextVar[Pieces] = ContextVar("compiled pieces", default="none")


def is_eager() -> bool:
    """Whether what runs now is only run: not being compiled, and inside no transform (a gradient,
    vmap).
    """
    return (
        not torch.compiler.is_compiling() and torch._C._functorch.peek_interpreter_stack() is None
    )


def host_sync_allowed() -> bool:
    """Whether the host may look at a value on the GPU and choose by it: in a step that nothing
    captures or compiles (`off`).
    """
    return (
        not torch.compiler.is_compiling() and not own_kernels.get()
    )  # the compiler knows the former and cannot look into the latter


def compile_region(function: Callable[..., Any], *, is_pass: bool = False) -> Callable[..., Any]:
    """`function`, compiled where a step is being taken that is compiled in pieces; anywhere else
    itself.

    It must be a pure function of tensors that draws nothing. Inside a transform (a gradient, vmap)
    it stays itself: what can be compiled is the function with all its transforms. So does a pass
    through a network that has kernels of our own.
    """
    if not is_eager() or _compiled_pieces.get() in (
        {"none", "all but passes"} if is_pass else {"none"}
    ):
        return function
    channels_last: Any = {
        "force_layout_optimization": torch.cuda.is_available()
    }  # torch would keep to it in simpler functions only
    return torch.compile(function, fullgraph=True, dynamic=False, options=channels_last)


def parallel_streams(calls: Iterable[Callable[[], Result]]) -> Iterator[Result]:
    """The results of calls that do not need each other: in a step being captured, branches that the
    GPU may run at once; else in turn.

    The kernels of a small network leave a large GPU idle at their ends and between them, which
    those of another can fill.
    """
    if (
        not is_eager()
        or not torch.cuda.is_available()
        or not torch.cuda.is_current_stream_capturing()
    ):
        yield from (call() for call in calls)
        return
    calls = iter(calls)
    while group := list(islice(calls, AT_ONCE)):
        while len(_branches) < len(group):
            _branches.append(torch.cuda.Stream())  # type: ignore[no-untyped-call]
        here, results = torch.cuda.current_stream(), []
        for stream in _branches[
            : len(group)
        ]:  # all leave from here: memory that one of them gave back earlier is free by then
            stream.wait_stream(here)
        for stream, call in zip(_branches, group, strict=False):
            with torch.cuda.stream(stream):
                results.append(call())
        for stream in _branches[: len(group)]:
            here.wait_stream(stream)
        yield from results


class StepRunner:
    """Runs `step`, as a graph where that is possible.

    `auto` captures on a GPU, and compiles too when `num_steps` is large; `on` does both, on a CPU
    the latter alone; `off` neither, nor does it use kernels of our own. A captured step keeps the
    state in buffers of its own: a state it returned is overwritten by the next call, and whoever
    wants to keep one clones it.
    """

    def __init__(
        self,
        step: Step,
        problem: Problem,
        compile: Compile = "auto",
        num_steps: int = 0,
        *,
        compile_regions: bool = False,
    ) -> None:
        self._step = step
        self._problem = problem
        on_gpu = problem.device.type == "cuda"
        self._compile = compile == "on" or (compile == "auto" and on_gpu and num_steps >= PAYS_FROM)
        self._in_pieces = compile_regions
        self._own_kernels = compile != "off"  # they are compiled, too
        self._tried = False
        self._warm_up = WARM_UP if compile != "off" and on_gpu else 0
        self._replayable: _Replayable | None = None
        self._graph: _Graph | None = None
        self.note = ""

    def __call__(self, state: Any, rng: Rng) -> tuple[Any, Any]:
        if self._graph is not None:
            return self._graph.replay(state, rng)
        if self._compile and not self._tried:
            state = clone(
                state
                # parts of a first state may be one tensor, those of later ones never are: it would
                # be
                # compiled twice
            )
            self._try_to_compile(state, rng)
        if self._warm_up == 0:
            return self._now(state, rng)
        self._warm_up -= 1
        result: tuple[Any, Any] = _on_side_stream(lambda: self._now(state, rng))
        if self._warm_up == 0:
            self._try_to_capture(result[0], rng)
        return result

    def _now(self, state: Any, rng: Rng) -> tuple[Any, Any]:
        try:
            return self._taken(state, rng)
        except (
            Exception
        ) as error:  # what was compiled for one call may have to be compiled anew for another
            if not type(error).__module__.startswith(
                ("torch._dynamo", "torch._inductor")
            ):  # whose import takes seconds
                raise
            self._give_up_compiling(error)
            return self._taken(state, rng)

    def _taken(self, state: Any, rng: Rng) -> tuple[Any, Any]:
        if self._replayable is not None:
            return self._replayable.step(state, self._replayable.draws(rng))
        with self._pieces():
            return self._step(self._problem, state, rng)

    @contextmanager
    def _pieces(self) -> Iterator[None]:
        allowed = own_kernels.set(self._own_kernels and own_kernels.get())
        pieces: Pieces = "all but passes" if self._problem.has_kernels else "all"
        token = _compiled_pieces.set(pieces if self._compile and self._in_pieces else "none")
        try:
            yield
        finally:
            _compiled_pieces.reset(token)
            own_kernels.reset(allowed)

    def _try_to_compile(self, state: Any, rng: Rng) -> None:
        """Compile, and once for all to see whether it works; the state it leads to is thrown away."""
        self._tried = True
        # what earlier steppers compiled counts against a limit, and is never used again
        torch.compiler.reset()
        try:
            if not self._in_pieces:
                recorded = _record(self._step, self._problem, state, rng)
                self._replayable = recorded._replace(
                    step=torch.compile(recorded.step, fullgraph=True, dynamic=False)
                )
            self._taken(state, rng)
        # torch raises many kinds here, none of which should end a run that can do without
        except Exception as error:
            self._give_up_compiling(error)

    def _give_up_compiling(self, error: Exception) -> None:
        self._replayable, self._compile = None, False
        self.note = f"not compiled: {_first_line(error)}"

    def _try_to_capture(self, state: Any, rng: Rng) -> None:
        try:
            with self._pieces():
                replayable = self._replayable or _record(self._step, self._problem, state, rng)
                with _undone_if_broken_off():
                    self._graph = _capture(
                        replayable, state, rng, draw_first=self._replayable is not None
                    )
        except (
            Exception
        ) as error:  # the step itself has been taken before, so a run can go on with it
            self.note = f"running eagerly, as this step cannot be captured: {_first_line(error)}"


class _Draw(NamedTuple):
    path: tuple[str | int, ...]
    """Of the stream, below the one that names the step."""
    make: Callable[..., Tensor]
    arguments: tuple[Any, ...]
    device: Device
    options: Mapping[str, Any]


class _Replayable(NamedTuple):
    """A step as a function of its state and of what it draws."""

    step: Callable[[Any, "_Drawn"], tuple[Any, Any]]
    tape: list[_Draw]

    def draws(self, rng: Rng) -> list[Tensor]:
        return [
            rng(*draw.path).draw(draw.make, *draw.arguments, device=draw.device, **draw.options)
            for draw in self.tape
        ]


@dataclass(frozen=True)
class _RecordingRng(Rng):
    """Notes every draw, in order: drawing twice from one stream gives the same numbers twice, and
    stays two draws.
    """

    tape: list[_Draw] = field(default_factory=list)
    prefix: int = 0

    def __call__(self, *names: str | int) -> "_RecordingRng":
        return _RecordingRng(self.seed, (*self.path, *names), self.tape, self.prefix)

    def draw(
        self, make: Callable[..., Tensor], *arguments: Any, device: Device, **options: Any
    ) -> Tensor:
        self.tape.append(_Draw(self.path[self.prefix :], make, arguments, device, options))
        return Rng(self.seed, self.path).draw(make, *arguments, device=device, **options)

    def number(self) -> int:
        raise RuntimeError(
            "a step that chooses by a stream's number on the host cannot be captured"
        )


class _ReplayingRng:
    """Hands out draws made before, in order. Not itself an `Rng`: the compiler of torch 2.11 cannot
    make a frozen dataclass.
    """

    def __init__(self, drawn: "_Drawn") -> None:
        self.drawn = drawn
        self.position = 0

    def __call__(self, *names: str | int) -> "_ReplayingRng":
        return self

    def draw(
        self, make: Callable[..., Tensor], *arguments: Any, device: Device, **options: Any
    ) -> Tensor:
        if self.position >= len(self.drawn):
            raise RuntimeError("the step drew more in one call than in another")
        self.position += 1
        return self.drawn[self.position - 1]

    def number(self) -> int:
        raise RuntimeError(
            "a step that chooses by a stream's number on the host cannot be captured"
        )

    normal, uniform, integers, permutation = Rng.normal, Rng.uniform, Rng.integers, Rng.permutation


def _record(step: Step, problem: Problem, state: Any, rng: Rng) -> _Replayable:
    """Take a step to note its draws, whose result is thrown away."""
    tape: list[_Draw] = []
    step(problem, clone(state), _RecordingRng(rng.seed, rng.path, tape, len(rng.path)))
    for draw in tape:
        if torch.device(draw.device).type != problem.device.type:
            raise RuntimeError(f"the stream {draw.path} is drawn on the host")

    def replayed(state: Any, drawn: _Drawn) -> tuple[Any, Any]:
        after, info = step(problem, state, cast(Rng, _ReplayingRng(drawn)))
        return _made_anew(after), _made_anew(info)

    return _Replayable(replayed, tape)


def _made_anew(part: Any) -> Any:
    """The same tensors in named tuples made here: one that comes of `_replace` leaves a function
    compiled by torch 2.11 empty.
    """
    return (
        type(part)(*map(_made_anew, part))
        if isinstance(part, tuple) and hasattr(part, "_fields")
        else part
    )


@dataclass(frozen=True)
class _Drawing:
    """Draws made when they are asked for, so that no two need exist at once."""

    tape: list[_Draw]
    generators: list[torch.Generator]

    def __len__(self) -> int:
        return len(self.tape)

    def __getitem__(self, place: int) -> Tensor:
        draw = self.tape[place]
        return draw.make(
            *draw.arguments, generator=self.generators[place], device=draw.device, **draw.options
        )


_Drawn = list[Tensor] | _Drawing


class _Graph(NamedTuple):
    graph: torch.cuda.CUDAGraph
    state: Any
    """The buffers a replay reads its state from and leaves the next one in."""
    info: Any
    streams: list[tuple[tuple[str | int, ...], torch.Generator]]

    def replay(self, state: Any, rng: Rng) -> tuple[Any, Any]:
        if state is not self.state:
            _copy(flatten(state), flatten(self.state))
        for path, generator in self.streams:
            generator.manual_seed(rng(*path).number())
        self.graph.replay()
        return self.state, self.info


def _capture(replayable: _Replayable, state: Any, rng: Rng, *, draw_first: bool) -> _Graph:
    buffers = clone(state)
    graph = torch.cuda.CUDAGraph()
    drawing = _Drawing(
        replayable.tape, [rng(*draw.path).generator(draw.device) for draw in replayable.tape]
    )
    for generator in drawing.generators:
        graph.register_generator_state(generator)
    own = {buffer.untyped_storage().data_ptr() for buffer in flatten(buffers).values()}
    with _no_collection(), torch.cuda.graph(graph, capture_error_mode="thread_local"):
        drawn: _Drawn = [drawing[place] for place in range(len(drawing))] if draw_first else drawing
        after, info = replayable.step(buffers, drawn)
        # A part of the new state may be a buffer of the old one, or lie in it; copy it aside before
        # that is overwritten.
        safe = {
            name: value.clone() if value.untyped_storage().data_ptr() in own else value
            for name, value in flatten(after).items()
        }
        _copy(safe, flatten(buffers))
    return _Graph(
        graph,
        buffers,
        info,
        [
            (draw.path, generator)
            for draw, generator in zip(drawing.tape, drawing.generators, strict=True)
        ],
    )


@contextmanager
def _no_collection() -> Iterator[None]:
    """Python's garbage may hold an older graph, and to destroy one breaks off the capture of
    another.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextmanager
def _undone_if_broken_off() -> Iterator[None]:
    """A capture that breaks off leaves torch on its stream, and the global generator waiting for
    its end.
    """
    stream, generator = (
        torch.cuda.current_stream(),
        torch.cuda.default_generators[torch.cuda.current_device()],
    )
    before = generator.clone_state()
    try:
        yield
    except Exception:
        torch.cuda.set_stream(stream)
        torch.cuda.synchronize()
        generator.graphsafe_set_state(before)
        raise


def _copy(source: Mapping[str, Tensor], target: Mapping[str, Tensor]) -> None:
    for name, buffer in target.items():
        buffer.copy_(source[name])


def _on_side_stream(call: Callable[[], Any]) -> Any:
    """Warm-up belongs on a stream of its own: the libraries' workspaces made there serve the
    capture.
    """
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        result = call()
    torch.cuda.current_stream().wait_stream(stream)
    return result


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
