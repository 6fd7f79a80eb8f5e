"""A step captured as a CUDA graph.

A step launches hundreds of small kernels, and on a fast GPU that takes longer than running them; a
captured graph launches them all at once. Every draw has a generator of its own, registered
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
from pseudocore.runtime.draws import Draw, Drawn, LazyDraws, Replayable

Result = TypeVar("Result")

MAX_BRANCHES = 4
"""Branches of a captured step that run at once: each takes its own memory, and more gain little."""

_streams: list[torch.cuda.Stream] = []
"""Of the branches; always the same ones, as each keeps the memory it was given."""


class Graph(NamedTuple):
    graph: torch.cuda.CUDAGraph
    state: Any
    """The buffers a replay reads its state from and leaves the next one in."""
    info: Any
    draws: list[tuple[Draw, torch.Generator]]

    def replay(self, state: Any, rng: Rng) -> tuple[Any, Any]:
        if state is not self.state:
            _copy(flatten(state), flatten(self.state))
        for draw, generator in self.draws:
            generator.manual_seed(rng(*draw.path).number())
        self.graph.replay()
        return self.state, self.info


def capture(replayable: Replayable, state: Any, rng: Rng, *, draw_first: bool) -> Graph:
    """The graph of a step, which draws where it needs to, or, compiled, before anything else."""
    buffers, graph = clone(state), torch.cuda.CUDAGraph()
    generators = [draw.generator(rng) for draw in replayable.tape]
    for generator in generators:
        graph.register_generator_state(generator)
    lazy = LazyDraws(replayable.tape, generators)
    own = {buffer.untyped_storage().data_ptr() for buffer in flatten(buffers).values()}
    with _undisturbed(), torch.cuda.graph(graph, capture_error_mode="thread_local"):
        drawn: Drawn = [lazy[place] for place in range(len(lazy))] if draw_first else lazy
        after, info = replayable.step(buffers, drawn)
        # A part of the new state may be a buffer of the old one, or lie in it; copy it aside before
        # that is overwritten.
        safe = {
            name: value.clone() if value.untyped_storage().data_ptr() in own else value
            for name, value in flatten(after).items()
        }
        _copy(safe, flatten(buffers))
    return Graph(graph, buffers, info, list(zip(replayable.tape, generators, strict=True)))


def branches(calls: Iterable[Callable[[], Result]]) -> Iterator[Result]:
    """The results of independent calls, a few of which the graph may run at once.

    The kernels of a small network leave a large GPU idle at their ends and between them, which
    those of another can fill.
    """
    calls = iter(calls)
    while group := list(islice(calls, MAX_BRANCHES)):
        while len(_streams) < len(group):
            _streams.append(torch.cuda.Stream())  # type: ignore[no-untyped-call]
        here, streams, results = torch.cuda.current_stream(), _streams[: len(group)], []
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
    """Warm-up belongs on a stream of its own: the workspaces that libraries make there serve the
    capture.
    """
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        result = call()
    torch.cuda.current_stream().wait_stream(stream)
    return result


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Collect no garbage, which may hold an older graph, as to destroy one ends the capture of
    another. A capture that fails leaves torch on its stream, and the global generator waiting for
    its end: put both back.
    """
    collects = gc.isenabled()
    stream = torch.cuda.current_stream()
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    before = generator.clone_state()
    gc.disable()
    try:
        yield
    except BaseException:
        torch.cuda.set_stream(stream)
        torch.cuda.synchronize()
        generator.graphsafe_set_state(before)
        raise
    finally:
        if collects:
            gc.enable()


def _copy(source: Mapping[str, Tensor], target: Mapping[str, Tensor]) -> None:
    for name, buffer in target.items():
        buffer.copy_(source[name])
