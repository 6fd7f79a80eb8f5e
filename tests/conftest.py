"""Shared by all tests: one torch thread a process, since pytest runs one process a core and results must not depend on the count."""

import torch

torch.set_num_threads(1)
