"""Every method, one file each (one file for two where the code is truly one). Importing this
package registers all of them.
"""

import importlib
import pkgutil

for _module in pkgutil.walk_packages(__path__, f"{__name__}."):
    importlib.import_module(_module.name)
