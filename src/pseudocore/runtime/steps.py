"""Running steps: eagerly; on a GPU as one captured CUDA graph; compiled where that pays.

A step that is a hundred passes through a network takes far too long to compile whole. There only
the functions that it repeats are compiled (`execution.repeated`, derivatives among them) and the
rest is captured as it is. A step that cannot be compiled or captured, for example because it reads
a value back to the host, runs eagerly, and `StepRunner.note` says why.
"""

from dataclasses import replace
from typing import Any

from pseudocore.core.problem import Problem
from pseudocore.core.rng import Rng
from pseudocore.core.tree import clone
from pseudocore.runtime import Compile, compiling, graph
from pseudocore.runtime.draws import Replayable, Step, record
from pseudocore.runtime.execution import executing, plan

NUM_WARM_UP = 3
"""Steps before capture, so that libraries have made their handles and workspaces; they count as
real steps.
"""


class StepRunner:
    """Takes steps of one function, by the `Execution` planned for it.

    A captured step keeps the state in buffers of its own: a state it returned is overwritten by the
    next call, so clone what is kept.

    Args:
        step: A pure function of (problem, state, rng) to (state, info).
        problem: What the step works on.
        compile: auto, on or off; see `execution.plan`.
        num_steps: How many steps are expected.
        repeats_passes: Whether a step passes through a network many times.
    """

    def __init__(
        self,
        step: Step,
        problem: Problem,
        compile: Compile = "auto",
        num_steps: int = 0,
        *,
        repeats_passes: bool = False,
    ) -> None:
        self.step = step
        self.problem = problem
        self.execution = plan(compile, problem, num_steps, repeats_passes=repeats_passes)
        self.note = ""
        """How steps are run, where that differs from what was asked."""
        self._num_warm_up = NUM_WARM_UP if self.execution.captured else 0
        self._tried_to_compile = self.execution.compiled == "nothing"
        self._compiled: Replayable | None = None
        self._graph: graph.Graph | None = None

    def __call__(self, state: Any, rng: Rng) -> tuple[Any, Any]:
        """The state and info after one step."""
        if self._graph is not None:
            return self._graph.replay(state, rng)
        if self.execution.compiled == "nothing" and self._num_warm_up == 0:
            with executing(self.execution):
                return self.step(self.problem, state, rng)
        if not self._tried_to_compile:
            self._tried_to_compile = True
            # Parts of a first state may be one tensor, those of later ones never are: it would be
            # compiled twice.
            state = clone(state)
            self._try_to_compile(state, rng)
        if self._num_warm_up == 0:
            return self._take(state, rng)
        self._num_warm_up -= 1
        result = graph.on_side_stream(lambda: self._take(state, rng))
        if self._num_warm_up == 0:
            self._try_to_capture(result[0], rng)
        return result

    def _take(self, state: Any, rng: Rng) -> tuple[Any, Any]:
        with executing(self.execution):
            if self.execution.compiled == "nothing":
                return self.step(self.problem, state, rng)
            try:
                return self._take_compiled(state, rng)
            except compiling.failures() as error:  # a later call may have to be compiled anew
                self._give_up_compiling(error)
        return self._take(state, rng)

    def _take_compiled(self, state: Any, rng: Rng) -> tuple[Any, Any]:
        if self._compiled is None:
            return self.step(self.problem, state, rng)
        return self._compiled.step(state, self._compiled.draws(rng))

    def _try_to_compile(self, state: Any, rng: Rng) -> None:
        """Compile, and take a step to see whether it works, whose result is thrown away."""
        compiling.forget()
        failures: tuple[type[Exception], ...] = (RuntimeError, *compiling.failures())
        try:
            with executing(self.execution):
                if self.execution.compiled == "step":
                    recorded = record(self.step, self.problem, state, rng)
                    self._compiled = recorded._replace(step=compiling.step(recorded.step))
                self._take_compiled(state, rng)
        except failures as error:
            self._give_up_compiling(error)

    def _give_up_compiling(self, error: Exception) -> None:
        self.execution = replace(self.execution, compiled="nothing")
        self._compiled = None
        self.note = f"not compiled: {_first_line(error)}"

    def _try_to_capture(self, state: Any, rng: Rng) -> None:
        try:
            with executing(self.execution):
                replayable = self._compiled or record(self.step, self.problem, state, rng)
                draw_first = self._compiled is not None
                self._graph = graph.capture(replayable, state, rng, draw_first=draw_first)
        except RuntimeError as error:  # the step has been taken already, so the run can continue
            self.note = f"running eagerly, as this step cannot be captured: {_first_line(error)}"


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
