from .mirror_descent import MirrorDescent as MirrorDescent
from .mirror_descent import matched_lr as matched_lr
from .structure_aware import StructureAware as StructureAware
