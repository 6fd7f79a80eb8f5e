"""From a configuration to the objects it describes: setups, problems, presets, contracts."""

from pseudocore.assembly.building import build as build
from pseudocore.assembly.building import described as described
from pseudocore.assembly.building import device_of as device_of
from pseudocore.assembly.building import networks as networks
from pseudocore.assembly.building import reading as reading
from pseudocore.assembly.building import resolve as resolve
from pseudocore.assembly.configuration import Reduction as Reduction
from pseudocore.assembly.configuration import check_tables as check_tables
from pseudocore.assembly.setup import NETWORK_FIELDS as NETWORK_FIELDS
from pseudocore.assembly.setup import PRIOR_FIELDS as PRIOR_FIELDS
from pseudocore.assembly.setup import READING_FIELDS as READING_FIELDS
from pseudocore.assembly.setup import Data as Data
from pseudocore.assembly.setup import Setup as Setup
