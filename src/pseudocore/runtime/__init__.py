"""Executing steps: the loop, the step runner, derivatives, profiling, warm-up.

No other room but `models` knows how a step is executed. The others call `autodiff` for derivatives
and `execution` for work that may be done faster in some steps.
"""

from typing import Literal

Compile = Literal["auto", "on", "off"]
COMPILE_HELP = (
    "auto captures steps as CUDA graphs on a GPU and compiles those of long runs; on compiles them "
    "anywhere; off runs torch's own kernels eagerly."
)
