"""A step captured as a CUDA graph.

A step launches hundreds of small kernels, and on a fast GPU launching them takes longer than running
them; a captured graph launches them all at once. Every draw has a generator of its own, registered
with the graph and re-seeded from its stream before a replay.
"""

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from pseudocore.core.rng import Rng
from pseudocore.core.tree import clone, flatten
from pseudocore.runtime.draws import Drawn, LazyDraws, Replayable

Result = TypeVar("Result")

MAX_BRANCHES = 4
"""Branches of a captured step that run at once: each takes its own memory, and more gain little."""

_branches: list[torch.cuda.Stream] = []
"""The same ones every time, as each keeps the memory it was given."""


class Graph(NamedTuple):
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


def capture(replayable: Replayable, state: Any, rng: Rng, *, draw_first: bool) -> Graph:
    """The graph of a step, which draws where it needs to, or, compiled, before anything else."""
    buffers = clone(state)
    graph = torch.cuda.CUDAGraph()
    generators = [rng(*draw.path).generator(draw.device) for draw in replayable.tape]
    draws = LazyDraws(replayable.tape, generators)
    for generator in generators:
        graph.register_generator_state(generator)
    own = {buffer.untyped_storage().data_ptr() for buffer in flatten(buffers).values()}
    with (
        _undone_on_failure(),
        _no_collection(),
        torch.cuda.graph(graph, capture_error_mode="thread_local"),
    ):
        drawn: Drawn = [draws[place] for place in range(len(draws))] if draw_first else draws
        after, info = replayable.step(buffers, drawn)
        # A part of the new state may be a buffer of the old one, or lie in it; copy it aside before
        # that is overwritten.
        safe = {
            name: value.clone() if value.untyped_storage().data_ptr() in own else value
            for name, value in flatten(after).items()
        }
        _copy(safe, flatten(buffers))
    paths = [draw.path for draw in replayable.tape]
    return Graph(graph, buffers, info, list(zip(paths, generators, strict=True)))


def branches(calls: Iterable[Callable[[], Result]]) -> Iterator[Result]:
    """The results of independent calls, a few of which the graph may run at once.

    The kernels of a small network leave a large GPU idle at their ends and between them, which
    those of another can fill.
    """
    calls = iter(calls)
    while group := list(islice(calls, MAX_BRANCHES)):
        while len(_branches) < len(group):
            _branches.append(torch.cuda.Stream())  # type: ignore[no-untyped-call]
        here, streams, results = torch.cuda.current_stream(), _branches[: len(group)], []
        # all leave from here: memory that one of them gave back earlier is free by then
        for stream in streams:
            stream.wait_stream(here)
        for stream, call in zip(streams, group, strict=True):
            with torch.cuda.stream(stream):
                results.append(call())
        for stream in streams:
            here.wait_stream(stream)
        yield from results


def on_side_stream(call: Callable[[], Result]) -> Result:
    """Warm-up belongs on a stream of its own: the libraries' workspaces made there serve the
    capture.
    """
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        result = call()
    torch.cuda.current_stream().wait_stream(stream)
    return result


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
def _undone_on_failure() -> Iterator[None]:
    """A capture that fails leaves torch on its stream, and the global generator waiting for its
    end.
    """
    stream = torch.cuda.current_stream()
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    before = generator.clone_state()
    try:
        yield
    except BaseException:
        torch.cuda.set_stream(stream)
        torch.cuda.synchronize()
        generator.graphsafe_set_state(before)
        raise


def _copy(source: Mapping[str, Tensor], target: Mapping[str, Tensor]) -> None:
    for name, buffer in target.items():
        buffer.copy_(source[name])
