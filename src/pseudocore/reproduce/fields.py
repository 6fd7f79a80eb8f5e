"""Names of a configuration's fields, looked up once: hundreds of cells ask for the same few
classes.
"""

import functools

from pseudocore.core import config


@functools.cache
def fields(cls: type) -> frozenset[str]:
    return frozenset(option.name for option in config.options(cls))
