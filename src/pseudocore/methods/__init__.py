"""The methods, one file each (one for two where the code is one), imported on first use."""

from typing import TYPE_CHECKING, Any

from pseudocore.core.registry import lazy_attribute, methods

if TYPE_CHECKING:
    from pseudocore.methods.bayes.black_box_vi import BlackBoxVI
    from pseudocore.methods.bayes.bpc_cd import BPCContrastiveDivergence
    from pseudocore.methods.bayes.bpc_fkl import BPCForwardKL
    from pseudocore.methods.bayes.bpc_pcd import BPCPersistentChains
    from pseudocore.methods.bayes.bpc_rkl import BPCReverseKL
    from pseudocore.methods.bayes.bpc_w import MTT, BPCWasserstein
    from pseudocore.methods.bayes.fbpc import FBPC
    from pseudocore.methods.bayes.psvi import PSVI
    from pseudocore.methods.bayes.vbpc import VBPC, FRePo
    from pseudocore.methods.condense.cafe import CAFE
    from pseudocore.methods.condense.datm import DATM
    from pseudocore.methods.condense.dc import DC, DSA
    from pseudocore.methods.condense.dd import DatasetDistillation
    from pseudocore.methods.condense.dm import DM
    from pseudocore.methods.condense.idm import IDM
    from pseudocore.methods.condense.kip import KIP
    from pseudocore.methods.condense.lcmat_c import LCMatC
    from pseudocore.methods.condense.ld import LabelDistillation, LabelDistillationRidge
    from pseudocore.methods.condense.ncfm import NCFM
    from pseudocore.methods.condense.rcig import RCIG
    from pseudocore.methods.select.adacore import AdaCore
    from pseudocore.methods.select.contextual_diversity import ContextualDiversity
    from pseudocore.methods.select.coreset_mcmc import CoresetMCMC
    from pseudocore.methods.select.craig import CRAIG
    from pseudocore.methods.select.forgetting import Forgetting
    from pseudocore.methods.select.full import Full
    from pseudocore.methods.select.glister import Glister, GlisterVal
    from pseudocore.methods.select.gradmatch import GradMatch, GradMatchVal
    from pseudocore.methods.select.grand import EL2N, GraNd
    from pseudocore.methods.select.herding import Herding
    from pseudocore.methods.select.hilbert import GIGA, FrankWolfe
    from pseudocore.methods.select.k_center import KCenter
    from pseudocore.methods.select.kernel import KernelHerding, KernelThinning, SteinThinning
    from pseudocore.methods.select.lcmat_s import LCMatS
    from pseudocore.methods.select.sparse_vi import QuasiNewton, SparseVI
    from pseudocore.methods.select.submodular import FeatureBased, GraphCut, LogDet
    from pseudocore.methods.select.uncertainty import Entropy, LeastConfidence, Margin
    from pseudocore.methods.select.uniform import Uniform

register = methods.register
"""A decorator that enters a class of another package under a name."""

INDEX = {
    "adacore": "select.adacore:AdaCore",
    "black-box-vi": "bayes.black_box_vi:BlackBoxVI",
    "bpc-cd": "bayes.bpc_cd:BPCContrastiveDivergence",
    "bpc-fkl": "bayes.bpc_fkl:BPCForwardKL",
    "bpc-pcd": "bayes.bpc_pcd:BPCPersistentChains",
    "bpc-rkl": "bayes.bpc_rkl:BPCReverseKL",
    "bpc-w": "bayes.bpc_w:BPCWasserstein",
    "c-div": "select.contextual_diversity:ContextualDiversity",
    "cafe": "condense.cafe:CAFE",
    "coreset-mcmc": "select.coreset_mcmc:CoresetMCMC",
    "craig": "select.craig:CRAIG",
    "datm": "condense.datm:DATM",
    "dc": "condense.dc:DC",
    "dd": "condense.dd:DatasetDistillation",
    "dm": "condense.dm:DM",
    "dsa": "condense.dc:DSA",
    "el2n": "select.grand:EL2N",
    "entropy": "select.uncertainty:Entropy",
    "fbpc": "bayes.fbpc:FBPC",
    "feature-based": "select.submodular:FeatureBased",
    "forgetting": "select.forgetting:Forgetting",
    "frank-wolfe": "select.hilbert:FrankWolfe",
    "frepo": "bayes.vbpc:FRePo",
    "full": "select.full:Full",
    "giga": "select.hilbert:GIGA",
    "glister": "select.glister:Glister",
    "glister-val": "select.glister:GlisterVal",
    "gradmatch": "select.gradmatch:GradMatch",
    "gradmatch-val": "select.gradmatch:GradMatchVal",
    "grand": "select.grand:GraNd",
    "graph-cut": "select.submodular:GraphCut",
    "herding": "select.herding:Herding",
    "idm": "condense.idm:IDM",
    "k-center": "select.k_center:KCenter",
    "kernel-herding": "select.kernel:KernelHerding",
    "kernel-thinning": "select.kernel:KernelThinning",
    "kip": "condense.kip:KIP",
    "lcmat-c": "condense.lcmat_c:LCMatC",
    "lcmat-s": "select.lcmat_s:LCMatS",
    "ld": "condense.ld:LabelDistillation",
    "ld-rr": "condense.ld:LabelDistillationRidge",
    "least-confidence": "select.uncertainty:LeastConfidence",
    "log-det": "select.submodular:LogDet",
    "margin": "select.uncertainty:Margin",
    "mtt": "bayes.bpc_w:MTT",
    "ncfm": "condense.ncfm:NCFM",
    "psvi": "bayes.psvi:PSVI",
    "quasi-newton": "select.sparse_vi:QuasiNewton",
    "rcig": "condense.rcig:RCIG",
    "sparse-vi": "select.sparse_vi:SparseVI",
    "stein-thinning": "select.kernel:SteinThinning",
    "uniform": "select.uniform:Uniform",
    "vbpc": "bayes.vbpc:VBPC",
}
"""`module:Class` by name."""

__all__ = [
    "CAFE", "CRAIG", "DATM", "DC", "DM", "DSA", "EL2N", "FBPC", "GIGA", "IDM", "KIP", "MTT", "NCFM", "PSVI", "RCIG", "VBPC", "AdaCore",
    "BPCContrastiveDivergence", "BPCForwardKL", "BPCPersistentChains", "BPCReverseKL",
    "BPCWasserstein", "BlackBoxVI", "ContextualDiversity", "CoresetMCMC", "DatasetDistillation", "Entropy", "FRePo", "FeatureBased",
    "Forgetting", "FrankWolfe", "Full", "Glister", "GlisterVal", "GraNd", "GradMatch", "GradMatchVal", "GraphCut",
    "Herding", "KCenter", "KernelHerding", "KernelThinning", "LCMatC",
    "LCMatS", "LabelDistillation", "LabelDistillationRidge", "LeastConfidence", "LogDet", "Margin",
    "QuasiNewton", "SparseVI", "SteinThinning", "Uniform", "register",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    return lazy_attribute(__name__, INDEX.values(), name)


def __dir__() -> list[str]:
    return __all__
