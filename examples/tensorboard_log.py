"""The curves of a run in TensorBoard: `tensorboard --logdir events`."""

import pseudocore as pc

with pc.loggers.TensorBoard("events") as log:
    run = pc.reduce("vbpc", "digits", per_class=1, model="linear", num_steps=30, on_log=log)
print(run.history[-1])
