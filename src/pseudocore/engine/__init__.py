"""Where independent work runs: processes of this machine, a Ray cluster, or Slurm by submitit.

`engine.map` calls a task for each item and yields results as they finish. A task is a function of
(config, seed, folder) in a module; config and result are JSON values, so nothing is unpickled
that a stranger wrote. A finished item is kept in the folder and not run again, and one whose worker
died begins again in the same folder, where the task has left its checkpoints.

    for done in engine.map(train, items, folder="work", engine=Engine(kind="ray")):
        print(done.item, done.result)
"""

from pseudocore.engine.items import Done as Done
from pseudocore.engine.items import Item as Item
from pseudocore.engine.items import Task as Task
from pseudocore.engine.mapping import map_items as map
from pseudocore.engine.settings import KINDS as KINDS
from pseudocore.engine.settings import Engine as Engine
from pseudocore.engine.settings import Kind as Kind
from pseudocore.engine.settings import Resources as Resources
from pseudocore.engine.settings import engine_of as engine_of
from pseudocore.engine.status import Status as Status
from pseudocore.engine.status import status as status

__all__ = ["Done", "Engine", "Item", "Resources", "Status", "map", "status"]
